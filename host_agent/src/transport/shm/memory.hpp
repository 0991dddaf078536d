// Memory that processes of one machine share: anonymous, of a fixed size, gone with the last of them.
//
// It is a memfd, so it has no name that others could find, or that would be left behind: who is to have it is given the
// descriptor. It is sealed, so that nobody who has it can cut it short, which would end the others with SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>

#include "process/descriptor.hpp"

namespace wiresum::transport::shm {

class Memory {
 public:
  Memory() = default;
  /// New memory, all zeros. With `others_read_only`, nobody but this object can write to it. Throws std::system_error.
  Memory(std::size_t bytes, bool others_read_only);
  /// Memory that another process has made, from its descriptor: at least `bytes` bytes. Throws std::system_error, or
  /// std::invalid_argument if the memory is too small, or could be cut short.
  Memory(process::Descriptor descriptor, std::size_t bytes, bool read_only);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

 private:
  void map(int protection);

  process::Descriptor descriptor_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace wiresum::transport::shm
