// What wiresum.agent._native offers to native code of other packages (wiresum.torch's), in plain C, since that may be
// compiled elsewhere and otherwise: `_native.CAPI` is a capsule with a Capi. Whatever changes here changes its name, so
// that two that do not belong together do not meet. No function throws, and none but those that take a PyObject needs
// the GIL.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

namespace wiresum::capi {

inline constexpr const char* kName = "wiresum.agent._native.CAPI.3";

/// A collective without its memory: what is asked for, and how it travels. What is in a `_native.Form`.
struct Form {
  float fixed_scale;
  float divisor;
  std::uint16_t signature;
  std::uint8_t dtype;    // numeric::Dtype
  std::uint8_t scaling;  // numeric::Scaling
  std::uint8_t bits;
  bool may_be_sparse;
  bool reduces;          // Request::reduction
  std::uint8_t element;  // numeric::Element
  std::uint8_t op;       // numeric::Operator
};

/// A run of elements, to which this worker contributes if it `gives`, and of which it keeps the result.
struct Region {
  const void* source;
  void* destination;
  std::uint64_t elements;
  bool gives;
};

/// A session::Call, which release() gives back.
struct Operation;

struct Capi {
  /// The session behind a `_native.Session`, as long as that lives; null and a Python exception if it is none.
  void* (*session_of)(PyObject* session);
  /// False and a Python exception if `object` is no `_native.Form`.
  bool (*form_of)(PyObject* object, Form* form);

  /// False in a forked child, and when the session has failed, so that all that is submitted ends badly.
  bool (*is_usable)(void* session);
  /// Starts a collective over regions whose memory must stay until it is done. Null if it is refused: in a forked
  /// child, or if too many are in flight. `caller_waits`: engine::Request.
  Operation* (*submit)(void* session, const Form* form, const Region* regions, std::size_t count,
                       std::int64_t timeout_ns, bool caller_waits);
  /// False if the time passed first.
  bool (*wait)(const Operation* operation, std::int64_t timeout_ns);
  bool (*is_done)(const Operation* operation);
  /// Valid once done.
  bool (*has_failed)(const Operation* operation);
  /// The same at all workers, unless they call different collectives.
  std::uint16_t (*number)(const Operation* operation);
  void (*release)(Operation* operation);
  /// A new reference to a `_native.Operation`; null and a Python exception if there is no memory.
  PyObject* (*object_of)(const Operation* operation);
};

}  // namespace wiresum::capi
