#include "device.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>
#include <system_error>
#include <vector>

#include "result.hpp"

namespace wiresum::nccl {
namespace {

/// What NCCL's own transport takes an interface for that does not say.
constexpr int kMbitPerSecondByDefault = 10'000;
/// NCCL's cost model divides a collective into messages of this size at most.
constexpr std::size_t kCollectiveBytesMax = std::size_t{512} << 20;
/// The most that NCCL accepts.
constexpr std::size_t kMessageBytesMax = std::size_t{1} << 40;
constexpr int kConnectionsMax = 65'536;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<Device> interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    throw Refused(ncclSystemError, std::string("cannot list this host's network interfaces: ") + std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first, &freeifaddrs);
  std::vector<Device> found;
  for (const ifaddrs* one = all.get(); one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET || (one->ifa_flags & IFF_UP) == 0) continue;
    Device made{.name = one->ifa_name, .pci_path = {}};
    std::memcpy(&made.address, one->ifa_addr, sizeof made.address);
    found.push_back(std::move(made));
  }
  return found;
}

bool is_of_containers_or_loopback(const Device& one) { return one.name.starts_with("docker") || one.name == "lo"; }

Device choose() {
  const std::vector<Device> all = interfaces();
  const std::string address = variable("WIRESUM_ADDRESS");
  const std::string names = variable("NCCL_SOCKET_IFNAME");
  auto chosen = all.begin();
  std::string wish = "there is no network interface with an IPv4 address";
  if (!address.empty()) {
    wish = "no network interface has the address " + address + ", which WIRESUM_ADDRESS names";
    chosen = std::ranges::find_if(all, [wanted = inet_addr(address.c_str())](const Device& one) {
      return one.address.sin_addr.s_addr == wanted;
    });
  } else if (!names.empty()) {
    wish = "no network interface with an IPv4 address has a name that NCCL_SOCKET_IFNAME='" + names + "' allows";
    chosen = std::ranges::find_if(all, [&names](const Device& one) { return is_allowed(one.name, names); });
  } else if (const auto other = std::ranges::find_if_not(all, is_of_containers_or_loopback); other != all.end()) {
    chosen = other;
  }
  if (chosen == all.end()) throw Refused(ncclInvalidUsage, wish);
  Device found = *chosen;
  const std::filesystem::path folder = "/sys/class/net/" + found.name;
  std::error_code none;
  if (const auto real = std::filesystem::canonical(folder / "device", none); !none) found.pci_path = real.string();
  std::ifstream(folder / "speed") >> found.mbit_per_s;
  if (found.mbit_per_s <= 0) found.mbit_per_s = kMbitPerSecondByDefault;
  inform("network interface " + found.name + ", " + inet_ntoa(found.address.sin_addr));
  return found;
}

}  // namespace

bool is_allowed(const std::string& name, std::string wanted) {
  const auto drop = [&wanted](char sign) {
    const bool has = wanted.starts_with(sign);
    if (has) wanted.erase(0, 1);
    return has;
  };
  const bool others = drop('^');
  const bool whole = drop('=');
  bool named = false;
  for (std::size_t begin = 0; begin <= wanted.size();) {
    const std::size_t end = std::min(wanted.find(',', begin), wanted.size());
    const std::string_view item = std::string_view(wanted).substr(begin, end - begin);
    named = named || (!item.empty() && (whole ? name == item : name.starts_with(item)));
    begin = end + 1;
  }
  return named != others;
}

const Device& device() {
  // Never destroyed: NCCL keeps what the properties point to.
  static const Device* const chosen = new Device(choose());
  return *chosen;
}

ncclResult_t devices(int* count) {
  return guarded([&] { *count = 1; });
}

ncclResult_t get_properties(int index, ncclNetProperties_v11_t* properties) {
  return guarded([&] {
    require(index == 0, "there is no such network device: Wiresum has one, 0");
    const Device& it = device();
    *properties = {};
    properties->name = const_cast<char*>(it.name.c_str());
    properties->pciPath = it.pci_path.empty() ? nullptr : const_cast<char*>(it.pci_path.c_str());
    properties->ptrSupport = NCCL_PTR_HOST;
    properties->speed = it.mbit_per_s;
    properties->maxComms = kConnectionsMax;
    properties->maxRecvs = 1;
    properties->netDeviceType = NCCL_NET_DEVICE_HOST;
    properties->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
    properties->vProps.ndevs = 1;
    properties->maxP2pBytes = kMessageBytesMax;
    properties->maxCollBytes = kCollectiveBytesMax;
    properties->maxMultiRequestSize = 1;
  });
}

ncclResult_t register_memory(void* /*comm*/, void* /*data*/, size_t /*bytes*/, int type, void** handle) {
  return guarded([&] {
    *handle = nullptr;
    require(type == NCCL_PTR_HOST,
            "Wiresum has no access to a GPU's memory: only memory of the host can be registered");
  });
}

ncclResult_t deregister_memory(void* /*comm*/, void* /*handle*/) { return ncclSuccess; }

}  // namespace wiresum::nccl
