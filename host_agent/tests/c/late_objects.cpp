// A C++ program whose objects leave a job when they are destroyed, for test_libwiresum.py: a static object's session,
// and one of a thread_local object. Both are made before the library is first called.
#include <wiresum/wiresum.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace {

void expect(bool is_so, const char* what) {
  if (is_so) return;
  std::fprintf(stderr, "not so: %s (last error: %s)\n", what, wiresum_error_text());
  std::_Exit(EXIT_FAILURE);
}
#define EXPECT(condition) expect(condition, #condition)

class Member {
 public:
  explicit Member(const char* job) : job_(job) {}
  Member(const Member&) = delete;
  ~Member() {
    sum();
    EXPECT(wiresum_leave(&session_) == WIRESUM_OK);
    EXPECT(wiresum_leave(&session_) == WIRESUM_ERROR_ARGUMENT);
    EXPECT(std::strstr(wiresum_error_text(), "the session is NULL") != nullptr);
    std::printf("left %s\n", job_);
    std::fflush(stdout);
  }
  void join() {
    EXPECT(wiresum_leave(&session_) == WIRESUM_ERROR_ARGUMENT);
    EXPECT(wiresum_join(job_, 0, 1, nullptr, 0, 60, &session_) == WIRESUM_OK);
  }

 private:
  void sum() {
    std::int32_t value = 3;
    EXPECT(wiresum_all_reduce(session_, &value, &value, 1, WIRESUM_INT32, WIRESUM_SUM, nullptr) == WIRESUM_OK);
    EXPECT(value == 3);
  }

  const char* job_;
  wiresum_session* session_ = nullptr;
};

Member of_process("of-process");
thread_local Member of_thread("of-thread");

}  // namespace

int main() {
  of_process.join();
  std::thread([] { of_thread.join(); }).join();
}
