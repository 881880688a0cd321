#include "memserver/loop/serve_loop.h"

#include <algorithm>
#include <thread>

#include "base/buggify.h"
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

}  // namespace

ServeLoop::ServeLoop(const Parts& parts, const LoopOptions& options)
    : parts_(parts),
      options_(options),
      spin_(SpinNs(options.times.spin_ns)),
      desk_(parts, options, &tables_),
      steps_(parts, &tables_, desk_.mutable_demotion()),
      off_host_(parts, &tables_, desk_.mutable_demotion()),
      gpu_copies_(&tables_, &dispatcher_) {
  tables_.started_ns = parts_.clock->NowNs();
  tables_.frozen = std::make_unique<FrozenTable>(parts_.pool);

  tables_.quotas = QuotaBook(options.quotas, options.live.quota_fallback);

  for (const int fd :
       {parts_.events->event_fd(), parts_.saved->event_fd(), parts_.team->done_fd()}) {
    if (!tables_.wake_set.Add(fd)) DieOutOf("room to watch a descriptor");
  }
  const bool watched = parts_.tier == nullptr || parts_.tier->event_fd() < 0 ||
                       tables_.wake_set.Add(parts_.tier->event_fd());
  if (!watched) DieOutOf("room to watch a descriptor");
}

Status ServeLoop::Recover(const IndexContents& contents, std::span<const HeldMemory> states,
                          uint32_t living) {
  TP_RETURN_IF_ERROR(RecoverJobs(parts_, contents, states, living, &tables_));
  desk_.ApplyQuotas();
  return Status();
}

bool ServeLoop::Turn() {
  const int64_t begin = parts_.clock->NowNs();
  const bool worked = DoTurn();
  // An idle turn may wait for the driver of a GPU, so it is counted too. Without GPUs only turns
  // that did something can take long.
  if (!worked && tables_.gpus.empty()) return false;
  CountTurn(parts_.clock->NowNs() - begin);
  return worked;
}

void ServeLoop::CountTurn(int64_t took_ns) {
  if (took_ns <= kLongTurnNs) return;
  ++tables_.counters.long_turns;
  tables_.counters.longest_turn_ns = std::max(tables_.counters.longest_turn_ns, took_ns);
}

