// The codes of wiresum.h.
#pragma once

#include <string_view>

namespace wiresum::c {

/// Of a session::Failure's kind.
[[nodiscard]] int code_of_kind(std::string_view kind) noexcept;
/// Of a code in wiresum.h.
[[nodiscard]] const char* name_of_code(int code) noexcept;

}  // namespace wiresum::c
