// A device for PyTorch that is as asynchronous as a GPU, in host memory: tests of accelerators without one.
//
// It has PyTorch's type `PrivateUse1` (device.py names it). Each stream is a thread with a queue. What writes to
// tensors (copies, fills, additions) goes into the queue of the caller's current stream and returns at once; `sleep`
// keeps a stream busy for a time, and `hold` until what it returns is called. So what forgets to order two streams, or
// to wait, reads old values, as on a GPU. All other operations wait for the current stream, run on the CPU, and copy
// their results to the device.
//
// Freed memory is overwritten as soon as the stream that allocated it, and those named to `record_stream`, have come
// that far: as if the next tensor had got it. Memory to or from which a copy is asynchronous must be pinned, as on a
// GPU; a copy of any other waits.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr std::size_t kStreams = 16;  // of each device; the first is the default
constexpr std::byte kFreed{0xA5};

/// Runs what is put into its queue, in order, in a thread of its own that lives as long as the process.
class Queue {
 public:
  void put(std::function<void()> task) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!started_) std::thread([this] { run(); }).detach();
    started_ = true;
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  bool is_empty() {
    const std::lock_guard<std::mutex> guard(mutex_);
    return tasks_.empty();
  }

 private:
  void run() {
    at::NoGradGuard no_grad;
    while (true) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      std::function<void()> task = std::move(tasks_.front());
      lock.unlock();
      task();
      task = nullptr;  // without the lock, since what it holds may need Python's
      lock.lock();
      tasks_.pop_front();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // the first is under way
  bool started_ = false;
};

/// What has been queued before is done.
class Event {
 public:
  void set() {
    const std::lock_guard<std::mutex> guard(mutex_);
    is_set_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_set_; });
  }
  bool is_set() {
    const std::lock_guard<std::mutex> guard(mutex_);
    return is_set_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
};

using EventPtr = std::shared_ptr<Event>;

std::array<std::array<Queue, kStreams>, kDevices>& queues() {
  static auto* const all = new std::array<std::array<Queue, kStreams>, kDevices>;  // the threads outlive main()
  return *all;
}

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};
/// As CUDA's contexts: made on the current device by whatever a thread does, and on any device by going there.
std::array<std::atomic<bool>, kDevices> contexts{};
std::atomic<std::size_t> streams_given{0};
std::atomic<bool> is_capturing{false};

void make_context(c10::DeviceIndex device) { contexts.at(device) = true; }

/// There and back.
void visit(c10::DeviceIndex device) {
  make_context(device);
  make_context(current_device);
}

c10::DeviceIndex go_to(c10::DeviceIndex device) {
  make_context(device);
  return std::exchange(current_device, device);
}

c10::Stream stream_number(c10::DeviceIndex device, c10::StreamId number) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), number);
}

c10::Stream current_stream(c10::DeviceIndex device) { return stream_number(device, current_streams.at(device)); }

Queue& queue_of(const c10::Stream& stream) { return queues().at(stream.device_index()).at(stream.id()); }

EventPtr record_on(const c10::Stream& stream) {
  auto event = std::make_shared<Event>();
  queue_of(stream).put([event] { event->set(); });
  return event;
}

// Memory.

/// A tensor's. Streams that may still use it when the tensor is gone hold it.
struct Block {
  std::byte* memory;
  std::size_t bytes;
  c10::Stream allocated_on;
  std::vector<c10::Stream> used_on;
};

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, current_device);
    auto* const block = new Block{take(bytes), bytes, current_stream(current_device), {}};
    return {block->memory, block, [](void* context) { release(static_cast<Block*>(context)); }, device};
  }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

 private:
  static std::byte* take(std::size_t bytes) {
    const std::lock_guard<std::mutex> guard(mutex);
    auto& same_size = free[bytes];
    if (same_size.empty()) return static_cast<std::byte*>(std::malloc(bytes == 0 ? 1 : bytes));
    std::byte* const memory = same_size.back();
    same_size.pop_back();
    return memory;
  }

  static void release(Block* block) {
    const std::shared_ptr<Block> last(block, [](Block* unused) {
      std::memset(unused->memory, static_cast<int>(kFreed), unused->bytes);
      const std::lock_guard<std::mutex> guard(mutex);
      free[unused->bytes].push_back(unused->memory);
      delete unused;
    });
    queue_of(last->allocated_on).put([last] {});
    for (const c10::Stream& stream : last->used_on) queue_of(stream).put([last] {});
  }

  static inline std::mutex mutex;
  static inline std::map<std::size_t, std::vector<std::byte*>> free;
};

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
    const std::lock_guard<std::mutex> guard(mutex);
    pinned[static_cast<std::byte*>(memory)] = bytes;
    return {memory, memory, &free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

  static bool has(const void* address) {
    const std::lock_guard<std::mutex> guard(mutex);
    const auto* const at = static_cast<const std::byte*>(address);
    auto after = pinned.upper_bound(const_cast<std::byte*>(at));
    if (after == pinned.begin()) return false;
    --after;
    return at < after->first + after->second;
  }

  static std::size_t bytes() {
    const std::lock_guard<std::mutex> guard(mutex);
    std::size_t sum = 0;
    for (const auto& [_, size] : pinned) sum += size;
    return sum;
  }

 private:
  static void free(void* memory) {
    const std::lock_guard<std::mutex> guard(mutex);
    pinned.erase(static_cast<std::byte*>(memory));
    std::free(memory);
  }

  static inline std::mutex mutex;
  static inline std::map<std::byte*, std::size_t> pinned;
};

