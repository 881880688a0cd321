// KeptHolder: the holder of memserver's memory while memserver is gone: a keeper process, the
// systemd store, or nobody.
//
// One thread: memserver's main thread. The first Hold starts a keeper, unless an earlier one was
// found. Without a farewell (Part or End) the destructor marks a failed start: memory that an
// earlier memserver left is still held, and to the keeper this is a crash; new memory, which had no
// jobs yet, is released. If nobody holds, all calls do nothing and succeed.
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

// The holder of the memory (--keeper).
enum class KeeperChoice {
  kAuto,     // systemd if it offers its store, a process otherwise
  kProcess,  // always a keeper process
  kSystemd,  // always the store of systemd
  kNone,     // memory ends with this process
  // A keeper that another program starts (`memserver keeper`), and restarts; it is waited for,
  // never made.
  kExternal
};

class KeptHolder {
 public:
  // With kNone `start` is not read.
  KeptHolder(KeeperChoice choice, KeeperStart start);
  ~KeptHolder();
  KeptHolder(const KeptHolder&) = delete;
  KeptHolder& operator=(const KeptHolder&) = delete;

  // The memory that an earlier memserver left; empty if there is none. Call first. Errors:
  // kKeeperFailed (a keeper exists and does not answer: a start beside it would lose what it
  // holds).
  Result<std::vector<HeldMemory>> Take();
  // Replaces the content of the slot. Errors: kKeeperFailed.
  Status Hold(const MemoryToHold& memory);
  // Releases the slot.
  Status LetGo(uint32_t slot);
  // Releases everything held until now.
  Status Forget();
  // Holds everything for `lease_ms` after this process has ended, and starts nothing; replaces a
  // keeper that died. systemd holds for as long as its unit says. Errors: kKeeperFailed; then
  // nothing outlives this process.
  Status Part(uint64_t lease_ms, std::span<const MemoryToHold> all);
  // Releases everything, now.
  void End();

  // Readable once the keeper has died: call Renew. -1 if there is nothing to watch (poll ignores
  // it).
  int watch_fd() const { return link_ ? link_->watch_fd() : -1; }
  // Makes a new keeper hold everything. Errors: kKeeperFailed; then nobody holds it, and a later
  // Renew may try again.
  Status Renew(std::span<const MemoryToHold> all);
  // True if the keeper has died; for a caller that cannot poll watch_fd().
  bool HasDied() const;

  // True if memory outlives this process.
  bool Holds() const { return form_ != KeeperChoice::kNone; }
  // The kind of holder, for the log.
  const char* Name() const;
  // 0 if there is no keeper process.
  pid_t keeper_pid() const { return link_ ? link_->keeper_pid() : 0; }

 private:
  bool SpeaksToKeeper() const {
    return form_ == KeeperChoice::kProcess || form_ == KeeperChoice::kExternal;
  }
  // The existing keeper; for kExternal, one that comes within `patience_ns`. Errors: kNoServer,
  // kKeeperFailed.
  Result<std::unique_ptr<KeeperLink>> Find(int64_t patience_ns) const;
  Status FindOrStart(bool again, std::span<const MemoryToHold> all);
  void LetGo(const Status& told);
  const KeeperChoice form_;  // never kAuto
  const KeeperStart start_;
  std::unique_ptr<KeeperLink> link_;  // with kProcess
  std::set<uint32_t> stored_;         // slots, for kSystemd
  bool of_another_ = false;           // the keeper holds memory that another memserver left
};

}  // namespace tidepool::memserver
