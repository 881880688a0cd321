#include "memserver/update/worker_team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <new>

#include "base/buggify.h"
#include "base/check.h"
#include "base/log.h"
#include "base/planted.h"
#include "optim/float_mode.h"

namespace tidepool::memserver {
namespace {

uint32_t WorkersOf(uint32_t threads) {
  return std::max<uint32_t>(threads, 1);
}

uint32_t WorkersOf(const WorkerTeamOptions& options) {
  return options.threads > 0 ? options.threads : options.inline_workers;
}

// CPUs that this process may use, in ascending order.
std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

uint64_t WorkerTeam::UndoBytes(uint32_t threads) {
  return WorkersOf(threads) * 2 * sizeof(optim::UndoArea);
}

WorkerTeam::WorkerTeam(const WorkerTeamOptions& options, std::span<std::byte> undo)
    : kernels_(optim::SelectKernels(options.isa)), queue_max_(WorkersOf(options) * (1 + options.ahead)) {
  TP_CHECK(undo.size() >= UndoBytes(WorkersOf(options)), "the undo areas fit the memory given");
  TP_CHECK(reinterpret_cast<uintptr_t>(undo.data()) % alignof(optim::UndoArea) == 0, "undo areas start on a cache line");
  auto* areas = reinterpret_cast<optim::UndoArea*>(undo.data());
  for (uint32_t i = 0; i < WorkersOf(options); ++i) {
    workers_.push_back(std::make_unique<Worker>(kernels_, std::span<optim::UndoArea, 2>(areas + 2 * i, 2)));
  }
  queue_.reserve(queue_max_);
  for (uint32_t i = 0; i < options.threads; ++i) threads_.emplace_back([this, i] { RunThread(i); });
  if (!options.pin) return;
  for (uint32_t i = 0; i < options.threads; ++i) Pin(i);
}

WorkerTeam::~WorkerTeam() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    queue_.clear();
  }
  work_there_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// Workers take the CPUs at the end of the allowed set, so that the first ones stay for the loop and the trainers' launchers.
void WorkerTeam::Pin(uint32_t index) {
  const std::vector<int> cpus = AllowedCpus();
  if (cpus.size() <= threads_.size()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus[cpus.size() - 1 - index], &set);
  if (pthread_setaffinity_np(threads_[index].native_handle(), sizeof set, &set) != 0) {
    LogWarn("a worker could not be pinned to its CPU; it runs where the system puts it", {{"worker", index}});
  }
}

bool WorkerTeam::HasRoom() const {
  if (TP_BUGGIFY("team.full")) return false;
  const std::lock_guard lock(mutex_);
  return queue_.size() < queue_max_;
}

void WorkerTeam::Push(const Work& work) {
  {
    const std::lock_guard lock(mutex_);
    TP_CHECK(queue_.size() < queue_max_, "Push only when the team has room");
    queue_.push_back(work);
  }
  work_there_.notify_one();
}

uint32_t WorkerTeam::waiting() const {
  const std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(queue_.size());
}

void WorkerTeam::RunOne(uint32_t index, uint32_t worker) {
  TP_CHECK(is_inline() && index < queue_.size(), "RunOne takes waiting work of an inline team");
  const Work work = queue_[index];
  queue_.erase(queue_.begin() + index);
  const optim::FlushDenormals mode;
  done_.Push(workers_[worker]->Do(work));
}

void WorkerTeam::RunThread(uint32_t index) {
  const optim::FlushDenormals mode;
  if (index == 1 && TP_PLANTED("update.denormals_in_one_worker")) _mm_setcsr(_mm_getcsr() & ~0x8040U);
  while (true) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      work_there_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      work = queue_.front();
      queue_.erase(queue_.begin());
    }
    done_.Push(workers_[index]->Do(work));
  }
}

}  // namespace tidepool::memserver
