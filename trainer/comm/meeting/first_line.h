// FirstLine: the message of an exception of c10 or Gloo, without the back trace below it.
//
// Any thread.
#pragma once

#include <string>

namespace tidepool::trainer {

inline std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace tidepool::trainer
