// The process that made an object.
//
// A forked child has copies of all of its parent's objects, but only the thread that forked. An object with threads, or
// on which threads wait, cannot be destroyed in the child: a join, or pthread_cond_destroy(), would wait for threads
// that do not exist there, and one of them may have held a lock. The parent also goes on using sockets' descriptions,
// rings and pools that both share. Therefore the child leaves such an object alone: its memory is freed when the child
// ends or calls exec(), a deliberate leak, once for each fork.
#pragma once

#include <memory>

namespace wiresum::process {

class Home {
 public:
  /// Notes the calling process.
  Home();
  /// True in that process, and false in a forked child.
  [[nodiscard]] bool is_here() const noexcept;

 private:
  unsigned generation_;
};

/// Keeps a reference to an object that nobody will free, so that leak checkers do not report the object.
void leave_alone(const void* object) noexcept;

/// Deletes an object in the process that made the deleter, and leaves it alone in forked children.
struct DeleteAtHome {
  template <class T>
  void operator()(T* object) const {
    if (home.is_here()) {
      delete object;
    } else {
      leave_alone(object);
    }
  }
  Home home;
};

/// Owns an object that a forked child must leave alone.
template <class T>
using Owned = std::unique_ptr<T, DeleteAtHome>;

/// A member whose destructor is not called in a forked child. Its class needs no memory of its own.
template <class T>
class AtHome {
 public:
  AtHome() : value_() {}
  ~AtHome() {
    if (home_.is_here()) value_.~T();
  }
  AtHome(const AtHome&) = delete;
  AtHome& operator=(const AtHome&) = delete;

  [[nodiscard]] T* operator->() noexcept { return &value_; }
  [[nodiscard]] bool is_here() const noexcept { return home_.is_here(); }

 private:
  Home home_;
  union {
    T value_;
  };
};

}  // namespace wiresum::process
