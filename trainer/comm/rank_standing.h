// RankStanding: what others (the launcher) know of a rank that has not reached the meeting.
//
// Any thread; a value type.
#pragma once

#include <cstdint>

namespace tidepool::trainer {

struct RankStanding {
  enum class Kind {
    kUnknown,  // nothing is known
    kComing,   // its process lives
    kEnded,    // it has ended and is not restarted
  };

  Kind kind = Kind::kUnknown;
  int32_t pid = 0;    // kComing
  int exit_code = 0;  // kEnded; 128 + signal when it was killed
};

}  // namespace tidepool::trainer
