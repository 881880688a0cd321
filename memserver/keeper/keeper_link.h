// KeeperLink: memserver's end of the connection to its keeper.
//
// One thread: memserver's main thread. Every wait ends after kKeeperWaitNs of time in which this
// process could run: if a machine is suspended for longer (a migrated guest), the keeper can still
// answer afterwards. Holding needs no answer: a message that was sent is received even if this
// process dies right after it. A dead keeper shows at watch_fd(); from then on only this process
// holds the memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/keeper/keeper_messages.h"

namespace tidepool::memserver {

inline constexpr int64_t kKeeperWaitNs = 5 * kNsPerSecond;

// How a keeper is started, and what it restarts.
struct KeeperStart {
  Clock* clock = nullptr;  // times the waits; outlives the link
  std::string socket_path;
  // The command executed again after a crash; argv[0] is a path (OwnCommand of session_spawn.h).
  std::vector<std::string> argv;
  bool no_respawn = false;
  uint64_t lease_ms = 0;                   // how long memory is held without a memserver
  std::string program = "/proc/self/exe";  // its command `keep` is the keeper
  LogLevel log_level = LogLevel::kInfo;    // of the keeper's log, which goes to the same place as
                                           // memserver's
  LogFormat log_format = LogFormat::kAuto;
  bool again = false;  // replaces a dead keeper: it does not inherit a kill point
  // What the keeper is to hold. It is in the keeper's socket before the keeper runs, so this
  // process is not the only holder from the keeper's first instruction on.
  std::span<const MemoryToHold> hold = {};
  int64_t wait_ns = kKeeperWaitNs;
  // How long to wait for a keeper that another program starts: containers start in any order.
  int64_t external_wait_ns = 30 * kNsPerSecond;
};

class KeeperLink {
 public:
  // Connects to a running keeper. Errors: kNoServer (nobody listens), kKeeperFailed (no answer, or
  // it serves another memserver). kApart: the keeper may be in another pid namespace, where its pid
  // has no meaning, so only the end of the connection shows its death.
  enum class Place { kBeside, kApart };
  static Result<std::unique_ptr<KeeperLink>> Connect(Clock* clock, const std::string& socket_path,
                                                     Place place = Place::kBeside);
  // Starts a keeper at the path, replacing a stale socket, and connects. The caller has found
  // nobody listening there. Errors: kKeeperFailed.
  static Result<std::unique_ptr<KeeperLink>> Start(const KeeperStart& start);
  // Closing without Part or End counts as a crash.
  ~KeeperLink();
  KeeperLink(const KeeperLink&) = delete;
  KeeperLink& operator=(const KeeperLink&) = delete;

  // Takes descriptors of everything held, in order of slot; the keeper continues to hold it.
  // Errors: kKeeperFailed.
  Result<std::vector<HeldMemory>> Take();
  // Replaces the content of the slot. Errors: kKeeperFailed.
  Status Hold(const MemoryToHold& memory);
  Status Forget();
  // Makes the keeper hold everything for `lease_ms` after this process has ended, and start
  // nothing. Errors: kKeeperFailed: the keeper did not receive it.
  Status Part(uint64_t lease_ms);
  // Makes the keeper release everything; returns once it has, with its socket removed. Errors: as
  // above.
  Status End();

  // Readable once the keeper has died or closed the connection.
  int watch_fd() const { return watch_.get(); }
  pid_t keeper_pid() const { return keeper_pid_; }
  // When a second process first held the memory that the keeper was started with.
  int64_t passed_on_ns() const { return passed_on_ns_; }

 private:
  // `child` is 0 if another process started the keeper.
  KeeperLink(UniqueFd socket, pid_t child, int64_t wait_ns);
  static Result<std::unique_ptr<KeeperLink>> StartAt(UniqueFd listener, const KeeperStart& start);
  Status Greet(Place place);
  Status Send(const KeeperMessage& message, int fd = -1);
  Result<KeeperMessage> Receive(UniqueFd* fd);
  bool WaitToRead() const;

  UniqueFd socket_;
  UniqueFd process_;  // pidfd of the keeper
  UniqueFd watch_;    // epoll set of both
  pid_t keeper_pid_ = 0;
  int64_t passed_on_ns_ = 0;
  pid_t child_ = 0;  // the keeper, if this process started it and must reap it
  const int64_t wait_ns_;
};

}  // namespace tidepool::memserver
