#include "tests/process/rig/kept_states.h"

#include <memory>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "device/host/host_device.h"
#include "memserver/kept_memory.h"
#include "memserver/loop/serve_loop.h"
#include "shm/socket_path.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::testing {
namespace {

using memserver::Chunk;
using memserver::Job;

KeptStates StatesOf(const Job& job) {
  KeptStates states;
  states.version = job.states->sealed_version();
  const auto append = [&states](const void* data, uint64_t bytes) {
    const auto* first = static_cast<const std::byte*>(data);
    states.bytes.insert(states.bytes.end(), first, first + bytes);
  };
  for (ChunkId id = 0; id < job.spec().chunks.size(); ++id) {
    const Chunk& chunk = job.states->chunk(id);
    const shm::PlaneBytes bytes = shm::PlaneBytesOf(job.spec(), id);
    append(chunk.planes.master, bytes.master);
    append(chunk.planes.momentum, bytes.momentum);
    append(chunk.planes.variance, bytes.variance);
    append(chunk.planes.param16, bytes.param16);
  }
  return states;
}

}  // namespace

Result<KeptStates> ReadKeptStates(const std::string& socket_dir, const std::string& name) {
  memserver::KeeperStart start;
  start.clock = RealClock();
  start.socket_path = shm::KeeperSocketPath(socket_dir);
  start.lease_ms = 60'000;  // it goes on holding when `keeper` ends
  memserver::KeptHolder keeper(memserver::KeeperChoice::kProcess, start);
  memserver::KeptMemoryOptions options;
  options.pool.bytes = kPageBytes;
  SteadyClock clock;
  TP_ASSIGN_OR_RETURN(std::vector<memserver::HeldMemory> held,
                      memserver::TakeKept(&keeper, &clock));
  TP_ASSIGN_OR_RETURN(const memserver::KeptMemory kept,
                      memserver::OpenKeptMemory(options, std::move(held), &keeper));
  device::HostDevice device({.clock = RealClock()});
  EventQueue<memserver::ControlEvent> events;
  EventQueue<memserver::ControlReply> replies;
  EventQueue<memserver::SaveRequest> saves;
  EventQueue<memserver::SaveResult> saved;
  memserver::WorkerTeam team({}, kept.pool->own_records());
  memserver::LoopNeighbours neighbours{
      &clock, &device, kept.pool.get(), kept.index.get(), &team, &events, &replies, &saves, &saved};
  memserver::LoopOptions loop_options;
  loop_options.times.lease_ns = 60 * kNsPerSecond;
  memserver::ServeLoop loop(neighbours, loop_options);
  TP_CHECK(loop.Recover(kept.contents).ok(), "nothing of it lies on NVMe");
  while (loop.Turn()) {
  }
  const Job* job = loop.tables().FindJob(name);
  if (job == nullptr) return Status(ErrorId::kStatesLost, "the keeper holds no job " + name);
  return StatesOf(*job);
}

}  // namespace tidepool::testing
