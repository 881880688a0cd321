// DaemonInProcess: a whole memserver inside a test, and what a test asks of it: is everything back
// to its baseline?
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/server.h"
#include "tests/process/rig/child_process.h"
#include "tests/process/rig/thin_job.h"

namespace tidepool::testing {

// What the daemon holds for jobs. All zero when nobody is there.
struct Holdings {
  int64_t jobs = -1, sessions = -1, pool_bytes = -1, rcache_bytes = -1;
  friend bool operator==(const Holdings&, const Holdings&) = default;
};
inline constexpr Holdings kNothing{0, 0, 0, 0};
// By the admin socket of any memserver, this process's or another's.
Holdings HoldingsOf(const std::string& socket_dir);
// Waits until they are `expected`; returns the last ones seen.
Holdings WaitForHoldings(const std::string& socket_dir, const Holdings& expected,
                         int64_t timeout_ns);

// Open descriptors of this process, once their number has stayed the same for 50 ms: the server
// closes the admin connection that was asked last on a thread of its own.
size_t SettledDescriptors();

class DaemonInProcess {
 public:
  explicit DaemonInProcess(memserver::ServerOptions options = SmallServer());
  ~DaemonInProcess();
  DaemonInProcess(const DaemonInProcess&) = delete;
  DaemonInProcess& operator=(const DaemonInProcess&) = delete;

  // A pool of 32 MiB, one worker, no lease; the socket directory is filled in.
  static memserver::ServerOptions SmallServer();
  const std::string& socket_dir() const { return directory_.path(); }

 private:
  void Pump();
  TemporaryDirectory directory_;
  SteadyClock clock_;
  memserver::KeptHolder keeper_{memserver::KeeperChoice::kNone, {}};
  std::unique_ptr<memserver::Server> server_;
  std::thread pump_;  // what the main thread of memserver does
};

// The command line of a thin trainer process.
std::vector<std::string> ThinCommand(const std::string& socket_dir,
                                     const std::vector<std::string>& more = {});

}  // namespace tidepool::testing
