/* For LD_PRELOAD: the wall clock of a process is off by as many seconds as the file WALL_CLOCK_SHIFT says, a 64-bit
 * integer, and jumps when the file changes. The monotonic clock is the system's. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t* shift_s;

__attribute__((constructor)) static void begin(void) {
  const char* path = getenv("WALL_CLOCK_SHIFT");
  const int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  void* mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *shift_s, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    abort();
  }
  close(file);
  shift_s = mapped;
}

int clock_gettime(clockid_t clock, struct timespec* at) {
  const int status = (int)syscall(SYS_clock_gettime, clock, at);
  if (status == 0 && shift_s != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    at->tv_sec += *shift_s;
  }
  return status;
}

int gettimeofday(struct timeval* restrict at, void* restrict zone) {
  (void)zone;
  struct timespec now;
  const int status = clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return status;
}

time_t time(time_t* at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at != NULL) {
    *at = now.tv_sec;
  }
  return now.tv_sec;
}
