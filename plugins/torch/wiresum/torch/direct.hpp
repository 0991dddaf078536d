// All-reduces from PyTorch's dispatcher straight into the native session, without Python.
//
// Most calls of a training are the sum or mean of one tensor that the network can use in place. For these, Python
// (backend.py, network.py) would take several times as long as the rest of the call. `DirectSums::covers` defines them.
// Python handles all other calls, and the rare parts of these: the form of a tensor of a new size, an error's text, a
// future.
//
// There is one DirectSums for each group with a session. backend.cpp calls it; network.py counts its calls and waits
// for them. Any thread may call any method.
#pragma once

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
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

class DirectSums {
 public:
  /// How many forms are cached.
  static constexpr std::size_t kForms = 1024;
  static constexpr std::chrono::seconds kTimeoutMax{1'000'000'000};

  /// `session` is a wiresum.agent._native.Session. `notes_max` calls are kept for the error when workers call
  /// different things. Longer tensors than `bytes_max` are Python's.
  DirectSums(py::object session, std::size_t notes_max, std::uint64_t bytes_max)
      : agent_(agent()),
        session_object_(std::move(session)),
        session_(agent_.session_of(session_object_.ptr())),
        notes_max_(notes_max),
        bytes_max_(bytes_max) {
    if (session_ == nullptr) throw py::error_already_set();
  }

  ~DirectSums() {
    if (Py_IsInitialized() == 0) {
      session_object_.release();
      return;
    }
    const py::gil_scoped_acquire locked;
    session_object_ = py::object();
  }

  DirectSums(const DirectSums&) = delete;
  DirectSums& operator=(const DirectSums&) = delete;

  /// Closed while earlier calls wait in Python for their turn (order.py).
  void set_open(bool open) { open_ = open; }

  /// Whether this prepares the call for the network, and not Python. Workers need not decide alike.
  [[nodiscard]] bool covers(const std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) const {
    if (!open_ || tensors.size() != 1) return false;
    const c10d::ReduceOp::RedOpType operation = options.reduceOp;
    const at::Tensor& tensor = tensors.front();
    const at::ScalarType dtype = tensor.scalar_type();
    const bool is_float = dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
    const bool adds = operation == c10d::ReduceOp::SUM || (operation == c10d::ReduceOp::AVG && is_float);
    return adds && (is_float || dtype == at::kInt) && tensor.layout() == at::kStrided && tensor.is_cpu() &&
           tensor.is_contiguous() && !tensor.is_neg() && !tensor._is_zerotensor() && tensor.numel() > 0 &&
           tensor.nbytes() <= bytes_max_ && has_memory(tensor);
  }

  /// Starts a covered call. Null if the session has failed or refuses it: Python reports the error. `form_of()` gets
  /// the call's wiresum.agent._native.Form from network.py.
  template <typename FormOf>
  Operation start(const at::Tensor& tensor, const c10d::AllreduceOptions& options,
                  std::chrono::milliseconds default_timeout, const FormOf& form_of) {
    if (!agent_.is_usable(session_)) return nullptr;
    const bool is_average = options.reduceOp.op_ == c10d::ReduceOp::AVG;
    const capi::Form form = form_for(tensor, is_average, form_of);
    const auto timeout = options.timeout.count() > 0 ? options.timeout : default_timeout;
    const auto timeout_ns = std::chrono::nanoseconds(std::min<std::chrono::milliseconds>(timeout, kTimeoutMax));
    const auto elements = static_cast<std::uint64_t>(tensor.numel());
    const Operation operation(
        agent_.submit(session_, &form, tensor.mutable_data_ptr(), elements, timeout_ns.count(), !options.asyncOp),
        [release = agent_.release](capi::Operation* ended) {
          if (ended != nullptr) release(ended);
        });
    if (!operation) return nullptr;
    const std::lock_guard<std::mutex> guard(mutex_);
    ++calls_;
    bytes_ += tensor.nbytes();
    Note note{operation,  tensor.scalar_type(),
              is_average, c10::DimVector(tensor.sizes()),
              timeout_ns, std::chrono::system_clock::now()};
    if (notes_.size() < notes_max_) {
      notes_.push_back(std::move(note));
    } else {
      notes_[(calls_ - 1) % notes_max_] = std::move(note);
    }
    return operation;
  }

  [[nodiscard]] std::uint64_t calls() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return calls_;
  }

  /// Bytes of the callers' tensors.
  [[nodiscard]] std::uint64_t bytes() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return bytes_;
  }

  /// The newest calls, with the fields of Call in calls.py, the oldest first.
  [[nodiscard]] py::list notes() const {
    py::list listed;
    for (const Note& note : newest()) {
      const bool ended_well = agent_.is_done(note.operation.get()) && !agent_.has_failed(note.operation.get());
      const auto operation = note.is_average ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
      const py::tuple shape = py::cast(std::vector<std::int64_t>(note.shape.begin(), note.shape.end()));
      listed.append(py::make_tuple(agent_.number(note.operation.get()), "all_reduce", operation,
                                   py::make_tuple(py::make_tuple(note.dtype, shape, 0)),
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
  /// Whether the storage of a contiguous tensor holds its elements. Python refuses one whose storage does not.
  static bool has_memory(const at::Tensor& tensor) {
    const auto end = static_cast<std::size_t>(tensor.storage_offset() + tensor.numel()) * tensor.element_size();
    return end <= tensor.storage().nbytes();
  }

  struct Note {
    Operation operation;
    at::ScalarType dtype;
    bool is_average;
    c10::DimVector shape;
    std::chrono::nanoseconds timeout;
    std::chrono::system_clock::time_point created;
  };

  template <typename FormOf>
  capi::Form form_for(const at::Tensor& tensor, bool is_average, const FormOf& form_of) {
    const auto key = std::make_tuple(tensor.scalar_type(), is_average, tensor.numel());
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      if (const auto found = forms_.find(key); found != forms_.end()) return found->second;
    }
    capi::Form form{};
    {
      const py::gil_scoped_acquire locked;
      const py::object made = form_of();
      if (!agent_.form_of(made.ptr(), &form)) throw py::error_already_set();
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    if (forms_.size() >= kForms) forms_.clear();
    return forms_.emplace(key, form).first->second;
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
  const std::size_t notes_max_;
  const std::uint64_t bytes_max_;
  std::atomic<bool> open_{true};

  mutable std::mutex mutex_;  // of all that follows; never held while the GIL is asked for
  std::uint64_t calls_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<Note> notes_;
  std::map<std::tuple<at::ScalarType, bool, std::int64_t>, capi::Form> forms_;
};

}  // namespace wiresum
