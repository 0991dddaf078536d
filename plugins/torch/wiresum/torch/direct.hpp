// Collectives from PyTorch's dispatcher straight into the native session, without Python.
//
// Most calls of a training, and of an inference server, are an all-reduce of one tensor, or an all-gather of one from
// each worker, in memory that the network can use in place. For these, Python (backend.py, network.py) would take
// several times as long as the rest of the call. Python handles all other calls, and the rare parts of these: the form
// of a tensor of a new size, which also says whether the network does such a call at all, an error's text, a future.
//
// There is one DirectCalls for each group with a session. backend.cpp calls it; network.py counts its calls and waits
// for them. Any thread may call any method.
#pragma once

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "wiresum/agent/capi.hpp"

namespace wiresum {

/// A collective in flight, or done.
using Operation = std::shared_ptr<capi::Operation>;

/// The functions of wiresum.agent's native module, which stays loaded. The first call needs the GIL.
inline const capi::Capi& agent() {
  static const auto* const functions =
      static_cast<const capi::Capi*>(py::module_::import("wiresum.agent._native").attr("CAPI").cast<py::capsule>());
  return *functions;
}

/// A call as PyTorch makes it, and its memory.
struct DirectCall {
  enum Name : std::uint8_t { kAllReduce, kAllGather, kAllGatherSingle };
  static constexpr std::array<const char*, 3> kNames{"all_reduce", "all_gather", "all_gather_single"};

  [[nodiscard]] bool is_all_reduce() const { return name == kAllReduce; }
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t all = 0;
    for (const at::Tensor& tensor : written) all += tensor.nbytes();
    return all;
  }

  Name name;
  c10d::ReduceOp::RedOpType operation;  // SUM for an all-gather
  at::Tensor given;
  std::vector<at::Tensor> written;
  std::chrono::milliseconds timeout;
  bool caller_waits;
};

/// Whether the network can use the tensor's own memory.
inline bool is_in_place(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.is_cpu() || !tensor.is_contiguous() || tensor.is_neg() ||
      tensor.is_conj() || tensor._is_zerotensor() || tensor.is_quantized() || tensor.numel() == 0) {
    return false;
  }
  // Python refuses a tensor whose storage does not hold its elements.
  const auto end = static_cast<std::size_t>(tensor.storage_offset() + tensor.numel()) * tensor.element_size();
  return end <= tensor.storage().nbytes();
}

/// The call, unless its tensors need Python. Workers need not decide alike.
inline std::optional<DirectCall> all_reduce_of(const std::vector<at::Tensor>& tensors,
                                               const c10d::AllreduceOptions& options) {
  const c10d::ReduceOp::RedOpType operation = options.reduceOp;
  if (tensors.size() != 1 || operation == c10d::ReduceOp::PREMUL_SUM || !is_in_place(tensors.front())) return {};
  return DirectCall{DirectCall::kAllReduce, operation, tensors.front(), tensors, options.timeout, !options.asyncOp};
}

/// `written` is a tensor for each of the workers, or one for all.
inline std::optional<DirectCall> all_gather_of(DirectCall::Name name, const std::vector<at::Tensor>& written,
                                               const at::Tensor& given, int rank, int workers,
                                               const c10d::AllgatherOptions& options) {
  const std::int64_t elements = name == DirectCall::kAllGather ? given.numel() : given.numel() * workers;
  const std::size_t tensors = name == DirectCall::kAllGather ? static_cast<std::size_t>(workers) : 1;
  const auto suits = [&](const at::Tensor& tensor) {
    return is_in_place(tensor) && tensor.scalar_type() == given.scalar_type() && tensor.numel() == elements;
  };
  if (!is_in_place(given) || written.size() != tensors || !std::all_of(written.begin(), written.end(), suits)) {
    return {};
  }
  // Python copies a contribution that lies where another worker's goes.
  const auto begin_of = [](const at::Tensor& tensor) { return static_cast<const std::byte*>(tensor.const_data_ptr()); };
  const std::byte* const begin = begin_of(given);
  const auto overlaps = [&](const at::Tensor& tensor) {
    return begin < begin_of(tensor) + tensor.nbytes() && begin_of(tensor) < begin + given.nbytes();
  };
  const auto at_rank = static_cast<std::size_t>(rank);
  const std::byte* const own =
      name == DirectCall::kAllGather ? begin_of(written[at_rank]) : begin_of(written[0]) + at_rank * given.nbytes();
  if (begin != own && std::any_of(written.begin(), written.end(), overlaps)) return {};
  return DirectCall{name, c10d::ReduceOp::SUM, given, written, options.timeout, !options.asyncOp};
}