DeviceAllocator device_allocator;
PinnedAllocator pinned_allocator;
REGISTER_ALLOCATOR(kType, &device_allocator)

// What PyTorch asks of every kind of device.

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kType;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override { return {kType, go_to(device.index())}; }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override { go_to(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_number(index_of(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device); }
  c10::Stream getNewStream(c10::Device device, int = 0) const override {
    const auto number = static_cast<c10::StreamId>(1 + streams_given++ % (kStreams - 1));
    return stream_number(index_of(device), number);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    current_streams.at(stream.device_index()) = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  bool isStreamCapturing(const c10::Stream&) const { return is_capturing; }  // overrides PyTorch 2.13's
  bool queryStream(const c10::Stream& stream) const override { return queue_of(stream).is_empty(); }
  void synchronizeStream(const c10::Stream& stream) const override { record_on(stream)->wait(); }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    for (std::size_t id = 0; id < kStreams; ++id) {
      synchronizeStream(stream_number(device, static_cast<c10::StreamId>(id)));
    }
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    visit(stream.device_index());
    if (*event == nullptr) *event = new EventPtr;
    *static_cast<EventPtr*>(*event) = record_on(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    visit(stream.device_index());
    queue_of(stream).put([recorded = *static_cast<EventPtr*>(event)] { recorded->wait(); });
  }
  bool queryEvent(void* event) const override {
    make_context(current_device);
    return event == nullptr || (*static_cast<EventPtr*>(event))->is_set();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) (*static_cast<EventPtr*>(event))->wait();
  }
  void destroyEvent(void* event, c10::DeviceIndex device) const noexcept override {
    if (event == nullptr) return;
    visit(device);
    delete static_cast<EventPtr*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    if (memory.get_context() != nullptr) static_cast<Block*>(memory.get_context())->used_on.push_back(stream);
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : current_device; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return contexts.at(device); }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { go_to(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return go_to(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  bool isPinnedPtr(const void* address) const override { return PinnedAllocator::has(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  /// Memory is freed, or becomes less where it is.
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    TORCH_CHECK(bytes <= storage.nbytes(), "a storage of the double does not grow");
    if (bytes == 0) storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
    storage.set_nbytes(bytes);
  }
};

// Operations.

/// The same memory as a tensor of the CPU. It does not keep the memory.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

c10::Stream stream_of(const at::Tensor& tensor) { return current_stream(tensor.device().index()); }

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, &device_allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::Tensor& here = from.is_cpu() ? to : from;
  const bool crosses = from.device() != to.device();
  const bool touches_host = from.is_cpu() || to.is_cpu();
  const c10::Stream stream = stream_of(here);
  queue_of(stream).put([source = on_cpu(from), target = on_cpu(to)] { target.copy_(source); });
  const at::Tensor& host = from.is_cpu() ? from : to;
  const bool waits = touches_host ? !(non_blocking && PinnedAllocator::has(host.data_ptr())) : crosses;
  if (waits) record_on(stream)->wait();
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor& fill(at::Tensor& tensor, const at::Scalar& value) {
  queue_of(stream_of(tensor)).put([target = on_cpu(tensor), value] { target.fill_(value); });
  return tensor;
}

at::Tensor& zero(at::Tensor& tensor) { return fill(tensor, 0); }

at::Tensor& add(at::Tensor& tensor, const at::Tensor& other, const at::Scalar& alpha) {
  queue_of(stream_of(tensor)).put([target = on_cpu(tensor), value = on_cpu(other), alpha] {
    target.add_(value, alpha);
  });
  return tensor;
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  record_on(stream_of(tensor))->wait();
  return on_cpu(tensor).item();
}

/// The same tensor on the CPU, after what the current stream has queued.
at::Tensor copied_to_cpu(const at::Tensor& tensor) { return tensor.to(at::kCPU); }

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const auto bias_here = bias ? std::optional(copied_to_cpu(*bias)) : std::nullopt;
  return at::convolution_symint(copied_to_cpu(input), copied_to_cpu(weight), bias_here, stride, padding, dilation,
                                transposed, output_padding, std::move(groups))
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> wanted) {
  const std::vector<c10::SymInt> bias_sizes{weight.sym_size(transposed ? 1 : 0)};
  const auto [of_input, of_weight, of_bias] = at::convolution_backward_symint(
      copied_to_cpu(gradient), copied_to_cpu(input), copied_to_cpu(weight), c10::SymIntArrayRef(bias_sizes), stride,
      padding, dilation, transposed, output_padding, std::move(groups), wanted);
  const auto there = [&](const at::Tensor& made) { return made.defined() ? made.to(input.device()) : made; };
  return {there(of_input), there(of_weight), there(of_bias)};
}

at::Tensor coalesce(const at::Tensor& tensor) { return copied_to_cpu(tensor).coalesce().to(tensor.device()); }

at::Tensor to_dense(const at::Tensor& tensor, std::optional<c10::ScalarType> dtype, std::optional<bool>) {
  return copied_to_cpu(tensor).to_dense(dtype).to(tensor.device());
}

at::Tensor divide_rows(const at::Tensor& tensor, const at::Tensor& divisor) {
  return copied_to_cpu(tensor).div(copied_to_cpu(divisor)).to(tensor.device());
}

at::Tensor& divide_rows_in_place(at::Tensor& tensor, const at::Tensor& divisor) {
  tensor._values().div_(divisor);
  return tensor;
}

at::Tensor& add_rows(at::Tensor& tensor, const at::Tensor& rows, const at::Scalar& alpha) {
  return tensor.add_(rows.to_dense(), alpha);
}

at::Tensor as_strided(const at::Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(tensor, std::move(storage), offset, size, stride);
}

at::Tensor& set_whole_storage(at::Tensor& tensor, at::Storage storage) {
  return at::native::set_(tensor, std::move(storage));
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  Guard().recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

void run_on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  at::native::cpu_fallback(operation, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("view", &at::native::view);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("resize_", &at::native::resize_);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("fill_.Scalar", &fill);
  library.impl("zero_", &zero);
  library.impl("add_.Tensor", &add);
  library.impl("record_stream", &record_stream);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
}

/// As PyTorch calls a backend for sparse tensors of CUDA.
std::tuple<std::vector<at::Tensor>, c10::intrusive_ptr<c10d::Work>> allreduce_sparse(
    at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const c10::intrusive_ptr<c10d::ReduceOp>& operation, const std::optional<at::Tensor>&, bool is_async,
    int64_t timeout_ms) {
  std::vector<at::Tensor> listed = tensors.vec();
  c10d::AllreduceOptions options;
  options.reduceOp = *operation;
  options.timeout = std::chrono::milliseconds(timeout_ms);
  options.asyncOp = is_async;
  auto work = group->getBackend(kType)->allreduce_sparse(listed, options);
  return {std::move(listed), std::move(work)};
}

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, library) { library.impl("allreduce_", &allreduce_sparse); }

/// Of sparse tensors, whose indices and values are tensors of this device.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) {
  library.impl("empty.memory_format", &at::native::empty_sparse_symint);
  library.impl("_sparse_coo_tensor_with_dims", &at::native::new_with_dims_sparse);
  library.impl("_sparse_coo_tensor_with_dims_and_tensors", &at::native::new_with_dims_and_tensor_sparse_symint);
  library.impl("_indices", &at::native::_indices_sparse);
  library.impl("_values", &at::native::_values_sparse);
  library.impl("indices", &at::native::indices_sparse);
  library.impl("values", &at::native::values_sparse);
  library.impl("_nnz", &at::native::_nnz_sparse);
  library.impl("sparse_dim", &at::native::sparse_dim_sparse);
  library.impl("dense_dim", &at::native::dense_dim_sparse);
  library.impl("is_coalesced", &at::native::is_coalesced_sparse);
  library.impl("_coalesced_", &at::native::_coalesced_sparse_);
  library.impl("_coalesce", &coalesce);
  library.impl("_to_dense", &to_dense);
  library.impl("clone", &at::native::clone_sparse);
  library.impl("copy_", &at::native::copy_sparse_wrapper_);
  library.impl("copy_sparse_to_sparse_", &at::native::copy_sparse_);
  library.impl("sparse_resize_", &at::native::sparse_resize_);
  library.impl("sparse_resize_and_clear_", &at::native::sparse_resize_and_clear_);
  library.impl("div.Tensor", &divide_rows);
  library.impl("div_.Tensor", &divide_rows_in_place);
  library.impl("add_.Tensor", &add_rows);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  module.attr("DEVICES") = static_cast<int>(kDevices);
  module.def("current_device", [] { return static_cast<int>(current_device); });
  module.def("set_device", [](int device) { go_to(static_cast<c10::DeviceIndex>(device)); });
  module.def("has_context", [](int device) { return contexts.at(device).load(); });
  module.def("sleep", [](double seconds) {
    queue_of(current_stream(current_device)).put([seconds] {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    });
  });
  module.def("hold", [] {
    const auto gate = std::make_shared<std::promise<void>>();
    queue_of(current_stream(current_device)).put([opened = gate->get_future().share()] { opened.wait(); });
    return py::cpp_function([gate] { gate->set_value(); });
  });
  module.def("pinned_bytes", &PinnedAllocator::bytes);
  module.def("set_capturing", [](bool capturing) { is_capturing = capturing; });
}
