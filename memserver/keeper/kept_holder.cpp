#include "memserver/keeper/kept_holder.h"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/planted.h"
#include "memserver/keeper/fd_store.h"

namespace tidepool::memserver {

namespace {

constexpr int kRenewTries = 3;  // the new keeper may be killed as well
constexpr int64_t kLookAgainNs = 50 * kNsPerMs;

KeeperChoice Resolve(KeeperChoice choice) {
  if (choice != KeeperChoice::kAuto) return choice;
  return FdStoreOffered() ? KeeperChoice::kSystemd : KeeperChoice::kProcess;
}

}  // namespace

KeptHolder::KeptHolder(KeeperChoice choice, KeeperStart start)
    : form_(Resolve(choice)), start_(std::move(start)) {}

// Closing without a farewell is a crash to the keeper: it holds what an earlier server left, and
// starts a server again.
KeptHolder::~KeptHolder() {
  if (!link_) return;
  if (!of_another_) {
    LetGo(link_->End());
  } else if (TP_PLANTED("keeper.failed_start_parts")) {
    LetGo(link_->Part(start_.lease_ms));
  }
}

Result<std::vector<HeldMemory>> KeptHolder::Take() {
  if (form_ == KeeperChoice::kSystemd) {
    auto taken = TakeStored();
    for (const HeldMemory& memory : taken) stored_.insert(memory.slot);
    return taken;  // systemd continues to hold it, whatever becomes of this process
  }
  if (form_ == KeeperChoice::kNone) return std::vector<HeldMemory>();

  if (!link_) {
    auto link = Find(start_.external_wait_ns);
    if (link.status().id() == ErrorId::kNoServer && form_ == KeeperChoice::kProcess)
      return std::vector<HeldMemory>();
    if (!link.ok()) return link.status();
    link_ = std::move(link).value();
  }

  auto taken = link_->Take();
  of_another_ = !taken.ok() || !taken->empty();
  if (!taken.ok()) link_.reset();
  return taken;
}

Status KeptHolder::Hold(const MemoryToHold& memory) {
  if (form_ == KeeperChoice::kNone) return Status();
  if (form_ == KeeperChoice::kSystemd) {
    if (!stored_.insert(memory.slot).second) RemoveStored(memory.slot);
    return Store(memory.slot, memory.fd);
  }
  if (!link_) TP_RETURN_IF_ERROR(FindOrStart(false, {}));
  return link_->Hold(memory);
}

Status KeptHolder::LetGo(uint32_t slot) {
  if (form_ == KeeperChoice::kSystemd && stored_.erase(slot) > 0) RemoveStored(slot);
  if (!link_) return Status();
  const UniqueFd nothing(memfd_create("tidepool-nothing", MFD_CLOEXEC));
  if (!nothing.valid())
    return Status(ErrorId::kKeeperFailed,
                  "no descriptor in whose place the keeper could let go of memory");
  return link_->Hold({slot, nothing.get(), 0});
}

Status KeptHolder::Forget() {
  for (const uint32_t slot : std::exchange(stored_, {})) RemoveStored(slot);
  of_another_ = false;
  return link_ ? link_->Forget() : Status();
}

Status KeptHolder::Part(uint64_t lease_ms, std::span<const MemoryToHold> all) {
  if (!SpeaksToKeeper()) return Status();
  Status told =
      link_ ? link_->Part(lease_ms) : Status(ErrorId::kKeeperFailed, "there is no keeper");
  if (!told.ok()) {
    told = Renew(all);
    if (told.ok()) told = link_->Part(lease_ms);
  }
  LetGo(told);
  return told;
}

void KeptHolder::End() {
  for (const uint32_t slot : std::exchange(stored_, {})) RemoveStored(slot);
  if (link_) LetGo(link_->End());
}

// A keeper that died while its server ended has left its socket behind.
void KeptHolder::LetGo(const Status& told) {
  link_.reset();
  if (told.ok()) return;
  LogWarn(told.Line());
  if (form_ == KeeperChoice::kProcess) unlink(start_.socket_path.c_str());
}

Result<std::unique_ptr<KeeperLink>> KeptHolder::Find(int64_t patience_ns) const {
  if (form_ == KeeperChoice::kProcess) return KeeperLink::Connect(start_.clock, start_.socket_path);

  Clock* const clock = start_.clock;
  const int64_t end = clock->NowNs() + patience_ns;
  for (bool told = false;; clock->SleepNs(kLookAgainNs)) {
    auto link = KeeperLink::Connect(start_.clock, start_.socket_path, KeeperLink::Place::kApart);
    if (link.status().id() != ErrorId::kNoServer) return link;
    if (clock->NowNs() >= end)
      return Status(link.status())
          .Fix("start one: memserver keeper --socket-dir DIR, in a container of its own");
    if (!std::exchange(told, true))
      LogInfo("waiting for the keeper", {{"socket", start_.socket_path}});
  }
}

Status KeptHolder::FindOrStart(bool again, std::span<const MemoryToHold> all) {
  auto link = Find(0);
  if (link.status().id() == ErrorId::kNoServer && form_ == KeeperChoice::kProcess) {
    KeeperStart start = start_;
    start.again = again;
    start.hold = std::exchange(all, {});
    link = KeeperLink::Start(start);
  }

  if (!link.ok()) return link.status();
  link_ = std::move(link).value();
  for (const MemoryToHold& memory : all) TP_RETURN_IF_ERROR(link_->Hold(memory));
  return Status();
}

bool KeptHolder::HasDied() const {
  return link_ && shm::WaitForSocket(link_->watch_fd(), POLLIN, 0);
}

Status KeptHolder::Renew(std::span<const MemoryToHold> all) {
  if (!SpeaksToKeeper()) return Status();
  const int64_t noticed_ns = start_.clock->NowNs();
  if (TP_PLANTED("keeper.renewed_without_index")) all = all.subspan(1);
  Status status;
  for (int i = 0; i < kRenewTries; ++i) {
    link_.reset();
    status = FindOrStart(true, all);
    if (!status.ok()) continue;

    const int64_t passed_on_ns =
        link_->passed_on_ns() > 0 ? link_->passed_on_ns() : start_.clock->NowNs();
    LogWarn("the keeper died; a new one holds the memory",
            {{"keeper_pid", keeper_pid()},
             {"alone_ms", static_cast<double>(passed_on_ns - noticed_ns) / kNsPerMs}});
    return status;
  }
  link_.reset();
  return status;
}

const char* KeptHolder::Name() const {
  switch (form_) {
    case KeeperChoice::kProcess: return "keeper process";
    case KeeperChoice::kSystemd: return "systemd";
    case KeeperChoice::kExternal: return "external keeper";
    default: return "nobody";
  }
}

}  // namespace tidepool::memserver
