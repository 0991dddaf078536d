// Network namespaces and veth pairs that exist as long as this process has them open, so there is nothing to clean up,
// however the test ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace wiresum::transport::testing {

/// Why no namespaces can be made here; empty if they can.
[[nodiscard]] std::string no_namespaces();

/// An unnamed network namespace.
class Namespace {
 public:
  /// Throws std::system_error on failure.
  Namespace();
  ~Namespace();
  Namespace(const Namespace&) = delete;
  Namespace& operator=(const Namespace&) = delete;

  /// Calls `what` on a thread in the namespace: sockets that it opens stay there. Passes its exceptions on.
  void enter(const std::function<void()>& what) const;

  /// Runs a shell command inside. Throws std::runtime_error if it fails.
  void command(const std::string& line) const;

  /// A path for setns() and `ip`, in this process and its children.
  [[nodiscard]] std::string path() const;

 private:
  int descriptor_ = -1;
};

/// Two namespaces joined by a veth pair, `wire0` in each, with the addresses below.
class VethPair {
 public:
  /// `queues` is the number of receive and of send queues of each end.
  explicit VethPair(std::size_t mtu = 1500, std::size_t queues = 1);

  static constexpr std::uint32_t kLeftAddress = 0x0A4D0001;   // 10.77.0.1/24
  static constexpr std::uint32_t kRightAddress = 0x0A4D0002;  // 10.77.0.2/24
  static constexpr const char* kInterface = "wire0";

  Namespace left;
  Namespace right;
};

}  // namespace wiresum::transport::testing
