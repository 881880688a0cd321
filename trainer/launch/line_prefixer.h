// LinePrefixer: puts a mark before each line of a stream that arrives in pieces, so that lines of
// several ranks can share one terminal.
//
// One thread. A line comes out only when it is whole, or longer than 64 KiB (then in pieces, each
// marked), or at the end.
#pragma once

#include <string>
#include <string_view>

namespace tidepool::trainer {

class LinePrefixer {
 public:
  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  // The whole lines that `bytes` completes, marked; each ends with a newline.
  std::string Feed(std::string_view bytes);
  // The unfinished last line, marked and ended; empty when there is none.
  std::string Flush();

 private:
  std::string prefix_, open_;
};

}  // namespace tidepool::trainer
