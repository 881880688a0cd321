// RankWatch: the processes of ranks that are awaited after a restart of memserver; tells which of
// them have ended before they came back.
//
// One thread (control). A rank is known by its job, its number and its nonce. What is watched is a
// pidfd, opened first and then checked against the start time in kept memory, so that another
// process that got the same pid is never taken for the rank.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/unique_fd.h"
#include "memserver/control/mailbox.h"

namespace tidepool::memserver {

class RankWatch {
 public:
  RankWatch();

  // False when the process has ended already; the rank is then not watched. A rank whose process is
  // unknown (pid 0), or for which no descriptor is left, is not watched either: only its lease ends
  // the wait for it. One whose start cannot be read is trusted by its pid.
  bool Watch(const AwaitRank& rank);
  // The rank is back, or is awaited no longer.
  void Forget(const AwaitedRankLost& rank);
  // The ranks whose processes have ended since the last call; each is told once.
  std::vector<AwaitedRankLost> TakeLost();

  // For poll or epoll, level-triggered: readable while TakeLost has something to tell.
  int event_fd() const { return epoll_.get(); }
  size_t watched() const { return watches_.size(); }

 private:
  struct Watched {
    AwaitedRankLost rank;
    UniqueFd pidfd;  // closing it takes it out of epoll_
  };
  UniqueFd epoll_;
  std::map<uint64_t, Watched> watches_;  // by the number that epoll_ knows
  uint64_t last_number_ = 0;
};

}  // namespace tidepool::memserver
