// Which process made an object.
//
// A forked child has copies of all of its parent's objects, but of the parent's threads only the one that forked. So an
// object with threads, or on which threads wait, cannot be destroyed there: a join, or pthread_cond_destroy(), would
// wait for threads that do not exist in the child, and a lock may be held by one of them. And the parent still uses
// what they have in common beside memory (sockets' descriptions, rings, pools). The child therefore leaves such an
// object alone: it is not destroyed, and its memory is freed when the child ends or calls exec(). That is a deliberate
// leak, once for each fork.
#pragma once

#include <memory>

namespace wiresum::process {

class Home {
 public:
  /// The calling process.
  Home();
  /// Is this still that process, and not a forked child?
  [[nodiscard]] bool is_here() const noexcept;

 private:
  unsigned generation_;
};

/// Keeps a reference to an object that nobody will free, so that leak checkers do not report it.
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