class DirectCalls {
 public:
  /// How many forms are cached.
  static constexpr std::size_t kForms = 1024;
  static constexpr std::chrono::seconds kTimeoutMax{1'000'000'000};

  /// `session` is a wiresum.agent._native.Session. `notes_max` calls are kept for the error when workers call
  /// different things. Calls of more bytes than `bytes_max` are Python's.
  DirectCalls(py::object session, int rank, std::size_t notes_max, std::uint64_t bytes_max)
      : agent_(agent()),
        session_object_(std::move(session)),
        session_(agent_.session_of(session_object_.ptr())),
        rank_(rank),
        notes_max_(notes_max),
        bytes_max_(bytes_max) {
    if (session_ == nullptr) throw py::error_already_set();
  }

  ~DirectCalls() {
    if (Py_IsInitialized() == 0) {
      session_object_.release();
      return;
    }
    const py::gil_scoped_acquire locked;
    session_object_ = py::object();
  }

  DirectCalls(const DirectCalls&) = delete;
  DirectCalls& operator=(const DirectCalls&) = delete;

  /// Closed while earlier calls wait in Python for their turn (order.py).
  void set_open(bool open) { open_ = open; }

  /// How the call travels; nothing if it is Python's. `form_of()` gets the wiresum.agent._native.Form from network.py,
  /// or None.
  template <typename FormOf>
  std::optional<capi::Form> form_for(const DirectCall& call, const FormOf& form_of) {
    if (!open_ || call.bytes() > bytes_max_ || !agent_.is_usable(session_)) return {};
    const auto key =
        std::make_tuple(call.is_all_reduce(), call.operation, call.given.scalar_type(), call.given.numel());
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      if (const auto found = forms_.find(key); found != forms_.end()) return found->second;
    }
    std::optional<capi::Form> form;
    {
      const py::gil_scoped_acquire locked;
      const py::object made = form_of();
      if (!made.is_none() && !agent_.form_of(made.ptr(), &form.emplace())) throw py::error_already_set();
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    if (forms_.size() >= kForms) forms_.clear();
    return forms_.emplace(key, form).first->second;
  }

  /// Starts a call. Null if the session refuses it: Python reports the error.
  Operation start(const DirectCall& call, const capi::Form& form, std::chrono::milliseconds default_timeout) {
    const auto timeout = call.timeout.count() > 0 ? call.timeout : default_timeout;
    const auto timeout_ns = std::chrono::nanoseconds(std::min<std::chrono::milliseconds>(timeout, kTimeoutMax));
    const std::vector<capi::Region> regions = regions_of(call, form);
    const Operation operation(
        agent_.submit(session_, &form, regions.data(), regions.size(), timeout_ns.count(), call.caller_waits),
        [release = agent_.release](capi::Operation* ended) {
          if (ended != nullptr) release(ended);
        });
    if (!operation) return nullptr;
    const at::Tensor& shown = call.written.front();
    const std::lock_guard<std::mutex> guard(mutex_);
    ++counts_[call.name].first;
    counts_[call.name].second += call.bytes();
    Note note{operation,
              call.name,
              call.operation,
              shown.scalar_type(),
              c10::DimVector(shown.sizes()),
              call.written.size(),
              timeout_ns,
              std::chrono::system_clock::now()};
    if (notes_.size() < notes_max_) {
      notes_.push_back(std::move(note));
    } else {
      notes_[calls_ % notes_max_] = std::move(note);
    }
    ++calls_;
    return operation;
  }

  [[nodiscard]] std::uint64_t calls() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return calls_;
  }

