// The XDP program, filter.bpf.c, as the build made it: the bytes of an ELF object.
#pragma once

#include <cstddef>
#include <span>

namespace wiresum::transport::xdp {

[[nodiscard]] std::span<const std::byte> program_object() noexcept;

}  // namespace wiresum::transport::xdp