bool ServeLoop::DoTurn() {
  ++tables_.counters.turns;
  bool worked = TakeControlEvents();
  worked |= TakeSaved();
  worked |= steps_.TakeDone();
  worked |= off_host_.PollTier();
  worked |= off_host_.PollGpus();

  if (!tables_.handing_over) {
    worked |= ServeSeats();
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

void ServeLoop::WakeAnswered() {
  for (const auto& seat : tables_.seats) {
    if (seat->session != nullptr) seat->session->WakeIfAnswered();
  }
}

bool ServeLoop::TakeControlEvents() {
  if (next_event_ == events_.size()) {
    next_event_ = 0;
    if (!parts_.events->TakeAll(&events_)) return false;
  }
  const uint32_t events_max = TP_BUGGIFY("loop.one_event") ? 1 : kControlEventsPerTurn;
  for (uint32_t i = 0; i < events_max && next_event_ < events_.size(); ++i)
    desk_.Handle(std::move(events_[next_event_++]));
  return true;
}

bool ServeLoop::TakeSaved() {
  if (!parts_.saved->TakeAll(&saved_)) return false;
  for (const SaveResult& saved : saved_) desk_.HandleSaved(saved);
  return true;
}

bool ServeLoop::ServeSeats() {
  const size_t count = tables_.seats.size();
  if (count == 0) return false;
  bool worked = false;

  if (JobsCompete()) {
    worked = ServeInShares();
  } else {
    first_seat_ = (first_seat_ + 1) % count;
    for (size_t i = 0; i < count; ++i) {
      Seat* seat = tables_.seats[(first_seat_ + i) % count].get();
      if (seat->session == nullptr || seat->violation != nullptr) continue;
      worked |= dispatcher_.EndCopies(seat);
      worked |= TakeAll(seat);
      worked |= ProgressCopies(seat);
    }
  }

  return gpu_copies_.Begin() || worked;
}

bool ServeLoop::TakeAll(Seat* seat) {
  if (seat->job->suspended || seat->leaving) return false;
  const bool retried = dispatcher_.RetryParked(seat);
  return dispatcher_.TakeRequests(seat, kRequestsPerTurn) || retried;
}

bool ServeLoop::ProgressCopies(Seat* seat) {
  if (!seat->session->lane().Progress(kCopyBytesPerTurn)) return false;
  dispatcher_.EndCopies(seat);
  return true;
}

bool ServeLoop::JobsCompete() const {
  const Job* first = tables_.seats.front()->job;
  return std::any_of(tables_.seats.begin(), tables_.seats.end(),
                     [first](const auto& seat) { return seat->job != first; });
}

// Who may begin a copy is decided here alone; copies that were begun go on by themselves. So the
// shares hold whoever does the copying.
bool ServeLoop::ServeInShares() {
  bool worked = false;
  uint64_t in_flight = 0, most = options_.shared_copy_bytes;
  for (const auto& seat : tables_.seats) {
    if (seat->session == nullptr || seat->violation != nullptr) continue;
    worked |= dispatcher_.EndCopies(seat.get());
    // Its copies begin in the order of its root complex, which has bounds of its own.
    if (seat->session->is_brought()) {
      if (TakeAll(seat.get())) {
        worked = true;
        steps_.HoldWorkersFor(*seat->job);
      }
      continue;
    }
    in_flight += seat->session->lane().bytes_in_flight();
    if (options_.shared_copy_bytes == 0)
      most = std::max(
          most, seat->session->lane().event_fd() >= 0 ? kSharedCopyBytes : kSharedCopyBytesInLoop);
  }

  const auto share = [this](size_t i) -> Share& { return tables_.jobs[i]->copy_share; };
  const auto take = [this, &in_flight](size_t i) {
    const uint64_t bytes = ServeOneSeat(tables_.jobs[i].get());
    in_flight += bytes > kRequestCost ? bytes - kRequestCost : 0;
    return bytes;
  };

  for (size_t left = kRequestsPerTurn * tables_.seats.size(); left > 0 && in_flight < most;
       --left) {
    if (!copies_.Serve(tables_.jobs.size(), share, take)) break;
    worked = true;
  }
  if (in_flight >= most) worked |= ServeOutOfTurn();
  for (const auto& seat : tables_.seats) {
    if (seat->session != nullptr && seat->violation == nullptr)
      worked |= ProgressCopies(seat.get());
  }
  return worked;
}

// A job without copies in flight begins one out of turn: it need not wait while the copies of other
// jobs fill what is allowed in flight.
bool ServeLoop::ServeOutOfTurn() {
  const auto has_copies = [](const Seat* seat) {
    return seat != nullptr && seat->session != nullptr &&
           seat->session->lane().bytes_in_flight() > 0;
  };

  bool worked = false;
  for (const auto& job : tables_.jobs) {
    while (!std::any_of(job->seats.begin(), job->seats.end(), has_copies) &&
           copies_.ServeOutOfTurn(&job->copy_share, [&] { return ServeOneSeat(job.get()); })) {
      worked = true;
    }
  }
  return worked;
}

// Serves the next rank of the job that has something to do: its parked requests that may go on now,
// or one new request. Returns the cost; 0: no rank has any.
uint64_t ServeLoop::ServeOneSeat(Job* job) {
  if (job->suspended || job->brings_rcache) return 0;
  const size_t ranks = job->seats.size();
  for (size_t i = 0; i < ranks; ++i) {
    job->next_seat = (job->next_seat + 1) % ranks;
    Seat* seat = job->seats[job->next_seat];
    if (seat == nullptr || seat->session == nullptr || seat->violation != nullptr || seat->leaving)
      continue;

    const uint64_t before = seat->session->lane().bytes_started();
    if (!dispatcher_.RetryParked(seat) && !dispatcher_.TakeRequests(seat, 1)) continue;
    steps_.HoldWorkersFor(*job);
    return seat->session->lane().bytes_started() - before + kRequestCost;
  }
  return 0;
}

bool ServeLoop::RunInlineWork() {
  if (!parts_.team->is_inline() || !options_.run_inline_work || parts_.team->waiting() == 0)
    return false;
  parts_.team->RunOne(0);
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

    const int64_t now = parts_.clock->NowNs();
    if (idle_turns == kIdleTurnsPerClockRead) idle_since_ns_ = now;
    if (now - idle_since_ns_ < spin_.ns()) continue;
    Sleep();
    spin_.Woke(parts_.clock->NowNs() - idle_since_ns_);
    idle_turns = 0;
  }
}

bool ServeLoop::CanSleep() const {
  return std::all_of(tables_.seats.begin(), tables_.seats.end(), [](const auto& seat) {
    return seat->session == nullptr || seat->session->lane().size() == 0 ||
           seat->session->lane().event_fd() >= 0 || seat->session->is_brought();
  });
}

// Flags and copies of a GPU raise no event, so the loop polls them.
bool ServeLoop::MustPoll() const {
  if (tables_.gpus.empty()) return false;
  return std::any_of(tables_.seats.begin(), tables_.seats.end(),
                     [](const auto& seat) {
                       return seat->session != nullptr && seat->session->MustBePolled();
                     }) ||
         std::any_of(tables_.jobs.begin(), tables_.jobs.end(),
                     [](const auto& job) { return job->gpus.MustBePolled(); });
}

// Returns false while the system has no room to watch one of them; the loop then sleeps only
// briefly.
bool ServeLoop::WatchNewSeats() {
  bool all = true;
  for (const auto& seat : tables_.seats) {
    if (seat->session == nullptr || seat->watched) continue;
    const int doorbell_fd = seat->session->port().doorbell_fd(),
              stream_fd = seat->session->lane().event_fd();

    seat->watched = tables_.wake_set.AddShared(doorbell_fd);
    if (seat->watched && stream_fd >= 0 && !tables_.wake_set.Add(stream_fd)) {
      tables_.wake_set.Remove(doorbell_fd);
      seat->watched = false;
    }
    all &= seat->watched;
  }
  return all;
}

void ServeLoop::ClearEvents() {
  parts_.events->ClearEvent();
  parts_.saved->ClearEvent();
  parts_.team->ArmDoneEvent();
  if (parts_.tier != nullptr) parts_.tier->ClearEvent();
  for (const auto& seat : tables_.seats) {
    if (seat->session != nullptr) seat->session->lane().ClearEvent();
  }
}

void ServeLoop::AnnounceSleep(bool sleeping) {
  for (const auto& seat : tables_.seats) {
    if (seat->session != nullptr) seat->session->port().SetSleeping(sleeping);
  }
}

// After a sleep, answers the clients before anything else: whatever is read between the wake-up and
// the answer has left the caches, and where the system woke the loop on the client's own CPU, the
// client goes on only when the loop sleeps again. Returns false when requests come so often that
// spinning is better.
bool ServeLoop::AnswerAndSleep() {
  if (tables_.handing_over || tables_.seats.empty()) return false;
  const int64_t begin = parts_.clock->NowNs();
  ServeSeats();
  WakeAnswered();
  AnnounceSleep(true);  // a client rings once for each announced sleep

  const int64_t now = parts_.clock->NowNs();
  if (!TP_PLANTED("loop.answer_uncounted")) CountTurn(now - begin);
  // The spin budget is told of this silence.
  if (now - idle_since_ns_ <= kLongSilenceNs) return false;
  idle_since_ns_ = now;
  return true;
}

// What is queued after the flags were set and the events cleared makes a descriptor readable; the
// turn in between finds what was queued before.
void ServeLoop::Sleep() {
  if (!CanSleep()) return;
  int64_t sleep_ns = WatchNewSeats() ? kSleepNsMax : kSleepNsUnwatched;
  // A read or a write that failed has to be repeated soon.
  if (parts_.tier != nullptr && parts_.tier->next_retry_ns() != INT64_MAX)
    sleep_ns = std::min(sleep_ns, kSleepNsUnwatched);
  AnnounceSleep(true);
  ClearEvents();

  while (!Turn() && CanSleep()) {
    const bool polls = MustPoll();
    const int64_t held_ns = steps_.held_until_ns() > 0 ? kHeldForHighNs : INT64_MAX;
    const bool only_clients =
        tables_.wake_set.Wait(polls ? kGpuPollNs : std::min(sleep_ns, held_ns));

    if (polls) {
      ClearEvents();
    } else if (!only_clients || !AnswerAndSleep()) {
      break;
    }
  }
  AnnounceSleep(false);
}

}  // namespace tidepool::memserver
