#include "transport/xdp/filter.hpp"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#include "transport/xdp/filter_config.h"
#include "transport/xdp/privileges.hpp"
#include "transport/xdp/program.hpp"

namespace wiresum::transport::xdp {
namespace {

/// Every driver takes a program for frames in one buffer at this MTU.
constexpr std::size_t kPlainMtuMax = 1500;

wiresum_filter_config config_of(std::uint32_t address, std::span<const std::uint16_t> ports,
                                std::size_t ipv4_bytes_max) {
  wiresum_filter_config config{};
  config.address = htonl(address);
  for (std::size_t i = 0; i < WIRESUM_FILTER_PORTS; ++i) {
    config.ports[i] = htons(i < ports.size() ? ports[i] : ports.front());
  }
  config.ipv4_bytes_max = static_cast<__u32>(ipv4_bytes_max);
  return config;
}

bpf_map* map_named(bpf_object* object, const char* name) {
  bpf_map* const map = bpf_object__find_map_by_name(object, name);
  if (map == nullptr) {
    throw std::logic_error(std::string("the XDP program has no map ") + name);
  }
  return map;
}

}  // namespace

void Filter::Close::operator()(bpf_object* object) const noexcept { bpf_object__close(object); }

Filter::Filter(const InterfaceInfo& device, std::uint32_t address, std::span<const std::uint16_t> ports,
               std::size_t ipv4_bytes_max) {
  // libbpf's messages are about first tries of several; real failures come back as errors.
  libbpf_set_print(nullptr);
  const std::span<const std::byte> bytes = program_object();
  object_.reset(bpf_object__open_mem(bytes.data(), bytes.size(), nullptr));
  if (object_ == nullptr) {
    fail(errno, "cannot read the XDP program");
  }
  const wiresum_filter_config config = config_of(address, ports, ipv4_bytes_max);
  bpf_map* const sockets = map_named(object_.get(), "sockets");
  if (const int error = bpf_map__set_initial_value(map_named(object_.get(), ".rodata"), &config, sizeof config);
      error != 0) {
    fail(-error, "cannot configure the XDP program");
  }
  if (const int error = bpf_map__set_max_entries(sockets, device.queues); error != 0) {
    fail(-error, "cannot configure the XDP program");
  }
  // Kernels before 5.18 do not know programs for frames in several buffers.
  bpf_program* const jumbo = bpf_object__find_program_by_name(object_.get(), "wiresum_filter_jumbo");
  const bool wants_jumbo = device.mtu > kPlainMtuMax;
  bpf_program__set_autoload(jumbo, wants_jumbo);
  if (const int error = bpf_object__load(object_.get()); error != 0) {
    // EACCES, unlike EPERM, is the verifier's: some kernels want CAP_PERFMON, too.
    fail(-error, error == -EACCES ? "the kernel's verifier does not take the XDP program; root's it may"
                                  : "the kernel does not take the XDP program");
  }
  map_ = bpf_map__fd(sockets);

  native_ = attach("wiresum_filter", XDP_FLAGS_DRV_MODE, device.index) ||
            (wants_jumbo && attach("wiresum_filter_jumbo", XDP_FLAGS_DRV_MODE, device.index));
  if (native_ || attach("wiresum_filter", XDP_FLAGS_SKB_MODE, device.index)) {
    return;
  }
  const int error = errno;
  if (error == EBUSY || error == EEXIST) {
    throw std::system_error(error, std::generic_category(),
                            "the network interface " + device.name +
                                " has an XDP program already (bpftool net shows it). A transport has its interface "
                                "for itself: use one process for each interface, or UDP");
  }
  fail(error, "cannot attach the XDP program to " + device.name);
}

bool Filter::attach(const char* program, std::uint32_t mode, int index) {
  const int descriptor = bpf_program__fd(bpf_object__find_program_by_name(object_.get(), program));
  bpf_link_create_opts options{};
  options.sz = sizeof options;
  options.flags = mode;
  const int link = bpf_link_create(descriptor, index, BPF_XDP, &options);
  if (link < 0) {
    return false;
  }
  link_ = process::Descriptor(link);
  return true;
}

}  // namespace wiresum::transport::xdp
