#include "base/check.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "base/log.h"

namespace tidepool {

void CheckFailed(const char* file, int line, const char* condition, const char* message) {
  std::array<char, 2048> text{};
  const int length = std::snprintf(text.data(), text.size(), "%s:%d: check failed: %s: %s\n", file,
                                   line, condition, message);
  FlushLog();
  SayOnStderr({text.data(), std::min(text.size() - 1, static_cast<size_t>(length))});
  std::abort();
}

}  // namespace tidepool
