#include "base/text/error_text.h"

#include <algorithm>

#include "base/planted.h"

namespace tidepool {
namespace {

// Bytes inside a UTF-8 character take no column of their own.
size_t Columns(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  }));
}

// Appends one line. Its own indentation and inner spaces stay.
void AppendFolded(std::string_view line, size_t columns, std::string* out) {
  size_t used = 0;
  bool is_first = true;
  for (size_t at = 0; at < line.size();) {
    const size_t word = std::min(line.find_first_not_of(' ', at), line.size());
    const size_t end = std::min(line.find(' ', word), line.size());
    const std::string_view piece = line.substr(at, end - at);

    if (is_first || used + Columns(piece) <= columns) {
      out->append(piece);
      used += Columns(piece);
    } else {
      out->append("\n").append(kFoldIndent, ' ').append(line.substr(word, end - word));
      used = kFoldIndent + Columns(line.substr(word, end - word));
    }

    is_first = false;
    at = end;
  }
}

}  // namespace

std::string FoldText(std::string_view text, size_t columns) {
  std::string folded;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (at > 0) folded += '\n';
    AppendFolded(text.substr(at, end - at), columns, &folded);
    at = end + 1;
  }
  return folded;
}

std::string ErrorText(const Status& status) {
  if (TP_PLANTED("base.errors_not_folded")) return status.Format();
  return FoldText(status.Format());
}

}  // namespace tidepool
