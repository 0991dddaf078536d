// A c10d::Backend that forwards collectives to a Python object; wiresum.torch registers it under a plain ProcessGroup.
//
// PyTorch before 2.15 lets Python subclass ProcessGroup but not Backend, and a ProcessGroup is called before PyTorch's
// dispatcher: the profiler, CommDebugMode, fake tensors and torch.compile would not see its collectives. So this file
// is compiled against the installed PyTorch when a process group is first made (extension.py).
//
// Methods that PyTorch added or renamed between releases have no `override`: they override where the base class has
// them, and are unused functions where it does not.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "direct.hpp"

#include <ATen/core/ivalue.h>
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using Milliseconds = std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr const char* kName = "wiresum";
/// Longest single wait without Python, which handles signals between two.
constexpr std::chrono::nanoseconds kWaitMax{500'000'000};

/// Releases a Python object in any thread. After the interpreter's end it is leaked.
void release(py::object& object) {
  if (!object) return;
  if (Py_IsInitialized() == 0) {
    object.release();
    return;
  }
  const py::gil_scoped_acquire locked;
  object = py::object();
}

/// An exception that raises this error each time it gets to Python (pybind11's own does so only once); none for None.
std::exception_ptr as_exception(const py::object& error) {
  if (error.is_none()) return nullptr;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  python_error raised;
  raised.persist();
  return std::make_exception_ptr(std::move(raised));
}

/// What a group has at this worker until it is reconfigured. Its works keep it.
struct Member {
  /// `made` is a WiresumBackend, or an Unconnected, of wiresum.torch.backend. The caller has the GIL.
  explicit Member(py::object made)
      : implementation(std::move(made)),
        direct(implementation.attr("direct").cast<std::shared_ptr<wiresum::DirectCalls>>()) {}
  ~Member() { release(implementation); }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  py::object implementation;
  const std::shared_ptr<wiresum::DirectCalls> direct;  // null: there is no session
};
using MemberPtr = std::shared_ptr<const Member>;

/// A Work that calls a Python object's methods and keeps it alive, unlike PyTorch's own trampoline. For the profiler it
/// is an event from the call to the end of a wait.
///
/// A work that began without Python (direct.hpp) has an operation instead. network.py makes the object when it is
/// needed: if the operation failed, or if more is asked for than whether it has ended.
class PythonWork final : public c10d::Work {
 public:
  using Work::Work;
  ~PythonWork() override {
    if (operation_ && !has_ended_well()) leave_to_python();
    release(work_);
  }

  void begin(py::object work) { work_ = std::move(work); }

  /// The operation works on the memory of `call`.
  void begin(wiresum::Operation operation, wiresum::DirectCall call, MemberPtr member) {
    operation_ = std::move(operation);
    given_ = std::move(call.given);
    tensors_ = std::move(call.written);
    member_ = std::move(member);
  }

  bool isCompleted() override {
    if (operation_) return wiresum::agent().is_done(operation_.get());
    const py::gil_scoped_acquire locked;
    return work_.attr("is_completed")().cast<bool>();
  }

  bool isSuccess() const override {
    if (operation_) return has_ended_well();
    const py::gil_scoped_acquire locked;
    return work_.attr("is_success")().cast<bool>();
  }

  std::exception_ptr exception() const override {
    if (operation_ && (has_ended_well() || !wiresum::agent().is_done(operation_.get()))) return nullptr;
    const py::gil_scoped_acquire locked;
    return as_exception(work().attr("exception")());
  }

  int sourceRank() const override {
    const py::gil_scoped_acquire locked;
    return work().attr("source_rank")().cast<int>();
  }

  Tensors result() override {
    if (operation_) return tensors_;
    const py::gil_scoped_acquire locked;
    return work_.attr("result")().cast<Tensors>();
  }

  void synchronize() override { wait(); }

