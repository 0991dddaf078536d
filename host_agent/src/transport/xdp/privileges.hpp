// What to tell somebody whom the kernel has refused.
#pragma once

namespace wiresum::transport::xdp {

inline constexpr const char* kPrivileges =
    "AF_XDP needs root, or the capabilities CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF (AmbientCapabilities= of systemd, "
    "or "
    "setpriv --inh-caps=+net_raw,+net_admin,+bpf --ambient-caps=+net_raw,+net_admin,+bpf)";

}  // namespace wiresum::transport::xdp
