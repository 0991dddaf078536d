// The XDP program in the kernel: loading it, attaching it, and telling it about sockets. Setup only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "process/descriptor.hpp"
#include "transport/xdp/device.hpp"

struct bpf_object;

namespace wiresum::transport::xdp {

/// An XDP program, attached as long as this object lives. The kernel ties it to a descriptor of this process, so it
/// goes with the process too, however the process ends.
class Filter {
 public:
  /// Loads the program for packets to `address` and `ports` of at most `ipv4_bytes_max` bytes and attaches it: in the
  /// driver if that can do it, else in front of the kernel's own stack. Throws std::system_error or std::runtime_error
  /// that says what is missing: privileges, or an interface that has no such program already.
  Filter(const InterfaceInfo& device, std::uint32_t address, std::span<const std::uint16_t> ports,
         std::size_t ipv4_bytes_max);

  /// True if the program is in the driver.
  [[nodiscard]] bool native() const noexcept { return native_; }
  /// The map of sockets by queue.
  [[nodiscard]] int sockets_map() const noexcept { return map_; }

 private:
  struct Close {
    void operator()(bpf_object* object) const noexcept;
  };

  bool attach(const char* program, std::uint32_t mode, int index);

  std::unique_ptr<bpf_object, Close> object_;
  process::Descriptor link_;
  int map_ = -1;
  bool native_ = false;
};

}  // namespace wiresum::transport::xdp
