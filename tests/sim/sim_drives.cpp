// The drives of a simulated world.
#include <algorithm>

#include "shm/spec/state_bytes.h"
#include "tests/sim/sim_world.h"

namespace tidepool::memserver {
namespace {

// What the job takes of the pool at least, with its weights there.
uint64_t LeastHostBytes(const shm::JobSpec& spec) {
  return shm::HostStateBytesOf(spec, shm::MaySpill(spec) ? 0 : shm::kNoSpill).total();
}

}  // namespace

// Each fifth world has two drives: all states that may lie there do, or those that a smaller pool
// has no room for; in some of those it has none for all weights either.
void SimWorld::GiveDisks(uint64_t seed, WorldOptions* options) {
  uint64_t least = 0, bytes = 0;
  for (const Actor& actor : actors_) {
    const shm::JobSpec& spec = actor.job->spec();
    least = std::max(least, LeastHostBytes(spec));
    if (shm::MaySpill(spec)) bytes += shm::NvmeBytesOf(spec, 0);
  }
  if (seed % 5 != 0 || bytes == 0) return;
  options->nvme_directories = 2;
  options->nvme_bytes = bytes;
  options->nvme_seed = seed;
  // The clock leaps over leases while requests are out. What comes of those that are never answered
  // is shown by late_test.
  options->tier.lost_ns = 1'000'000 * kNsPerSecond;
  options->loop.live.states_on = seed % 2 == 0 ? StatesOn::kNvme : StatesOn::kAuto;
  if (seed % 2 != 0)
    options->pool_bytes = std::max(least, RoundUp(options->pool_bytes / 3 * 2, kPageBytes));
  if (seed % 20 == 15) {
    options->pool_bytes = 0;
    for (const Actor& actor : actors_)
      options->pool_bytes = std::max(options->pool_bytes, shm::LeastHostBytesOf(actor.job->spec()));
  }
  if (seed % 20 == 5) MakeDemotionsLikely(options);
}

// The last job may not spill, and has room only while the others are on NVMe: they go there when
// they have no ranks.
void SimWorld::MakeDemotionsLikely(WorldOptions* options) {
  options->pool_bytes = 0;
  for (const Actor& actor : actors_) {
    const shm::JobSpec& spec = actor.job->spec();
    const bool last = &actor == &actors_.back();
    options->pool_bytes += last ? shm::StateBytesOf(spec).total() : LeastHostBytes(spec);
  }
  // What the others leave is in pieces.
  options->pool_bytes += shm::StateBytesOf(actors_.back().job->spec()).records;
  options->pool_bytes = RoundUp(options->pool_bytes, kPageBytes);
  demotes_ = actors_.size() > 1;
  options->tier.late_ns = options->tier.lost_ns;
  if (demotes_) lease_ns_ = options->loop.times.lease_ns = 3600 * kNsPerSecond;
  options->loop.quotas = {{JobAccount(actors_.back().job->spec().name), {.nvme_limit = 0}}};
}

// Faults that are repeated away; those that end a job have tests of their own.
void SimWorld::ArmDisk(bool armed) {
  nvme::SimDisk& disk = world_->disk();
  disk.Pace(armed ? 3 : 0);
  for (const auto fault :
       {nvme::DiskFault::kShort, nvme::DiskFault::kAgain, nvme::DiskFault::kInterrupted})
    disk.Arm(fault, armed ? 50 : 0);
  for (const auto fault :
       {nvme::DiskFault::kReadError, nvme::DiskFault::kWriteError, nvme::DiskFault::kStall}) {
    disk.Arm(fault, armed ? 300 : 0);
  }
}

}  // namespace tidepool::memserver
