// Errors of the kernel, with advice for users whom it has refused.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>

namespace wiresum::transport::xdp {

inline constexpr const char* kPrivileges =
    "AF_XDP needs root, or the capabilities CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF (AmbientCapabilities= of systemd, "
    "or setpriv --inh-caps=+net_raw,+net_admin,+bpf --ambient-caps=+net_raw,+net_admin,+bpf)";

[[noreturn]] inline void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), error == EPERM ? what + ": " + kPrivileges : what);
}

}  // namespace wiresum::transport::xdp
