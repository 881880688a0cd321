#include "base/text/json_quote.h"

#include <array>
#include <cstdint>
#include <cstdio>

namespace tidepool {
namespace {

// Length of the UTF-8 sequence that starts at text[at]; 0 if it is malformed.
size_t Utf8Length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };

  const uint8_t first = byte(at);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return tail(at + 1) ? 2 : 0;
  if (first >= 0xE0 && first < 0xF0) {
    const bool overlong = first == 0xE0 && byte(at + 1) < 0xA0;
    const bool surrogate = first == 0xED && byte(at + 1) >= 0xA0;
    return tail(at + 1) && tail(at + 2) && !overlong && !surrogate ? 3 : 0;
  }

  if (first >= 0xF0 && first < 0xF5) {
    const bool overlong = first == 0xF0 && byte(at + 1) < 0x90;
    const bool beyond = first == 0xF4 && byte(at + 1) >= 0x90;
    return tail(at + 1) && tail(at + 2) && tail(at + 3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

void AppendEscaped(std::string* out, char c) {
  switch (c) {
    case '"': *out += "\\\""; return;
    case '\\': *out += "\\\\"; return;
    case '\n': *out += "\\n"; return;
    case '\t': *out += "\\t"; return;
    case '\r': *out += "\\r"; return;
    default: break;
  }

  std::array<char, 8> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "\\u%04x",
                static_cast<unsigned>(static_cast<uint8_t>(c)));
  *out += buffer.data();
}

}  // namespace

std::string QuoteJson(std::string_view value) {
  std::string out = "\"";
  for (size_t at = 0; at < value.size();) {
    const size_t length = Utf8Length(value, at);
    const char c = value[at];

    if (length == 0) {
      out += "\xEF\xBF\xBD";
      ++at;
    } else if (length == 1 &&
               (static_cast<uint8_t>(c) < 0x20 || c == '"' || c == '\\' || c == 0x7F)) {
      AppendEscaped(&out, c);
      ++at;
    } else {
      out.append(value, at, length);
      at += length;
    }
  }

  return out + "\"";
}

}  // namespace tidepool
