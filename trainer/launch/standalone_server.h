// StandaloneServer: a private memory server for one run, in a private directory, removed with the
// run.
//
// One thread. Invariants:
//  1. The directory (mode 0700, a short path under $TMPDIR or /tmp) holds everything that the
//     server creates: sockets, lock, log.
//  2. The server ends when Stop is called, when this object is destroyed, and when this process
//     dies in any way: it is started with --end-with-fd on a pipe whose other end only this
//     process holds; its forked children close it.
//  3. A small shell around the server removes the directory afterwards, so that nothing is left
//     even if this process is killed.
//  4. The server runs in its own session: Ctrl-C reaches only the trainer, which ends its step
//     first.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "trainer/launch/child_process.h"

namespace tidepool::trainer {

// How to start the server.
struct StandaloneOptions {
  std::string program;                   // path of memserver; empty: FindProgramBeside("memserver")
  uint64_t pool_bytes = 0;               // --pool
  uint64_t rcache_limit_bytes = 0;       // --rcache-limit
  std::vector<std::string> extra_flags;  // additional flags of `memserver run`
  // 0: 30 s, plus 2 s per GiB of pool (it is touched at start).
  int64_t ready_timeout_ns = 0;
  int64_t stop_timeout_ns = 5 * kNsPerSecond;  // between SIGTERM and SIGKILL
};

// The longest time that Start waits for the server.
int64_t ReadyTimeoutNs(const StandaloneOptions& options);

class StandaloneServer {
 public:
  // Returns when the server accepts connections. A stop request meanwhile (StopFlag) ends the wait.
  // `clock` outlives the server. Errors: kNoServer (it ended, or was not ready in time; shows the
  // end of its log), kFileUnreadable (no memserver found), kSocketFailed (no directory could be
  // created).
  static Result<std::unique_ptr<StandaloneServer>> Start(const StandaloneOptions& options,
                                                         Clock* clock);
  ~StandaloneServer();
  StandaloneServer(const StandaloneServer&) = delete;
  StandaloneServer& operator=(const StandaloneServer&) = delete;

  // The server's socket directory.
  const std::string& socket_dir() const { return directory_; }
  // The last lines of the server's log, to show with an error of the run; also works after Stop.
  std::string LogTail(size_t lines = 20) const;
  // Ends the server (SIGTERM, then SIGKILL) and removes its directory. ok if it ended by itself
  // with 0; a second call returns the same. Errors: kServerGone (it had died before, had to be
  // killed, or ended with an error; shows the end of its log).
  Status Stop();

 private:
  StandaloneServer(const StandaloneOptions& options, Clock* clock)
      : options_(options), clock_(clock) {}
  Status MakeDirectory();
  Status Launch();
  Status WaitUntilReady();
  bool Accepts() const;
  Status NotReady(const std::string& what) const;

  StandaloneOptions options_;
  Clock* const clock_;
  std::string directory_;
  UniqueFd log_, life_;  // life_: our end of the pipe; the server ends when it closes
  std::optional<ChildProcess> process_;
  std::optional<Status> stopped_;
};

}  // namespace tidepool::trainer
