// What goes wrong in the library: a code of wiresum.h, and a text.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace wiresum::capi {

class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& text) : std::runtime_error(text), code_(code) {}
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  int code_;
};

/// Of the exception's name in wiresum.agent.errors.
[[nodiscard]] int code_of_exception(std::string_view name) noexcept;
/// Of a code in wiresum.h.
[[nodiscard]] const char* name_of_code(int code) noexcept;

}  // namespace wiresum::capi
