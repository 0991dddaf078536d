# Writes the bytes of the file INPUT as the C++ source OUTPUT, which defines the span `program_object`.
file(READ ${INPUT} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUTPUT} "#include \"transport/xdp/program.hpp\"
namespace wiresum::transport::xdp {
namespace {
alignas(8) constexpr unsigned char kBytes[] = {${bytes}};
}  // namespace
std::span<const std::byte> program_object() noexcept { return std::as_bytes(std::span(kBytes)); }
}  // namespace wiresum::transport::xdp
")
