// The one device of both tables: the network interface that this process uses.
#pragma once

#include <netinet/in.h>

#include <string>

#include "nccl_v11.h"

namespace wiresum::nccl {

struct Device {
  std::string name;  // "eth0"
  sockaddr_in address{};
  std::string pci_path;  // empty: it is no PCI device
  int mbit_per_s = 0;
};

/// Chosen when it is first asked for, and the same from then on: the interface with WIRESUM_ADDRESS, or the first that
/// NCCL_SOCKET_IFNAME allows, or the first that is not loopback nor of containers on this host, or the first there is.
/// Throws Refused if there is none.
const Device& device();

/// Does NCCL_SOCKET_IFNAME allow an interface of this name? "eth,ib0": names that begin so; "=eth0": just these;
/// "^docker" and "^=eth1": all others.
bool is_allowed(const std::string& name, std::string wanted);

/// The functions that both tables have.
ncclResult_t devices(int* count);
ncclResult_t get_properties(int index, ncclNetProperties_v11_t* properties);

/// Only memory of the host: NCCL's kernels copy to it, and from it, themselves.
ncclResult_t register_memory(void* comm, void* data, size_t bytes, int type, void** handle);
ncclResult_t deregister_memory(void* comm, void* handle);

}  // namespace wiresum::nccl
