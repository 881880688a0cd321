#include "memserver/jobs/memory_preparer.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/planted.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "shm/frames.h"

namespace tidepool::memserver {

namespace {

constexpr size_t kZeroPiece = 64 * kMiB;  // between two looks at the stop mark: about 10 ms

}  // namespace

Result<std::vector<UniqueFd>> DescriptorsFor(PreparedMemory* memory, bool comes_back) {
  static_assert(shm::kFdSubmission == 0 && shm::kFdCompletion == 1 && shm::kFdRcache == 2 && shm::kFdDoorbell == 3);
  static_assert(shm::kResumedSubmission == 0 && shm::kResumedCompletion == 1 && shm::kResumedDoorbell == 2);
  std::vector<UniqueFd> fds;
  fds.push_back(Duplicate(memory->port->submission_fd()));
  fds.push_back(Duplicate(memory->port->completion_fd()));
  if (!comes_back) fds.push_back(std::move(memory->rcache_fd));
  fds.push_back(Duplicate(memory->port->doorbell_fd()));
  for (const UniqueFd& fd : fds) {
    if (!fd.valid()) return Status(ErrorId::kTooManySessions, "memserver has no file descriptor left");
  }
  return fds;
}

MemoryPreparer::MemoryPreparer(device::Device* device) : device_(device), thread_([this] { Run(); }) {}

MemoryPreparer::~MemoryPreparer() {
  stopping_.store(true, std::memory_order_release);
  tasks_.Push(Task{});  // wakes the thread
  thread_.join();
}

void MemoryPreparer::Run() {
  std::vector<Task> tasks;
  while (!stopping_.load(std::memory_order_acquire)) {
    pollfd entry{tasks_.event_fd(), POLLIN, 0};
    poll(&entry, 1, -1);
    tasks_.ClearEvent();
    tasks_.TakeAll(&tasks);
    for (Task& task : tasks) {
      if (stopping_.load(std::memory_order_acquire)) return;
      results_.Push(Prepare(task));
      // Its descriptor may be all that keeps a dead rank's rCache alive.
      if (!TP_PLANTED("jobs.returned_rcache_kept")) task = {};
    }
  }
}

Result<std::unique_ptr<device::Memory>> MemoryPreparer::RcacheOf(const Task& task, UniqueFd* exported) {
  if (!task.returned.valid()) return device_->CreateExportable(task.grant.rcache_bytes, exported);
  return device_->Import(task.returned, task.grant.rcache_bytes);
}

PreparedMemory MemoryPreparer::Prepare(const Task& task) {
  const ReserveGranted& grant = task.grant;
  PreparedMemory prepared;
  prepared.connection = grant.connection;
  for (std::span<std::byte> rest : grant.to_zero) {
    while (!rest.empty() && !TP_PLANTED("jobs.memory_not_zeroed") && !stopping_.load(std::memory_order_relaxed)) {
      const size_t piece = std::min(rest.size(), kZeroPiece);
      std::memset(rest.data(), 0, piece);
      rest = rest.subspan(piece);
    }
  }
  auto rcache = RcacheOf(task, &prepared.rcache_fd);
  if (!rcache.ok()) {
    prepared.result = rcache.status();
    return prepared;
  }
  auto port = shm::ServerPort::Create(grant.session, task.protocol);
  if (!port.ok()) {
    prepared.result = port.status();
    return prepared;
  }
  prepared.rcache = std::move(rcache).value();
  prepared.port = std::move(port).value();
  return prepared;
}

}  // namespace tidepool::memserver