  /// How many calls there were, and their bytes, by name.
  [[nodiscard]] py::dict counts() const {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto counts = counts_;
    lock.unlock();
    py::dict made;
    for (std::size_t name = 0; name < counts.size(); ++name) made[DirectCall::kNames[name]] = py::cast(counts[name]);
    return made;
  }

  /// The newest calls, with the fields of Call in calls.py, the oldest first.
  [[nodiscard]] py::list notes() const {
    py::list listed;
    for (const Note& note : newest()) {
      const bool ended_well = agent_.is_done(note.operation.get()) && !agent_.has_failed(note.operation.get());
      const bool sums = note.name == DirectCall::kAllReduce;
      const py::tuple shape = py::cast(std::vector<std::int64_t>(note.shape.begin(), note.shape.end()));
      py::list kinds;
      for (std::size_t i = 0; i < note.tensors; ++i) kinds.append(py::make_tuple(note.dtype, shape, 0));
      listed.append(py::make_tuple(agent_.number(note.operation.get()), DirectCall::kNames[note.name],
                                   sums ? py::cast(note.reduction) : py::none(), kinds,
                                   std::chrono::duration<double>(note.timeout).count(), -1, false,
                                   std::chrono::nanoseconds(note.created.time_since_epoch()).count(), ended_well));
    }
    return listed;
  }

  /// Waits for the newest calls that are in flight, until the timeout has passed.
  void drain(std::chrono::milliseconds timeout) const {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (const Note& note : newest()) {
      const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
      if (!agent_.wait(note.operation.get(), std::max<std::int64_t>(left.count(), 0))) return;
    }
  }

 private:
  struct Note {
    Operation operation;
    DirectCall::Name name;
    c10d::ReduceOp::RedOpType reduction;
    at::ScalarType dtype;
    c10::DimVector shape;
    std::size_t tensors;  // of this type and shape
    std::chrono::nanoseconds timeout;
    std::chrono::system_clock::time_point created;
  };

  /// One for the tensor of an all-reduce, and for the elements of each worker otherwise.
  [[nodiscard]] std::vector<capi::Region> regions_of(const DirectCall& call, const capi::Form& form) const {
    const void* const source = call.given.const_data_ptr();
    const auto elements = static_cast<std::uint64_t>(call.given.numel());
    const std::uint64_t bytes = call.given.nbytes();
    if (call.is_all_reduce()) {
      return {{source, call.given.mutable_data_ptr(), form.reduces ? bytes : elements, true}};
    }
    std::vector<capi::Region> regions;
    for (const at::Tensor& tensor : call.written) {
      auto* const memory = static_cast<std::byte*>(tensor.mutable_data_ptr());
      for (std::uint64_t at = 0; at < tensor.nbytes(); at += bytes) {
        regions.push_back({source, memory + at, bytes, static_cast<int>(regions.size()) == rank_});
      }
    }
    return regions;
  }

  [[nodiscard]] std::vector<Note> newest() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    std::vector<Note> notes = notes_;
    if (notes.size() == notes_max_) {
      std::rotate(notes.begin(), notes.begin() + static_cast<std::ptrdiff_t>(calls_ % notes_max_), notes.end());
    }
    return notes;
  }

  const capi::Capi& agent_;
  py::object session_object_;
  void* session_;
  const int rank_;
  const std::size_t notes_max_;
  const std::uint64_t bytes_max_;
  std::atomic<bool> open_{true};

  mutable std::mutex mutex_;  // of all that follows; never held while the GIL is asked for
  std::array<std::pair<std::uint64_t, std::uint64_t>, DirectCall::kNames.size()> counts_{};
  std::uint64_t calls_ = 0;
  std::vector<Note> notes_;
  std::map<std::tuple<bool, c10d::ReduceOp::RedOpType, at::ScalarType, std::int64_t>, std::optional<capi::Form>> forms_;
};

}  // namespace wiresum
