#include "transport/plugin.hpp"

#include <dlfcn.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace wiresum::transport {
namespace {

struct PluginFile {
  const char* name;
  const char* file;
  const char* build_packages;  // names in Debian
  const char* run_packages;
};

const PluginFile& kind_of(PluginKind kind) {
  static constexpr PluginFile kXdp{.name = "AF_XDP",
                                   .file = "wiresum_xdp.so",
                                   .build_packages = "libxdp-dev libbpf-dev clang",
                                   .run_packages = "libxdp1 libbpf1"};
  static constexpr PluginFile kDpdk{
      .name = "DPDK", .file = "wiresum_dpdk.so", .build_packages = "libdpdk-dev", .run_packages = "dpdk"};
  return kind == PluginKind::kXdp ? kXdp : kDpdk;
}

/// The folder of the executable or shared object that this function was linked into.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) {
    throw std::runtime_error("cannot find out where wiresum is installed, to look for its transports there");
  }
  return std::filesystem::absolute(info.dli_fname).parent_path();
}

const PluginEntry& load(const PluginFile& kind, const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    throw std::runtime_error(
        "this installation of wiresum has no " + std::string(kind.name) + " transport: " + path.string() +
        " is not there. It is built if its libraries are found; on Debian or " + "Ubuntu: apt-get install " +
        kind.build_packages + ", then build or install wiresum again");
  }
  // The plug-in is never unloaded: objects of its classes may live as long as the process, and its libraries have
  // threads.
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    throw std::runtime_error("cannot load the " + std::string(kind.name) + " transport: " + dlerror() +
                             ". If one of its libraries is missing, on Debian or Ubuntu: apt-get install " +
                             kind.run_packages);
  }
  const auto* const entry = static_cast<const PluginEntry*>(dlsym(handle, kPluginSymbol));
  if (entry == nullptr) {
    throw std::runtime_error(path.string() + " is no transport of wiresum: " + dlerror());
  }
  if (std::strcmp(entry->abi, kTransportAbi) != 0) {
    throw std::runtime_error(path.string() + " belongs to another version of wiresum (its interface is " + entry->abi +
                             ", this one's " + kTransportAbi + "): build or install both together");
  }
  return *entry;
}

}  // namespace

std::vector<std::unique_ptr<Transport>> make_device_transports(PluginKind kind, const DeviceConfig& config,
                                                               const std::string& path) {
  const PluginFile& wanted = kind_of(kind);
  const std::filesystem::path file = path.empty() ? own_folder() / wanted.file : std::filesystem::path(path);
  const PluginEntry& entry = load(wanted, file);
  return entry.make(config);
}

}  // namespace wiresum::transport
