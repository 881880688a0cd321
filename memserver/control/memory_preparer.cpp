#include "memserver/control/memory_preparer.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/planted.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "memserver/traffic/gpu_states.h"
#include "shm/flag_pages.h"
#include "shm/frames.h"

namespace tidepool::memserver {

namespace {

constexpr size_t kZeroPiece = 64 * kMiB;  // checks for the stop mark are this far apart: about 10
                                          // ms

// Checks that memory has the form it claims, before a GPU is opened for it: a handle comes in
// memory that is sealed against writing, an allocation does not. Device::Import checks the rest.
Status CheckForm(const ReturnedMemory& memory) {
  const int seals = fcntl(memory.rcache.get(), F_GET_SEALS);
  const bool is_handle = seals >= 0 && (seals & F_SEAL_WRITE) != 0;
  if (is_handle == (memory.kind.form == shm::MemoryForm::kIpc)) return Status();
  return Status(ErrorId::kHandshakeBad,
                is_handle ? "an exported allocation was announced; a handle in sealed memory came"
                          : "a handle in sealed memory was announced; another descriptor came");
}

}  // namespace

Result<std::vector<UniqueFd>> DescriptorsFor(PreparedMemory* memory, bool comes_back) {
  static_assert(shm::kFdSubmission == 0 && shm::kFdCompletion == 1 && shm::kFdRcache == 2 &&
                shm::kFdDoorbell == 3);
  static_assert(shm::kResumedSubmission == 0 && shm::kResumedCompletion == 1 &&
                shm::kResumedDoorbell == 2);

  std::vector<UniqueFd> fds;
  fds.push_back(Duplicate(memory->port->submission_fd()));
  fds.push_back(Duplicate(memory->port->completion_fd()));
  if (!comes_back) fds.push_back(std::move(memory->rcache_fd));
  fds.push_back(Duplicate(memory->port->doorbell_fd()));
  for (const UniqueFd& fd : fds) {
    if (!fd.valid())
      return Status(ErrorId::kTooManySessions, "memserver has no file descriptor left");
  }
  return fds;
}

MemoryPreparer::MemoryPreparer(device::Device* device, GpuTable* gpus)
    : device_(device), gpus_(gpus), thread_([this] { Run(); }) {}

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

Result<std::unique_ptr<device::Memory>> MemoryPreparer::RcacheOf(const Task& task,
                                                                 UniqueFd* exported) {
  if (!task.memory.rcache.valid())
    return device_->CreateExportable(task.grant.rcache_bytes, exported);
  return device_->Import(task.memory.rcache, task.grant.rcache_bytes);
}

Result<ImportedRcache> MemoryPreparer::BroughtOf(const Task& task, UniqueFd* exported) {
  if (gpus_ == nullptr) return Status(ErrorId::kCudaUnavailable, "this memserver uses no GPU");
  TP_RETURN_IF_ERROR(CheckForm(task.memory));
  TP_ASSIGN_OR_RETURN(Gpu * gpu, gpus_->Open(task.memory.kind.gpu));
  ImportedRcache brought{.gpu = gpu, .flags = nullptr, .flags_base = task.memory.flags_base};
  auto flags = task.memory.flags.valid() ? device_->Import(task.memory.flags, shm::kFlagBytes)
                                         : device_->CreateExportable(shm::kFlagBytes, exported);
  TP_ASSIGN_OR_RETURN(brought.flags, std::move(flags));
  TP_ASSIGN_OR_RETURN(brought.registered,
                      gpu->device().Register(brought.flags->data(), brought.flags->bytes()));
  return brought;
}

Status MemoryPreparer::MakeMemory(const Task& task, PreparedMemory* prepared) {
  if (!task.memory.kind.is_brought()) {
    TP_ASSIGN_OR_RETURN(prepared->rcache, RcacheOf(task, &prepared->rcache_fd));
  } else {
    TP_ASSIGN_OR_RETURN(prepared->brought, BroughtOf(task, &prepared->rcache_fd));
    TP_ASSIGN_OR_RETURN(prepared->rcache, prepared->brought.gpu->device().Import(
                                              task.memory.rcache, task.grant.rcache_bytes));
    if (task.grant.gpu_state_bytes > 0) {
      TP_ASSIGN_OR_RETURN(prepared->brought.states,
                          MakeGpuStates(prepared->brought.gpu, task.grant.gpu_state_bytes));
    }
  }

  TP_ASSIGN_OR_RETURN(prepared->port, shm::ServerPort::Create(task.grant.session, task.protocol));
  return Status();
}

void MemoryPreparer::Zero(const ReserveGranted& grant) const {
  for (std::span<std::byte> rest : grant.to_zero) {
    while (!rest.empty() && !TP_PLANTED("jobs.memory_not_zeroed") &&
           !stopping_.load(std::memory_order_relaxed)) {
      const size_t piece = std::min(rest.size(), kZeroPiece);
      std::memset(rest.data(), 0, piece);
      rest = rest.subspan(piece);
    }
  }
}

StatesImported MemoryPreparer::Import(const ImportStates& asked) {
  StatesImported imported{.job = asked.job, .rank = asked.rank, .result = {}};
  auto gpu = gpus_ == nullptr
                 ? Result<Gpu*>(Status(ErrorId::kCudaUnavailable, "this memserver uses no GPU"))
                 : gpus_->Open(asked.gpu);
  auto states = gpu.ok() ? ImportGpuStates(*gpu, asked.exported, asked.bytes)
                         : Result<GpuStateMemory>(gpu.status());
  imported.result = states.status();
  if (states.ok()) imported.states = std::move(states).value();
  return imported;
}

PreparedMemory MemoryPreparer::Prepare(const Task& task) {
  PreparedMemory prepared;
  if (task.import) {
    prepared.imported = Import(*task.import);
    return prepared;
  }
  prepared.connection = task.grant.connection;
  prepared.result = MakeMemory(task, &prepared);
  if (prepared.result.ok()) Zero(task.grant);
  return prepared;
}

}  // namespace tidepool::memserver
