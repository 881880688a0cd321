// MemoryPreparer: a thread that prepares a session's memory: zeroes the job's pool memory and makes
// the rCache and the rings. For a rank that comes back it maps the rCache memory that the rank
// still has, made by a former memserver. For a rank that brings its rCache it opens that GPU,
// imports the memory, and makes the flag pages; refusals come before anything is zeroed.
//
// Start and Take... belong to the control thread. One thread does all tasks in order. A job's first
// rank's task comes first, so the job's pool memory is zero before any of its ranks attaches.
// Touching and zeroing cost 0.1 to 3 s a GiB, too much for the serve loop or the control thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/event_queue.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "device/device.h"
#include "memserver/control/handshake.h"
#include "memserver/control/mailbox.h"
#include "shm/port.h"

namespace tidepool::memserver {

// The memory made for one session.
struct PreparedMemory {
  ConnectionId connection = 0;
  Status result;  // the rest is incomplete unless ok
  std::unique_ptr<shm::ServerPort> port;
  std::unique_ptr<device::Memory> rcache;
  ImportedRcache brought;
  std::optional<StatesImported> imported = {};  // for ImportStates, the only field set
  // Descriptor to send to the client: the rCache's, or the flag pages' in its place; invalid if the
  // memory was the client's already.
  UniqueFd rcache_fd;
};

// The descriptors that go to the client, in the order of Welcome, or of Resumed for a rank that
// comes back. Errors: kTooManySessions.
Result<std::vector<UniqueFd>> DescriptorsFor(PreparedMemory* memory, bool comes_back);

class MemoryPreparer {
 public:
  // `gpus` may be null: no GPU can be opened.
  MemoryPreparer(device::Device* device, GpuTable* gpus);
  // Stops the current task at its next piece, and waits for the thread.
  ~MemoryPreparer();
  MemoryPreparer(const MemoryPreparer&) = delete;
  MemoryPreparer& operator=(const MemoryPreparer&) = delete;

  struct Task {
    ReserveGranted grant;
    ReturnedMemory memory;                    // that the rank brings or comes back with
    uint32_t protocol = 0;                    // protocol version of the session
    std::optional<ImportStates> import = {};  // instead of all of the above
  };
  void Start(Task task) { tasks_.Push(std::move(task)); }
  // The results, one for every Start.
  EventQueue<PreparedMemory>& results() { return results_; }

 private:
  void Run();
  PreparedMemory Prepare(const Task& task);
  // The session's rCache: mapped if it was returned or brought, else new, with its descriptor in
  // `exported`.
  Result<std::unique_ptr<device::Memory>> RcacheOf(const Task& task, UniqueFd* exported);
  // The GPU and the flags of a rank that brought its rCache; `exported` receives the descriptor of
  // new flag pages.
  Result<ImportedRcache> BroughtOf(const Task& task, UniqueFd* exported);
  StatesImported Import(const ImportStates& asked);
  Status MakeMemory(const Task& task, PreparedMemory* prepared);
  void Zero(const ReserveGranted& grant) const;

  device::Device* device_;
  GpuTable* gpus_;
  EventQueue<Task> tasks_;
  EventQueue<PreparedMemory> results_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last, because it uses all of the above
};

}  // namespace tidepool::memserver
