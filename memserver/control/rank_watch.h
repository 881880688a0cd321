// RankWatch: watches the processes of ranks that are awaited after a restart of memserver, and
// reports those that ended before they came back.
//
// One thread (control). A rank is identified by its job, its number and its nonce. It watches a
// pidfd, which is opened first and then checked against the start time in kept memory, so that
// another process with the same pid is never taken for the rank.
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
  // the wait for it. If its start time cannot be read, the pid is trusted.
  bool Watch(const AwaitRank& rank);
  // The rank is back, or is no longer awaited.
  void Forget(const AwaitedRankLost& rank);
  // The ranks whose processes have ended since the last call, each once.
  std::vector<AwaitedRankLost> TakeLost();

  // For poll or epoll, level-triggered: readable while TakeLost has something to return.
  int event_fd() const { return epoll_.get(); }
  size_t watched() const { return watches_.size(); }

 private:
  struct Watched {
    AwaitedRankLost rank;
    UniqueFd pidfd;  // closing it removes it from epoll_
  };
  UniqueFd epoll_;
  std::map<uint64_t, Watched> watches_;  // by the number registered in epoll_
  uint64_t last_number_ = 0;
};

}  // namespace tidepool::memserver