  bool wait(Milliseconds timeout = kNoTimeout) override {
    if (!operation_ || timeout != kNoTimeout || !ends_well()) {
      const py::gil_scoped_acquire locked;
      timeout == kNoTimeout ? work().attr("wait")() : work().attr("wait")(timeout);
    }
    finish();
    return true;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const std::vector<c10::Device> on = devices();  // may ask for the GIL, so before the lock
    bool is_new = false;
    {
      const std::lock_guard<std::mutex> guard(future_mutex_);
      if (!future_) {
        future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), on);
        is_new = true;
      }
    }
    if (is_new) {
      const py::gil_scoped_acquire locked;
      if (operation_) member_->implementation.attr("attend")(work());
      work().attr("when_settled")(py::cpp_function([future = future_](const Tensors& result, const py::object& error) {
        const std::exception_ptr failure = as_exception(error);
        const py::gil_scoped_release unlocked;  // callbacks may wait for what other threads do
        failure ? future->setError(failure) : future->markCompleted(result);
      }));
    }
    return future_;
  }

 private:
  /// The accelerators on which the result is. What waits for the future is ordered after the streams that are current
  /// when it is completed.
  std::vector<c10::Device> devices() {
    std::vector<c10::Device> found;
    for (const at::Tensor& tensor : result()) {
      const c10::Device device = tensor.device();
      if (!device.is_cpu() && std::find(found.begin(), found.end(), device) == found.end()) found.push_back(device);
    }
    return found;
  }

  bool has_ended_well() const {
    return wiresum::agent().is_done(operation_.get()) && !wiresum::agent().has_failed(operation_.get());
  }

  /// Waits for the operation's end. Throws what Python's signal handlers raise.
  bool ends_well() const {
    std::optional<py::gil_scoped_release> unlocked;
    if (PyGILState_Check() != 0) unlocked.emplace();
    while (!wiresum::agent().wait(operation_.get(), kWaitMax.count())) {
      const py::gil_scoped_acquire locked;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
    return has_ended_well();
  }

  /// The Python object; the caller has the GIL.
  const py::object& work() const {
    if (!work_) {
      const auto operation = py::reinterpret_steal<py::object>(wiresum::agent().object_of(operation_.get()));
      if (!operation) throw py::error_already_set();
      py::object made = member_->implementation.attr("network").attr("adopt")(operation, tensors_, given_);
      if (!work_) work_ = std::move(made);  // else another thread was faster while Python ran
    }
    return work_;
  }

  /// For a dropped work whose memory the network still uses, or whose error was not reported.
  void leave_to_python() {
    if (Py_IsInitialized() == 0) {
      new std::pair(std::move(tensors_), std::move(given_));  // the process ends; until then the network may use them
      return;
    }
    const py::gil_scoped_acquire locked;
    try {
      const py::object& owner = member_->implementation;
      if (owner.attr("is_forked").cast<bool>()) return;  // this process has memory of its own
      owner.attr("attend")(work());
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a dropped wiresum collective");
    }
  }

  mutable py::object work_;  // changes under the GIL
  wiresum::Operation operation_;
  Tensors tensors_;
  at::Tensor given_;
  MemberPtr member_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class PythonBackend final : public c10d::Backend {
 public:
  /// `implementation` is that of a Member.
  PythonBackend(py::object implementation, int rank, int size)
      : Backend(rank, size),
        member_(std::make_shared<Member>(std::move(implementation))),
        timeout_(this->implementation().attr("timeout").cast<Milliseconds>()) {}

  /// The caller has the GIL.
  py::object implementation() const { return member()->implementation; }

  const std::string getBackendName() const override { return kName; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const auto call = wiresum::all_reduce_of(tensors, options);
    if (WorkPtr work = start(c10d::OpType::ALLREDUCE, kAllReduce, tensors, call)) return work;
    return run(c10d::OpType::ALLREDUCE, kAllReduce, tensors, "allreduce", tensors, options);
  }

  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return allreduce(tensors, options);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return run(c10d::OpType::ALLREDUCE_COALESCED, kAllReduce, tensors, "allreduce_coalesced", tensors, options);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return run(c10d::OpType::REDUCE, "wiresum:reduce", tensors, "reduce", tensors, options);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return run(c10d::OpType::BROADCAST, "wiresum:broadcast", tensors, "broadcast", tensors, options);
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    if (outputs.size() == 1 && inputs.size() == 1) {
      const auto call =
          wiresum::all_gather_of(wiresum::DirectCall::kAllGather, outputs[0], inputs[0], rank_, size_, options);
      if (WorkPtr work = start(c10d::OpType::ALLGATHER, kAllGather, inputs, call)) return work;
    }
    return run(c10d::OpType::ALLGATHER, kAllGather, inputs, "allgather", outputs, inputs, options);
  }

  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    return run(c10d::OpType::ALLGATHER_COALESCED, kAllGather, inputs, "allgather_coalesced", outputs, inputs, options);
  }

  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
    constexpr const char* kTitle = "wiresum:_all_gather_base";
    const auto call =
        wiresum::all_gather_of(wiresum::DirectCall::kAllGatherSingle, {output}, input, rank_, size_, options);
    if (WorkPtr work = start(c10d::OpType::_ALLGATHER_BASE, kTitle, {input}, call)) return work;
    return run(c10d::OpType::_ALLGATHER_BASE, kTitle, {input}, "all_gather_single", output, input, options);
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
    return all_gather_single(output, input, options);
  }

  WorkPtr all_gather_single_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
    return run(c10d::OpType::COALESCED, kAllGather, inputs, "all_gather_single_coalesced", outputs, inputs, options);
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
    return all_gather_single_coalesced(outputs, inputs, options);
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return run(c10d::OpType::REDUCE_SCATTER, "wiresum:reduce_scatter", outputs, "reduce_scatter", outputs, inputs,
               options);
  }

  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
    return run(c10d::OpType::_REDUCE_SCATTER_BASE, "wiresum:_reduce_scatter_base", {input}, "reduce_scatter_single",
               output, input, options);
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
    return reduce_scatter_single(output, input, options);
  }

  WorkPtr reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) {
    return run(c10d::OpType::COALESCED, "wiresum:reduce_scatter", inputs, "reduce_scatter_single_coalesced", outputs,
               inputs, options);
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) {
    return reduce_scatter_single_coalesced(outputs, inputs, options);
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return run(c10d::OpType::GATHER, "wiresum:gather", inputs, "gather", outputs, inputs, options);
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return run(c10d::OpType::SCATTER, "wiresum:scatter", outputs, "scatter", outputs, inputs, options);
  }

  WorkPtr all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
    return run(c10d::OpType::ALLTOALL_BASE, "wiresum:all_to_all", {input}, "all_to_all_single", output, input,
               output_splits, input_splits, options);
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
    return all_to_all_single(output, input, output_splits, input_splits, options);
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return run(c10d::OpType::ALLTOALL, "wiresum:all_to_all", inputs, "alltoall", outputs, inputs, options);
  }

  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    return run(c10d::OpType::SEND, "wiresum:send", tensors, "send", tensors, destination, tag);
  }

  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    return run(c10d::OpType::RECV, "wiresum:recv", tensors, "recv", tensors, source, tag);
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return run(c10d::OpType::RECVANYSOURCE, "wiresum:recvAnySource", tensors, "recv_anysource", tensors, tag);
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return run(c10d::OpType::BARRIER, "wiresum:barrier", {}, "barrier", options);
  }

  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    const py::gil_scoped_acquire locked;
    implementation().attr("monitored_barrier")(options, wait_all_ranks);
  }

  void startCoalescing() override {
    is_coalescing_ = true;
    const py::gil_scoped_acquire locked;
    implementation().attr("start_coalescing")();
  }

  WorkPtr endCoalescing() override {
    is_coalescing_ = false;
    auto work = c10::make_intrusive<PythonWork>(rank_, c10d::OpType::COALESCED);
    const py::gil_scoped_acquire locked;
    work->begin(implementation().attr("end_coalescing")());
    return work;
  }

  /// The same at all workers, since they call the same collectives; TORCH_DISTRIBUTED_DEBUG=DETAIL compares it.
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}

  void setTimeout(Milliseconds timeout) {
    const py::gil_scoped_acquire locked;
    implementation().attr("set_timeout")(timeout);
    timeout_ = timeout;
  }

  c10::intrusive_ptr<Options> getBackendOptions() { return c10::make_intrusive<Options>(kName, timeout_.load()); }

  bool supportsSplitting() const { return true; }

  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) {
    const py::gil_scoped_acquire locked;
    py::object part = implementation().attr("split")(store, ranks, options->group_name, options->timeout);
    return part.is_none() ? nullptr : of(std::move(part));
  }

  bool supportsShrinking() const { return true; }

  /// PyTorch calls it where its own wrapper is around this backend (DETAIL), and passes options of backends in C++.
  c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                     const c10::intrusive_ptr<Options>& options) {
    const py::gil_scoped_acquire locked;
    return shrink_with(excluded, flags, options ? py::cast(options) : py::none());
  }

  c10::intrusive_ptr<PythonBackend> shrink_with(const std::vector<int64_t>& excluded, int flags,
                                                const py::object& options) {
    return of(implementation().attr("shrink")(excluded, flags, options));
  }

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return true; }

  c10d::ReconfigureHandle get_reconfigure_handle() const override {
    const py::gil_scoped_acquire locked;
    return implementation().attr("spec").attr("handle").cast<std::string>();
  }

  /// Returns when the new group is made, or throws. What is called meanwhile is the old group's.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override {
    {
      const py::gil_scoped_acquire locked;
      const py::object before = implementation();
      MemberPtr made = std::make_shared<Member>(before.attr("spec").attr("reconfigured")(options, before));
      rank_ = made->implementation.attr("rank").cast<int>();
      size_ = made->implementation.attr("size").cast<int>();
      sequence_ = 0;
      is_coalescing_ = false;
      const std::lock_guard<std::mutex> guard(member_mutex_);
      member_.swap(made);
    }
    auto done = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    done->markCompleted(Tensors{});
    return c10d::Work::create_from_future(done);
  }

  /// None: sums raise their errors where they are waited for, and a worker that is lost later does not matter to them.
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
#endif

  void shutdown() {
    const py::gil_scoped_acquire locked;
    implementation().attr("shutdown")();
  }

  void abort() {
    const py::gil_scoped_acquire locked;
    implementation().attr("abort")();
  }

 private:
  MemberPtr member() const {
    const std::lock_guard<std::mutex> guard(member_mutex_);
    return member_;
  }

  /// `implementation` is a WiresumBackend. The caller has the GIL.
  static c10::intrusive_ptr<PythonBackend> of(py::object implementation) {
    const int rank = implementation.attr("rank").cast<int>();
    const int size = implementation.attr("size").cast<int>();
    return c10::make_intrusive<PythonBackend>(std::move(implementation), rank, size);
  }

  /// Starts a call without Python. Null if Python has to do it. `tensors`: as in run().
  WorkPtr start(c10d::OpType type, const char* title, const Tensors& tensors,
                const std::optional<wiresum::DirectCall>& call) {
    const MemberPtr member = this->member();
    if (!call || !member->direct || is_coalescing_) return nullptr;
    const auto form = member->direct->form_for(*call, [&] {
      const char* const name = wiresum::DirectCall::kNames[call->name];
      return member->implementation.attr("network").attr("form_of")(name, call->given, call->operation);
    });
    if (!form) return nullptr;
    auto work = c10::make_intrusive<PythonWork>(rank_, type, title, tensors);
    wiresum::Operation operation = member->direct->start(*call, *form, timeout_.load());
    if (!operation) return nullptr;
    ++sequence_;
    work->begin(std::move(operation), *call, member);
    return work;
  }

  /// `tensors` are for the profiler, which shows their shapes.
  template <typename... Arguments>
  WorkPtr run(c10d::OpType type, const char* title, const Tensors& tensors, const char* method,
              const Arguments&... arguments) {
    auto work = c10::make_intrusive<PythonWork>(rank_, type, title, tensors);
    ++sequence_;
    const py::gil_scoped_acquire locked;
    work->begin(implementation().attr(method)(arguments...));
    return work;
  }

  static constexpr const char* kAllReduce = "wiresum:all_reduce";
  static constexpr const char* kAllGather = "wiresum:all_gather";

  mutable std::mutex member_mutex_;  // of `member_`; never held while the GIL is asked for
  MemberPtr member_;
  std::atomic<Milliseconds> timeout_;
  std::atomic<bool> is_coalescing_{false};
  std::atomic<uint64_t> sequence_{0};
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::register_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (python_error& raised) {
      raised.restore();
    }
  });
  py::class_<wiresum::DirectCalls, std::shared_ptr<wiresum::DirectCalls>>(module, "DirectCalls")
      .def(py::init<py::object, int, std::size_t, std::uint64_t>(), py::arg("session"), py::arg("rank"),
           py::arg("notes_max"), py::arg("bytes_max"))
      .def("set_open", &wiresum::DirectCalls::set_open, py::arg("open"))
      .def_property_readonly("calls", &wiresum::DirectCalls::calls)
      .def_property_readonly("counts", &wiresum::DirectCalls::counts)
      .def("notes", &wiresum::DirectCalls::notes)
      .def("drain", &wiresum::DirectCalls::drain, py::arg("timeout"), py::call_guard<py::gil_scoped_release>());
  py::class_<PythonBackend, c10d::Backend, c10::intrusive_ptr<PythonBackend>>(module, "PythonBackend")
      .def(py::init([](py::object implementation, int rank, int size) {
             return c10::make_intrusive<PythonBackend>(std::move(implementation), rank, size);
           }),
           py::arg("implementation"), py::arg("rank"), py::arg("size"))
      .def_property_readonly("implementation", &PythonBackend::implementation)
      .def_property_readonly("options", &PythonBackend::getBackendOptions)
      // Takes a wiresum.torch.Options, which is no c10d::Backend::Options.
      .def("shrink", &PythonBackend::shrink_with, py::arg("ranks_to_exclude"), py::arg("shrink_flags") = 0,
           py::arg("opts_override") = py::none())
      // For NCCL: new_group calls it at workers outside of the group if the backend can be split.
      .def("perform_nocolor_split", [](PythonBackend&, const at::Device&) {});
}
