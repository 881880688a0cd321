// KeptHolder: the holder of memserver's memory while memserver is gone: a keeper process, the store
// of systemd, or nobody.
//
// One thread: memserver's main thread. A keeper is started by the first Hold, when no earlier one
// was found. Without a farewell (Part or End) the destructor is the end of a start that failed:
// what an earlier memserver left is held on, and to the keeper this is a crash;
// what was new and had no jobs yet is given up. All calls do nothing, and succeed, where nobody
// holds.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/status.h"
#include "memserver/keeper/keeper_link.h"
#include "memserver/keeper/keeper_messages.h"

namespace tidepool::memserver {

// Who is to hold the memory (--keeper).
enum class KeeperChoice {
  kAuto,     // systemd where it offers its store, a process otherwise
  kProcess,  // always a keeper process
  kSystemd,  // always the store of systemd
  kNone,     // memory ends with this process
  // A keeper that another program starts (`memserver keeper`), and starts again; it is waited for,
  // never made.
  kExternal
};

class KeptHolder {
 public:
  // With kNone nothing of `start` is read.
  KeptHolder(KeeperChoice choice, KeeperStart start);
  ~KeptHolder();
  KeptHolder(const KeptHolder&) = delete;
  KeptHolder& operator=(const KeptHolder&) = delete;

  // What an earlier memserver left; empty when it left nothing. Call first. Errors: kKeeperFailed
  // (a keeper is there and does not answer: starting beside it would lose what it holds).
  Result<std::vector<HeldMemory>> Take();
  // Replaces what the slot held. Errors: kKeeperFailed.
  Status Hold(const MemoryToHold& memory);
  // Nothing of the slot is needed any more.
  Status LetGo(uint32_t slot);
  // Nothing that was held until now is needed.
  Status Forget();
  // Hold everything for `lease_ms` after this process has ended, and start nothing; another keeper
  // is made to where this one died.
  // systemd holds for as long as its unit says. Errors: kKeeperFailed; then nothing outlives this
  // process.
  Status Part(uint64_t lease_ms, std::span<const MemoryToHold> all);
  // Give everything up, now.
  void End();

  // Readable when the keeper has died: call Renew. -1 where there is nothing to watch (poll ignores
  // it).
  int watch_fd() const { return link_ ? link_->watch_fd() : -1; }
  // Makes a new keeper hold all of it. Errors: kKeeperFailed; then nobody holds it, and a later
  // Renew may try again.
  Status Renew(std::span<const MemoryToHold> all);
  // True when the keeper has died; for a caller that cannot poll watch_fd().
  bool HasDied() const;

  // Memory outlives this process.
  bool Holds() const { return form_ != KeeperChoice::kNone; }
  // What holds: for the log.
  const char* Name() const;
  // 0 where there is no keeper process.
  pid_t keeper_pid() const { return link_ ? link_->keeper_pid() : 0; }

 private:
  bool SpeaksToKeeper() const {
    return form_ == KeeperChoice::kProcess || form_ == KeeperChoice::kExternal;
  }
  // The keeper that is there; of kExternal one that comes within `patience_ns`. Errors: kNoServer,
  // kKeeperFailed.
  Result<std::unique_ptr<KeeperLink>> Find(int64_t patience_ns) const;
  Status FindOrStart(bool again, std::span<const MemoryToHold> all);
  void LetGo(const Status& told);
  const KeeperChoice form_;  // never kAuto
  const KeeperStart start_;
  std::unique_ptr<KeeperLink> link_;  // with kProcess
  std::set<uint32_t> stored_;         // slots, of kSystemd
  bool of_another_ = false;           // the keeper holds what another memserver left
};

}  // namespace tidepool::memserver
