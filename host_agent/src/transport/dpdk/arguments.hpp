// The EAL's arguments, as a person gives them in one setting: cut into words, devices apart, sane defaults added.
//
// Pure: calls nothing of DPDK.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace wiresum::transport::dpdk {

struct Arguments {
  std::vector<std::string> eal;      // all words but devices
  std::vector<std::string> devices;  // devices of --vdev and --allow, with their arguments; empty: all that EAL finds
  bool huge = true;                  // false: --no-huge

  /// True if one of `options` is there, as "--option", "--option=value", "-o" or "-ovalue".
  [[nodiscard]] bool has(const std::vector<std::string_view>& options) const;
};

/// Cuts `text` as a shell does: blanks between words, ' " and \ quote. Devices go apart (--vdev, -a, --allow, joined
/// with = or not).
/// Throws std::invalid_argument if a quotation does not end, an option lacks its device, or options exclude each other.
[[nodiscard]] Arguments parse_arguments(std::string_view text);

/// The arguments of rte_eal_init(), without the program's name: the given ones, and defaults that suit a process which
/// is not DPDK's own. `memory_bytes` is the need of the ports; `core` is a core that we may run on.
[[nodiscard]] std::vector<std::string> with_defaults(const Arguments& given, std::size_t memory_bytes, int core,
                                                     int process);

/// The device's name within its bus: "net_memif0" of "net_memif0,role=client", "0000:01:00.0" of "pci:0000:01:00.0".
[[nodiscard]] std::string device_name(std::string_view device);

/// The value of `key` in a device's arguments, as a number; `otherwise` without it.
[[nodiscard]] std::size_t device_number(std::string_view device, std::string_view key, std::size_t otherwise);

}  // namespace wiresum::transport::dpdk
