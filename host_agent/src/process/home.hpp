// Which process made an object.
//
// A forked child has copies of all of its parent's objects, but of the parent's threads only the one that forked. So an
// object that has threads, or that others may wait for, cannot be destroyed there: a join would wait for a thread that
// is not here, pthread_cond_destroy() for a waiter that is not here, and a lock may be held by nobody that is here.
// What it shares with the parent beside memory (sockets' descriptions, rings, pools) is the parent's, too, and in use.
// The child therefore leaves such an object alone: it is not destroyed, and its memory goes when the child ends or
// calls exec(). That is a leak on purpose, once for each fork.
#pragma once

#include <memory>

namespace wiresum::process {

class Home {
 public:
  /// The calling process.
  Home();
  /// Is this still the process, and no child that was forked from it?
  [[nodiscard]] bool is_here() const noexcept;

 private:
  unsigned generation_;
};

/// Remembers an object that nobody will free, so that tools which look for leaks find it referred to.
void leave_alone(const void* object) noexcept;

/// Deletes in the process that made the deleter, and leaves alone in its forked children.
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

/// Owns what a forked child must leave alone.
template <class T>
using Owned = std::unique_ptr<T, DeleteAtHome>;

/// The same, as a member: its destructor is not called in a forked child. For what needs no memory of its own.
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
