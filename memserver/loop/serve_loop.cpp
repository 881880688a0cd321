#include "memserver/loop/serve_loop.h"

#include <algorithm>
#include <thread>

#include "base/buggify.h"
#include "base/hot.h"
#include "base/system/last_words.h"
#include "base/planted.h"
#include "memserver/jobs/job_recovery.h"

namespace tidepool::memserver {
namespace {

constexpr uint32_t kIdleTurnsPerClockRead = 16;

int64_t SpinNs(int64_t wanted) {
  if (wanted >= 0) return wanted;
  return std::thread::hardware_concurrency() <= kFewCores ? kSpinNsFewCores : kSpinNsManyCores;
}

// True if fetches of its ranks leave no work to others: all of its weights are in host memory for
// good.
bool FetchesLeaveNothing(const Job& job) {
  return !job.states->window().any() && job.spec().frozen.empty();
}

}  // namespace

ServeLoop::ServeLoop(const LoopNeighbours& neighbours, const LoopOptions& options)
    : neighbours_(neighbours),
      options_(options),
      spin_(SpinNs(options.times.spin_ns)),
      desk_(neighbours, options, &tables_),
      dispatcher_(neighbours.clock),
      steps_(neighbours, &tables_, desk_.mutable_demotion()),
      off_host_(neighbours, &tables_, desk_.mutable_demotion()),
      gpu_copies_(&tables_, &dispatcher_) {
  tables_.started_ns = neighbours_.clock->NowNs();
  tables_.frozen = std::make_unique<FrozenTable>(neighbours_.pool);

  tables_.quotas = QuotaBook(options.quotas, options.live.quota_fallback);

  for (const int fd : {neighbours_.events->event_fd(), neighbours_.saved->event_fd(),
                       neighbours_.team->done_fd()}) {
    if (!tables_.wake_set.Add(fd)) DieOutOf("room to watch a descriptor");
  }
  const bool watched = neighbours_.tier == nullptr || neighbours_.tier->event_fd() < 0 ||
                       tables_.wake_set.Add(neighbours_.tier->event_fd());
  if (!watched) DieOutOf("room to watch a descriptor");
}

Status ServeLoop::Recover(const IndexContents& contents, std::span<const HeldMemory> states,
                          uint32_t living) {
  TP_RETURN_IF_ERROR(RecoverJobs(neighbours_, contents, states, living, &tables_));
  desk_.ApplyQuotas();
  return Status();
}

TP_HOT bool ServeLoop::Turn() {
  turned_ns_ = neighbours_.clock->NowNs();
  const bool worked = DoTurn();
  // An idle turn may wait for a GPU driver, so it is counted too. Without GPUs only turns that did
  // something can take long.
  if (!worked && tables_.gpus.empty()) return false;
  CountTurn(neighbours_.clock->NowNs() - turned_ns_);
  return worked;
}

TP_HOT void ServeLoop::CountTurn(int64_t took_ns) {
  if (took_ns <= kLongTurnNs) return;
  ++tables_.counters.long_turns;
  tables_.counters.longest_turn_ns = std::max(tables_.counters.longest_turn_ns, took_ns);
}

TP_HOT bool ServeLoop::DoTurn() {
  ++tables_.counters.turns;
  bool worked = TakeControlEvents();
  worked |= TakeSaved();
  worked |= steps_.TakeDone();
  worked |= off_host_.PollTier();
  worked |= off_host_.PollGpus();

  if (!tables_.handing_over) {
    worked |= ServeSlots(kRequestsPerTurn);
    worked |= steps_.FinishSteps();
    worked |= steps_.FeedTeam();
  }

  worked |= RunInlineWork();
  worked |= desk_.ExpelViolators();
  worked |= desk_.PollGpus();
  worked |= desk_.PollJobs();
  worked |= desk_.PollSnapshot();
  WakeAnswered();
  return worked;
}

TP_HOT void ServeLoop::WakeAnswered() {
  for (const auto& slot : tables_.slots) {
    if (slot->session != nullptr) slot->session->WakeIfAnswered();
  }
}

TP_HOT bool ServeLoop::TakeControlEvents() {
  if (next_event_ == events_.size()) {
    next_event_ = 0;
    if (!neighbours_.events->TakeAll(&events_)) return false;
  }
  const uint32_t events_max = TP_BUGGIFY("loop.one_event") ? 1 : kControlEventsPerTurn;
  for (uint32_t i = 0; i < events_max && next_event_ < events_.size(); ++i)
    desk_.Handle(std::move(events_[next_event_++]));
  return true;
}

TP_HOT bool ServeLoop::TakeSaved() {
  if (!neighbours_.saved->TakeAll(&saved_)) return false;
  for (const SaveResult& saved : saved_) desk_.HandleSaved(saved);
  return true;
}

TP_HOT bool ServeLoop::ServeSlots(uint32_t requests_max) {
  const size_t count = tables_.slots.size();
  if (count == 0) return false;
  bool worked = false;

  if (JobsCompete()) {
    worked = ServeInShares(requests_max);
  } else {
    first_slot_ = (first_slot_ + 1) % count;
    for (size_t i = 0; i < count; ++i) {
      SessionSlot* slot = tables_.slots[(first_slot_ + i) % count].get();
      if (slot->session == nullptr || slot->violation != nullptr) continue;
      worked |= dispatcher_.EndCopies(slot);
      worked |= TakeNew(slot, requests_max);
      worked |= ProgressCopies(slot);
    }
  }

  return gpu_copies_.Begin() || worked;
}

TP_HOT bool ServeLoop::TakeNew(SessionSlot* slot, uint32_t requests_max) {
  if (slot->job->suspended || slot->leaving) return false;
  const bool retried = dispatcher_.RetryParked(slot);
  return dispatcher_.TakeRequests(slot, requests_max) || retried;
}

TP_HOT bool ServeLoop::ProgressCopies(SessionSlot* slot) {
  if (!slot->session->lane().Progress(kCopyBytesPerTurn)) return false;
  dispatcher_.EndCopies(slot);
  return true;
}

TP_HOT bool ServeLoop::JobsCompete() const {
  const Job* first = tables_.slots.front()->job;
  return std::any_of(tables_.slots.begin(), tables_.slots.end(),
                     [first](const auto& slot) { return slot->job != first; });
}

// Decides alone who may begin a copy; copies in flight continue by themselves. So the shares hold,
// whichever thread copies.
bool ServeLoop::ServeInShares(uint32_t requests_max) {
  bool worked = false;
  uint64_t in_flight = 0, most = options_.shared_copy_bytes;
  for (const auto& slot : tables_.slots) {
    if (slot->session == nullptr || slot->violation != nullptr) continue;
    worked |= dispatcher_.EndCopies(slot.get());
    // Its copies begin in the order of its root complex, which has its own bounds.
    if (slot->session->is_brought()) {
      if (TakeNew(slot.get(), requests_max)) {
        worked = true;
        steps_.HoldWorkersFor(*slot->job);
      }
      continue;
    }
    in_flight += slot->session->lane().bytes_in_flight();
    if (options_.shared_copy_bytes == 0)
      most = std::max(
          most, slot->session->lane().event_fd() >= 0 ? kSharedCopyBytes : kSharedCopyBytesInLoop);
  }

  const auto share = [this](size_t i) -> Share& { return tables_.jobs[i]->copy_share; };
  const auto take = [this, &in_flight](size_t i) {
    const uint64_t bytes = ServeOneSlot(tables_.jobs[i].get());
    in_flight += bytes > kRequestCost ? bytes - kRequestCost : 0;
    return bytes;
  };

  for (size_t left = requests_max * tables_.slots.size(); left > 0 && in_flight < most; --left) {
    if (!copies_.Serve(tables_.jobs.size(), share, take)) break;
    worked = true;
  }
  if (in_flight >= most) worked |= ServeOutOfTurn();
  for (const auto& slot : tables_.slots) {
    if (slot->session != nullptr && slot->violation == nullptr)
      worked |= ProgressCopies(slot.get());
  }
  return worked;
}

// A job without copies in flight begins one out of turn: it need not wait while the copies of other
// jobs fill the allowed bytes in flight.
bool ServeLoop::ServeOutOfTurn() {
  const auto has_copies = [](const SessionSlot* slot) {
    return slot != nullptr && slot->session != nullptr &&
           slot->session->lane().bytes_in_flight() > 0;
  };

  bool worked = false;
  for (const auto& job : tables_.jobs) {
    while (!std::any_of(job->slots.begin(), job->slots.end(), has_copies) &&
           copies_.ServeOutOfTurn(&job->copy_share, [&] { return ServeOneSlot(job.get()); })) {
      worked = true;
    }
  }
  return worked;
}

// Serves the next rank of the job that has something to do: its parked requests that may continue,
// or one new request. Returns the cost; 0: no rank has any.
uint64_t ServeLoop::ServeOneSlot(Job* job) {
  if (job->suspended || job->client_owned_rcache) return 0;
  const size_t ranks = job->slots.size();
  for (size_t i = 0; i < ranks; ++i) {
    job->next_slot = (job->next_slot + 1) % ranks;
    SessionSlot* slot = job->slots[job->next_slot];
    if (slot == nullptr || slot->session == nullptr || slot->violation != nullptr || slot->leaving)
      continue;

    const uint64_t before = slot->session->lane().bytes_started();
    if (!dispatcher_.RetryParked(slot) && !dispatcher_.TakeRequests(slot, 1)) continue;
    steps_.HoldWorkersFor(*job);
    return slot->session->lane().bytes_started() - before + kRequestCost;
  }
  return 0;
}

TP_HOT bool ServeLoop::RunInlineWork() {
  if (!neighbours_.team->is_inline() || !options_.run_inline_work ||
      neighbours_.team->waiting() == 0)
    return false;
  neighbours_.team->RunOne(0);
  return true;
}

void ServeLoop::Run() {
  uint32_t idle_turns = 0;
  while (!tables_.stopped) {
    if (Turn()) {
      idle_turns = 0;
      continue;
    }
    if (++idle_turns % kIdleTurnsPerClockRead != 0) continue;

    const int64_t now = neighbours_.clock->NowNs();
    if (idle_turns == kIdleTurnsPerClockRead) idle_since_ns_ = now;
    if (now - idle_since_ns_ < spin_.ns()) continue;
    Sleep();
    spin_.Woke(neighbours_.clock->NowNs() - idle_since_ns_);
    idle_turns = 0;
  }
}

TP_HOT bool ServeLoop::CanSleep() const {
  return std::all_of(tables_.slots.begin(), tables_.slots.end(), [](const auto& slot) {
    return slot->session == nullptr || slot->session->lane().size() == 0 ||
           slot->session->lane().event_fd() >= 0 || slot->session->is_brought();
  });
}

// Flags and copies of a GPU raise no event, so the loop polls them.
TP_HOT bool ServeLoop::MustPoll() const {
  if (tables_.gpus.empty()) return false;
  return std::any_of(tables_.slots.begin(), tables_.slots.end(),
                     [](const auto& slot) {
                       return slot->session != nullptr && slot->session->MustBePolled();
                     }) ||
         std::any_of(tables_.jobs.begin(), tables_.jobs.end(),
                     [](const auto& job) { return job->gpus.MustBePolled(); });
}

// Returns false while the system has no room to watch one of them; the loop then sleeps only
// briefly.
bool ServeLoop::WatchNewSlots() {
  bool all = true;
  for (const auto& slot : tables_.slots) {
    if (slot->session == nullptr || slot->watched) continue;
    const int doorbell_fd = slot->session->port().doorbell_fd(),
              stream_fd = slot->session->lane().event_fd();

    slot->watched = tables_.wake_set.AddShared(doorbell_fd);
    if (slot->watched && stream_fd >= 0 && !tables_.wake_set.Add(stream_fd)) {
      tables_.wake_set.Remove(doorbell_fd);
      slot->watched = false;
    }
    all &= slot->watched;
  }
  return all;
}

void ServeLoop::ClearEvents() {
  neighbours_.events->ClearEvent();
  neighbours_.saved->ClearEvent();
  neighbours_.team->ArmDoneEvent();
  if (neighbours_.tier != nullptr) neighbours_.tier->ClearEvent();
  for (const auto& slot : tables_.slots) {
    if (slot->session != nullptr) slot->session->lane().ClearEvent();
  }
}

TP_HOT void ServeLoop::AnnounceSleep(bool sleeping) {
  for (const auto& slot : tables_.slots) {
    if (slot->session != nullptr) slot->session->port().SetSleeping(sleeping);
  }
}

// Nothing is under way, and all that the clients' next fetches change is their own memory.
TP_HOT bool ServeLoop::AtRest() const {
  return std::all_of(tables_.slots.begin(), tables_.slots.end(), [](const auto& slot) {
    return slot->session != nullptr && slot->session->lane().size() == 0 &&
           FetchesLeaveNothing(*slot->job);
  });
}

// After a sleep, answers the clients before anything else: data read between the wake-up and the
// answer has left the caches, the clock's too, and if the system woke the loop on the client's own
// CPU, the client runs only when the loop sleeps again.
TP_HOT ServeLoop::Next ServeLoop::Answer(bool at_rest) {
  if (tables_.handing_over || tables_.slots.empty()) return Next::kSpin;
  const uint64_t consequences = dispatcher_.consequences();
  const bool answered = ServeSlots(/*requests_max=*/1);
  WakeAnswered();
  const int64_t begin = neighbours_.clock->NowNs();

  AnnounceSleep(true);  // a client rings once for each announced sleep
  const bool more = ServeSlots(kRequestsPerTurn);
  if (more) WakeAnswered();
  const int64_t now = neighbours_.clock->NowNs();
  if (!TP_PLANTED("loop.answer_uncounted")) CountTurn(now - begin);

  // The spin budget is updated for this silence.
  if (now - idle_since_ns_ <= kLongSilenceNs) return Next::kSpin;
  idle_since_ns_ = now;

  const bool only_fetched =
      dispatcher_.consequences() == consequences || TP_PLANTED("loop.answer_without_its_work");
  const bool turn_is_due = now - turned_ns_ >= kSleepNsMax;
  return at_rest && answered && !more && only_fetched && AtRest() && !turn_is_due ? Next::kSleep
                                                                                  : Next::kTurn;
}

// Items queued after the flags were set and the events cleared make a descriptor readable; the turn
// in between finds items queued before.
void ServeLoop::Sleep() {
  if (!CanSleep()) return;
  int64_t sleep_ns = WatchNewSlots() ? kSleepNsMax : kSleepNsUnwatched;
  // A failed read or write must be retried soon.
  if (neighbours_.tier != nullptr && neighbours_.tier->next_retry_ns() != INT64_MAX)
    sleep_ns = std::min(sleep_ns, kSleepNsUnwatched);
  AnnounceSleep(true);
  ClearEvents();

  Next next = Next::kTurn;
  while (next == Next::kSleep || (next == Next::kTurn && !Turn() && CanSleep())) {
    const bool polls = MustPoll();
    const int64_t held_ns = steps_.held_until_ns() > 0 ? kHeldForHighNs : INT64_MAX;
    const int64_t limit_ns = polls ? kGpuPollNs : std::min(sleep_ns, held_ns);
    // Nothing is under way, and nothing is due before the longest sleep ends.
    const bool at_rest = limit_ns == kSleepNsMax && AtRest();
    const bool only_clients = tables_.wake_set.Wait(limit_ns);

    if (polls) {
      ClearEvents();
      next = Next::kTurn;
    } else {
      next = only_clients ? Answer(at_rest) : Next::kSpin;
    }
  }
  AnnounceSleep(false);
}

}  // namespace tidepool::memserver
