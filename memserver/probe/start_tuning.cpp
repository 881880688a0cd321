#include "memserver/probe/start_tuning.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/log.h"
#include "memserver/jobs/limits.h"
#include "memserver/update/tuning.h"

namespace tidepool::memserver {

device::CopyTuning TuneCopies(device::HostDevice* device, HostPool* pool, bool adopted) {
  if (adopted) return device->Tune({}, 0);
  const uint64_t free[] = {
      std::min(kTuneCopiesBytes, pool->largest_free_bytes() / kPageBytes * kPageBytes)};
  std::vector<Extent> scratch;
  if (free[0] < device::kTuneBytesMin || !pool->Take(free, &scratch)) return device->Tune({}, 0);
  const device::CopyTuning tuning =
      device->Tune({scratch[0].data, scratch[0].bytes}, kTuneCopiesNs);
  pool->Release(scratch);
  return tuning;
}

optim::Tuning TuneUpdates(const WorkerTeam& team, HostPool* pool, const Clock& clock) {
  const TuningOptions tuning{.workers = team.threads(), .isa = team.isa()};
  const uint64_t free = std::min(pool->largest_free_bytes(), kTuningScratchWanted * tuning.workers);
  std::vector<Extent> scratch;
  if (free < kTuningScratchMin * tuning.workers ||
      !pool->Take(std::array{free / kPageBytes * kPageBytes}, &scratch))
    return {};

  const TuningResult result =
      MeasureTuning(tuning, {scratch.front().data, scratch.front().bytes}, clock);
  pool->Release(scratch);
  LogInfo("update tuned",
          {{"prefetch", result.tuning.prefetch_elements},
           {"gain", result.gain},
           {"rounds", result.rounds},
           {"took", LogSeconds{static_cast<double>(result.took_ns) / kNsPerSecond}}});
  return result.tuning;
}

}  // namespace tidepool::memserver
