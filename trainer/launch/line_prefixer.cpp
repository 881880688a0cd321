#include "trainer/launch/line_prefixer.h"

namespace tidepool::trainer {
namespace {
constexpr size_t kLineMax = 64 * 1024;
}

std::string LinePrefixer::Feed(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, newline);
    open_.append(piece);
    const bool whole = newline != std::string_view::npos;
    bytes.remove_prefix(piece.size() + (whole ? 1 : 0));
    if (!whole && open_.size() < kLineMax) break;

    out += prefix_ + open_ + "\n";
    open_.clear();
  }
  return out;
}

std::string LinePrefixer::Flush() {
  return open_.empty() ? std::string() : Feed("\n");
}

}  // namespace tidepool::trainer
