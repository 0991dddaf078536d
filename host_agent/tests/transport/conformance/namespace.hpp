// Network namespaces and veth pairs that exist as long as this process has them open: nothing to clean up, whatever
// becomes of the test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace wiresum::transport::testing {

/// Why there can be none here; empty if there can.
[[nodiscard]] std::string no_namespaces();

/// A network namespace without a name.
class Namespace {
 public:
  /// Throws std::system_error.
  Namespace();
  ~Namespace();
  Namespace(const Namespace&) = delete;
  Namespace& operator=(const Namespace&) = delete;

  /// Calls `what` on a thread inside: what it opens belongs to this namespace for good. Throws what it throws.
  void enter(const std::function<void()>& what) const;

  /// Runs a shell command inside. Throws std::runtime_error if it fails.
  void command(const std::string& line) const;

  /// A path that setns() and `ip` take, in this process and its children.
  [[nodiscard]] std::string path() const;

 private:
  int descriptor_ = -1;
};

/// Two namespaces joined by a veth pair, `wire0` in each, with the addresses below.
class VethPair {
 public:
  /// Queues: as many as each end receives and sends by.
  explicit VethPair(std::size_t mtu = 1500, std::size_t queues = 1);

  static constexpr std::uint32_t kLeftAddress = 0x0A4D0001;   // 10.77.0.1/24
  static constexpr std::uint32_t kRightAddress = 0x0A4D0002;  // 10.77.0.2/24
  static constexpr const char* kInterface = "wire0";

  Namespace left;
  Namespace right;
};

}  // namespace wiresum::transport::testing
