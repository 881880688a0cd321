// FormerServers: the earlier server processes named in kept memory, and which of them have not
// ended.
//
// One thread: memserver's main thread. A killed process ends once every system call in its name has
// returned: normally within milliseconds, but never if a file system does not answer. Until then
// work that it began on GPUs may still be in progress. A process of another pid namespace counts as
// ended: container runtimes end all processes of a container before they start it again.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/kept_memory.h"
#include "memserver/residency/kept/kept_index.h"

namespace tidepool::memserver {

// The identity by which a later server knows this process. All zero if /proc is missing. Errors:
// kHostMemoryShort (the system lacks a resource now).
Result<ProcessName> OwnProcess();

class FormerServers {
 public:
  FormerServers() = default;  // there were none
  // Errors: those of OwnProcess, kHostMemoryShort (a process cannot be watched).
  static Result<FormerServers> Watch(const std::vector<NotedServer>& noted);

  // Bits of those that had not ended at the last look.
  uint32_t living() const;
  // Bits of those that have ended since.
  uint32_t TakeEnded();
  // Stops watching these.
  void Forget(uint32_t servers);
  // Returns once all of `servers` have ended (true), or after `limit_ns` (false); looks once if
  // that is 0.
  bool Await(uint32_t servers, int64_t limit_ns, Clock* clock);
  // For poll, level-triggered: readable while TakeEnded has something to return. -1: never.
  int event_fd() const { return epoll_.get(); }

 private:
  struct Watched {
    uint32_t place = 0;
    UniqueFd pidfd;  // closing it removes it from epoll_
  };
  UniqueFd epoll_;
  std::vector<Watched> watched_;
};

// Takes a place among the noted servers for this process; returns its bit. If living processes have
// taken all places, the place of one that copied for no kept job is taken over, since nobody waits
// for it. Errors: kNotReady (a job may have to wait for each of them; their pids are named).
Result<uint32_t> TakePlace(FormerServers* former, const KeptMemory& kept, const ProcessName& own);

// The first action of a server on kept memory: waits briefly for former servers if jobs that were
// found have to wait for them, and notes itself. Returns the bit of its place; 0: it cannot be
// noted, which is logged. Blocks for up to kFormerWaitNs. Errors: those above, kNotReady (no place
// is free).
Result<uint32_t> TakeOverFrom(FormerServers* former, const KeptMemory& kept, KeeperWatch* watch,
                              Clock* clock);

}  // namespace tidepool::memserver
