#include "memserver/update/worker_team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <new>

#include "base/buggify.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/units.h"
#include "optim/kernels/float_mode.h"

namespace tidepool::memserver {
namespace {

// Checks of the ring between two reads of the clock: about a microsecond.
constexpr uint32_t kLooksPerClockRead = 32;
// As in the serve loop: where cores are few, spinning takes them from the trainers.
constexpr int64_t kSpinNsMany = 100'000, kSpinNsFew = 20'000;
constexpr uint32_t kFewCpus = 4;
// Bytes that a worker touches in about 100 us. While all workers have less than that in hand, more
// items than `ahead` may wait: up to kSmallAhead per worker.
constexpr uint64_t kSmallBytes = 4 * kMiB;
constexpr uint32_t kSmallAhead = 64;
// How many full queues of work may begin before finished work is taken.
constexpr uint32_t kTurnsAhead = 4;

int64_t SpinNs(int64_t wanted) {
  if (wanted >= 0) return wanted;
  return std::thread::hardware_concurrency() <= kFewCpus ? kSpinNsFew : kSpinNsMany;
}

uint32_t WorkersOf(uint32_t threads) {
  return std::max<uint32_t>(threads, 1);
}

uint32_t WorkersOf(const WorkerTeamOptions& options) {
  return options.threads > 0 ? options.threads : options.inline_workers;
}

}  // namespace

uint64_t WorkerTeam::UndoBytes(uint32_t threads) {
  return WorkersOf(threads) * 2 * sizeof(optim::UndoArea);
}

WorkerTeam::WorkerTeam(const WorkerTeamOptions& options, std::span<std::byte> undo)
    : kernels_(optim::SelectKernels(options.isa)),
      queue_min_(WorkersOf(options) * (1 + options.ahead)),
      queue_max_(options.threads == 0 ? queue_min_
                                      : std::max(queue_min_, options.threads * kSmallAhead)),
      clock_(options.clock),
      spin_ns_(SpinNs(options.spin_ns)),
      done_(std::max(kTurnsAhead * queue_min_, 2 * queue_max_)),
      ring_(queue_max_) {
  TP_CHECK(undo.size() >= UndoBytes(WorkersOf(options)), "the undo areas fit the memory given");
  TP_CHECK(reinterpret_cast<uintptr_t>(undo.data()) % alignof(optim::UndoArea) == 0,
           "undo areas start on a cache line");

  TP_CHECK(options.threads == 0 || options.clock != nullptr, "threads are given a clock");

  auto* areas = reinterpret_cast<optim::UndoArea*>(undo.data());
  for (uint32_t i = 0; i < WorkersOf(options); ++i) {
    workers_.push_back(
        std::make_unique<Worker>(kernels_, std::span<optim::UndoArea, 2>(areas + 2 * i, 2)));
  }

  SetTuning(options.tuning);
  queue_.reserve(queue_max_);
  for (uint32_t i = 0; i < options.threads; ++i) nices_.push_back(std::make_unique<ThreadNice>());
  for (uint32_t i = 0; i < options.threads; ++i) threads_.emplace_back([this, i] { RunThread(i); });
  for (uint32_t i = 0; i < std::min<size_t>(options.threads, options.cpus.size()); ++i)
    Pin(i, options.cpus[i]);
}

WorkerTeam::~WorkerTeam() {
  stopping_.store(true, std::memory_order_seq_cst);
  { const std::lock_guard lock(sleep_mutex_); }  // a worker that had not seen it is asleep now
  work_there_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerTeam::Pin(uint32_t index, uint32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  if (pthread_setaffinity_np(threads_[index].native_handle(), sizeof set, &set) != 0) {
    LogWarn("a worker could not be pinned to its CPU; it runs where the system puts it",
            {{"worker", index}, {"cpu", cpu}});
  }
}

void WorkerTeam::SetTuning(const optim::Tuning& tuning) {
  tuning_ = tuning;
  for (const auto& worker : workers_) worker->SetTuning(tuning);
}

TP_HOT uint32_t WorkerTeam::waiting() const {
  return is_inline() ? static_cast<uint32_t>(queue_.size()) : ring_.size();
}

TP_HOT bool WorkerTeam::HasRoom() const {
  const bool small = bytes_in_hand_ < WorkersOf(threads()) * kSmallBytes;
  const bool room = waiting() < (small ? queue_max_ : queue_min_) && in_hand_ < done_.capacity() &&
                    (is_inline() || ring_.HasRoom());
  return room && !TP_BUGGIFY("team.full");
}

void WorkerTeam::Push(const Work& work) {
  TP_CHECK(waiting() < queue_max_ && in_hand_ < done_.capacity(),
           "Push only when the team has room");
  ++in_hand_;
  bytes_in_hand_ += BytesTouched(work);
  if (is_inline()) {
    queue_.push_back(work);
    return;
  }

  had_background_ |= work.background;
  if (!work.background) urgent_.fetch_add(1, std::memory_order_seq_cst);
  TP_CHECK(ring_.TryPush(work), "Push only when the team has room");
  if (!work.background && had_background_) RaiseAll();
  if (sleepers_.load(std::memory_order_seq_cst) == 0 || TP_PLANTED("update.sleeper_not_woken"))
    return;
  // A worker that found the ring empty before this push is asleep now.
  { const std::lock_guard lock(sleep_mutex_); }
  work_there_.notify_one();
}

// The first free worker takes what waits.
void WorkerTeam::RaiseAll() {
  for (const auto& nice : nices_) nice->Raise();
}

TP_HOT bool WorkerTeam::TakeDone(std::vector<WorkDone>* done) {
  if (!done_.TakeAll(done)) return false;
  in_hand_ -= static_cast<uint32_t>(done->size());
  for (const WorkDone& one : *done) bytes_in_hand_ -= one.bytes;
  return true;
}

void WorkerTeam::RunOne(uint32_t index, uint32_t worker) {
  TP_CHECK(is_inline() && index < queue_.size(), "RunOne takes waiting work of an inline team");
  const Work work = queue_[index];
  queue_.erase(queue_.begin() + index);
  const optim::FlushDenormals mode;
  done_.Push(DoAs(worker, work));
}

WorkDone WorkerTeam::DoAs(uint32_t worker, const Work& work) {
  const bool timed = work.timed && clock_ != nullptr;
  const int64_t begin_ns = timed ? clock_->NowNs() : 0;
  WorkDone done = workers_[worker]->Do(work);
  if (timed) {
    done.begin_ns = begin_ns;
    done.end_ns = clock_->NowNs();
    done.worker = worker;
  }
  return done;
}

void WorkerTeam::RunThread(uint32_t index) {
  const optim::FlushDenormals mode;
  if (index == 1 && TP_PLANTED("update.denormals_in_one_worker"))
    _mm_setcsr(_mm_getcsr() & ~0x8040U);
  ThreadNice& nice = *nices_[index];
  nice.Begin();
  Work work;
  while (Take(&work, &nice)) {
    if (!work.background) urgent_.fetch_sub(1, std::memory_order_relaxed);
    nice.SetBelow(work.background);
    // Here or in Push: one of the two sees the other.
    if (work.background && urgent_.load(std::memory_order_seq_cst) > 0) nice.Raise();
    done_.Push(DoAs(index, work));
  }
}

// Takes the next item; false when the team ends.
bool WorkerTeam::Take(Work* work, ThreadNice* nice) {
  int64_t idle_since = -1;
  for (uint32_t looks = 1; !stopping_.load(std::memory_order_relaxed); ++looks) {
    if (ring_.Pop(work)) return true;
    __builtin_ia32_pause();
    if (looks % kLooksPerClockRead != 0) continue;

    const int64_t now = clock_->NowNs();
    if (idle_since < 0) idle_since = now;
    if (now - idle_since < spin_ns_) continue;
    nice->SetBelow(false);  // the lock in there is also the loop's
    Sleep();
    idle_since = -1;
  }
  return false;
}

void WorkerTeam::Sleep() {
  std::unique_lock lock(sleep_mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  work_there_.wait(lock,
                   [this] { return stopping_.load(std::memory_order_seq_cst) || !ring_.Empty(); });
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace tidepool::memserver
