#include "session/line.hpp"

#include <algorithm>
#include <charconv>

namespace wiresum::session {
namespace {

void append_escaped(std::string& line, std::string_view value) {
  for (const char c : value) {
    switch (c) {
      case '\\':
        line += "\\\\";
        break;
      case '\t':
        line += "\\t";
        break;
      case '\n':
        line += "\\n";
        break;
      default:
        line += c;
    }
  }
}

std::string unescaped(std::string_view value) {
  std::string text;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value[i] != '\\') {
      text += value[i];
      continue;
    }
    const char escaped = ++i < value.size() ? value[i] : '\0';
    if (escaped != '\\' && escaped != 't' && escaped != 'n') throw LineError("a backslash stands before nothing");
    text += escaped == 't' ? '\t' : escaped == 'n' ? '\n' : '\\';
  }
  return text;
}

bool is_name(std::string_view text) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty()) return false;
  if (is_lower(text[0])) {
    return std::all_of(text.begin(), text.end(),
                       [&](char c) { return is_lower(c) || is_digit(c) || c == '_' || c == '.' || c == '-'; });
  }
  return is_upper(text[0]) &&
         std::all_of(text.begin(), text.end(), [&](char c) { return is_upper(c) || is_digit(c) || c == '_'; });
}

/// Takes the part before the next tab off `text`.
std::string_view next_part(std::string_view& text) {
  const std::size_t end = std::min(text.find('\t'), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

}  // namespace

const std::string& Line::text(std::string_view name) const {
  const auto found = fields.find(name);
  if (found == fields.end()) throw LineError("'" + word + "' came without its " + std::string(name));
  return found->second;
}

std::uint64_t Line::number(std::string_view name, std::uint64_t least, std::uint64_t most) const {
  const std::string& digits = text(name);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < least || value > most) {
    throw LineError("'" + word + "' came with " + std::string(name) + "=" + digits + ", where a number from " +
                    std::to_string(least) + " to " + std::to_string(most) + " must be");
  }
  return value;
}

std::string encode(const Line& line) {
  std::string text = line.word;
  for (const auto& [name, value] : line.fields) {
    text += '\t';
    text += name;
    text += '=';
    append_escaped(text, value);
  }
  if (text.size() >= kLineBytesMax) throw LineError("'" + line.word + "' is too long to be sent");
  text += '\n';
  return text;
}

Line decode(std::string_view text) {
  if (text.size() >= kLineBytesMax) throw LineError("a line is too long");
  if (text.ends_with('\t')) throw LineError("a line ends in an empty field");
  Line line{.word = std::string(next_part(text)), .fields = {}};
  if (!is_name(line.word)) throw LineError("a line is none of ours");
  while (!text.empty()) {
    const std::string_view part = next_part(text);
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos || !is_name(part.substr(0, equals)) || line.fields.size() >= kFieldsMax) {
      throw LineError("a field of '" + line.word + "' is none of ours");
    }
    const bool is_new = line.fields.emplace(part.substr(0, equals), unescaped(part.substr(equals + 1))).second;
    if (!is_new) throw LineError("a field of '" + line.word + "' came twice");
  }
  return line;
}

}  // namespace wiresum::session
