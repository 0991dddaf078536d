#include "transport/shm/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#ifndef F_SEAL_FUTURE_WRITE  // Linux 5.1
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace wiresum::transport::shm {
namespace {

constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

Memory::Memory(std::size_t bytes, bool others_read_only)
    : descriptor_(memfd_create("wiresum", MFD_CLOEXEC | MFD_ALLOW_SEALING)), bytes_(bytes) {
  if (!descriptor_.valid()) fail("cannot make memory to share");
  if (ftruncate(descriptor_.get(), static_cast<off_t>(bytes)) != 0) fail("cannot size memory to share");
  map(PROT_READ | PROT_WRITE);
  const int seals = kFixedSize | F_SEAL_SEAL | (others_read_only ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(descriptor_.get(), F_ADD_SEALS, seals) != 0) {
    const int error = errno;
    munmap(data_, bytes_);
    throw std::system_error(error, std::generic_category(), "cannot seal memory to share");
  }
}

Memory::Memory(process::Descriptor descriptor, std::size_t bytes, bool read_only)
    : descriptor_(std::move(descriptor)), bytes_(bytes) {
  struct stat status{};
  if (fstat(descriptor_.get(), &status) != 0) fail("cannot look at shared memory");
  const int seals = fcntl(descriptor_.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kFixedSize) != kFixedSize) {
    throw std::invalid_argument("what was shared is no memory of a fixed size");
  }
  if (status.st_size < 0 || static_cast<std::size_t>(status.st_size) < bytes) {
    throw std::invalid_argument("the shared memory is too small");
  }
  map(read_only ? PROT_READ : PROT_READ | PROT_WRITE);
}

void Memory::map(int protection) {
  void* const memory = mmap(nullptr, bytes_, protection, MAP_SHARED, descriptor_.get(), 0);
  if (memory == MAP_FAILED) fail("cannot map shared memory");
  data_ = static_cast<std::byte*>(memory);
  // A forked child would use the parent's rings.
  static_cast<void>(madvise(memory, bytes_, MADV_DONTFORK));
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Memory::Memory(Memory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace wiresum::transport::shm
