// FormerServers: the processes that were servers before this one, as kept memory names them, and
// which of them have not ended.
//
// One thread: memserver's main thread. A process that was killed ends when every call that the
// system makes in its name has: normally within milliseconds, and never where a file system does
// not answer. Until then what it had begun on GPUs may still be under way. A process of another pid
// namespace counts as ended: container runtimes end all processes of a container before they start
// it again.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/kept_memory.h"
#include "memserver/residency/kept/kept_index.h"

namespace tidepool::memserver {

// By which a later server knows this process. All zero where /proc is not there. Errors:
// kHostMemoryShort (the system lacks something now).
Result<ProcessName> OwnProcess();

class FormerServers {
 public:
  FormerServers() = default;  // there were none
  // Errors: those of OwnProcess, kHostMemoryShort (a process cannot be watched).
  static Result<FormerServers> Watch(const std::vector<NotedServer>& noted);

  // Bits of those that had not ended when they were looked at last.
  uint32_t living() const;
  // Bits of those that have ended since.
  uint32_t TakeEnded();
  // These are looked after no more.
  void Forget(uint32_t servers);
  // Returns when all of `servers` have ended, or time has passed: true for the former. At most
  // `limit_ns`; looks once where that is 0.
  bool Await(uint32_t servers, int64_t limit_ns, Clock* clock);
  // For poll, level-triggered: readable while TakeEnded has something to tell. -1: never.
  int event_fd() const { return epoll_.get(); }

 private:
  struct Watched {
    uint32_t place = 0;
    UniqueFd pidfd;  // closing it takes it out of epoll_
  };
  UniqueFd epoll_;
  std::vector<Watched> watched_;
};

// A place among the noted servers, for this process; its bit. Where all are taken by processes that
// have not ended, that of one which copied for no kept job is taken over: nobody waits for it.
// Errors: kNotReady (a job may have to wait for each of them; their pids are named).
Result<uint32_t> TakePlace(FormerServers* former, const KeptMemory& kept, const ProcessName& own);

// What a server does with kept memory before it begins anything: waits for those before it, a
// little, where jobs that were found have to wait for them; and notes itself. The bit of its place;
// 0: it cannot be noted, and says so. Blocks for up to kFormerWaitNs. Errors: those above,
// kNotReady (no place is free).
Result<uint32_t> TakeOverFrom(FormerServers* former, const KeptMemory& kept, KeeperWatch* watch,
                              Clock* clock);

}  // namespace tidepool::memserver
