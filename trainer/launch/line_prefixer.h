// LinePrefixer: prefixes each line of a stream that arrives in pieces, so that several ranks can
// share one terminal.
//
// One thread. A line is output when it is complete, or longer than 64 KiB (then in pieces, each
// prefixed), or at the end.
#pragma once

#include <string>
#include <string_view>

namespace tidepool::trainer {

class LinePrefixer {
 public:
  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  // The lines completed by `bytes`, prefixed; each ends with a newline.
  std::string Feed(std::string_view bytes);
  // The unfinished last line, prefixed and terminated; empty if there is none.
  std::string Flush();

 private:
  std::string prefix_, open_;
};

}  // namespace tidepool::trainer
