// DescriptorWatch: which file descriptors are open, so that a fuzz target can tell that a run has
// left one behind or closed a foreign one.
//
// One thread; descriptors below kWatched.
#pragma once

#include <fcntl.h>

#include <bitset>

#include "base/check.h"

namespace tidepool::fuzz {

class DescriptorWatch {
 public:
  DescriptorWatch() : before_(Open()) {}
  void CheckSame() const {
    TP_CHECK(Open() == before_, "a run leaves the descriptors as they were");
  }

 private:
  static constexpr size_t kWatched = 96;
  static std::bitset<kWatched> Open() {
    std::bitset<kWatched> open;
    for (size_t fd = 0; fd < kWatched; ++fd) open[fd] = fcntl(static_cast<int>(fd), F_GETFD) >= 0;
    return open;
  }
  const std::bitset<kWatched> before_;
};

}  // namespace tidepool::fuzz
