#include "bench/drive/nvme_step.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/drive/drive_peer.h"
#include "bench/harness/rounds.h"
#include "bench/harness/served_job.h"
#include "bench/harness/server_process.h"
#include "memserver/traffic/state_tier.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kChunkElements = uint64_t{4} << 20;
constexpr double kStepTarget = 0.9;
constexpr uint64_t kStagingMax = 256 * kMiB;

JobShape ShapeOf(const OptimizerStepTask& task, const std::string& name) {
  JobShape shape{.name = name};
  shape.spin_ns = client::ClientOptions().spin_ns;
  shape.chunk_elements = std::min(kChunkElements, RoundUp(task.elements, 16));
  shape.chunks = static_cast<uint32_t>(DivideUp(task.elements, shape.chunk_elements));
  shape.rcache_bytes = RoundUp(shape.chunk_elements * sizeof(float), kPageBytes);
  return shape;
}

class StepSide {
 public:
  StepSide(const JobShape& shape, const std::vector<std::string>& where)
      : server_(OrDie(ServerProcess::Start(FlagsOf(shape, where)))),
        job_(shape, server_.socket_dir()) {}

  double StepSeconds() {
    job_.Step();
    return job_.update_seconds();
  }
  void Detach() { job_.Detach(); }

 private:
  static std::vector<std::string> FlagsOf(const JobShape& shape,
                                          const std::vector<std::string>& where) {
    std::vector<std::string> flags{"--pool",         PoolFlagOf(shape),
                                   "--rcache-limit", std::to_string(2 * shape.rcache_bytes),
                                   "--keeper",       "none",
                                   "--log-level",    "warn"};
    flags.insert(flags.end(), where.begin(), where.end());
    return flags;
  }
  ServerProcess server_;
  ServedJob job_;
};

// The least time of a step: its traffic at fio's speed, in each direction and both at once, plus
// the update itself.
class Bound {
 public:
  explicit Bound(const std::string& directory) : directory_(directory) {
    for (const char* direction : {"read", "write", "rw"})
      ways_.emplace_back(direction, BestFioWay(directory, direction));
  }
  double Seconds(double gib_each_way, double host_seconds) const {
    SteadyClock clock;
    double bound = host_seconds;
    for (const auto& [direction, way] : ways_) {
      clock.SleepNs(kDrivePauseNs);
      const auto peer = MeasureFio(directory_, direction, way);
      if (peer)
        bound = std::max(bound, (direction == "rw" ? 2 : 1) * gib_each_way / peer->gib_per_second);
    }
    return bound;
  }

 private:
  const std::string directory_;
  std::vector<std::pair<std::string, FioWay>> ways_;
};

Row RowOf(const std::string& name, double value, const char* unit) {
  return {.bench = "nvme",
          .row = name,
          .value = value,
          .unit = unit,
          .against = "",
          .ratio = {},
          .target = {}};
}

}  // namespace

void MeasureOptimizerStep(const OptimizerStepTask& task, RowPrinter* rows) {
  const JobShape shape = ShapeOf(task, "bench-nvme");
  const uint64_t drive_bytes = shm::NvmeBytesOf(SpecOf(shape), 0);
  const double gib_each_way = static_cast<double>(drive_bytes) / 2 / static_cast<double>(kGiB);

  const std::string states = task.directory + "/server";
  std::filesystem::create_directory(states);
  std::filesystem::permissions(states, std::filesystem::perms::owner_all);
  StepSide drive(shape, {"--nvme", states + ":" + std::to_string(RoundUp(drive_bytes, kMiB)),
                         "--states-on", "nvme"});
  StepSide host(ShapeOf(task, "bench-host"), {});
  const Bound bound(task.directory);

  std::vector<double> drive_seconds, host_seconds, ratios;
  SteadyClock clock;
  for (uint64_t round = 0; round <= task.rounds; ++round) {
    clock.SleepNs(kDrivePauseNs);
    const double of_drive = drive.StepSeconds(), of_host = host.StepSeconds();
    if (round == 0) continue;  // not counted
    drive_seconds.push_back(of_drive);
    host_seconds.push_back(of_host);
    ratios.push_back(bound.Seconds(gib_each_way, of_host) / of_drive);
  }

  const std::string parameters =
      std::to_string(shape.chunks * shape.chunk_elements >> 20) + " Mi parameters";
  Row step = RowOf("optimizer step of " + parameters + ", fp32 states on the drive",
                   Median(drive_seconds), "s");
  if (HasFio()) {
    step.against =
        "the bound: bytes at fio's speed (read, write, both at once), the update on the host";
    step.ratio = Median(ratios);
    step.target = kStepTarget;
  }

  rows->Add(step, SpreadOf(HasFio() ? ratios : drive_seconds));
  rows->Add(RowOf("the same with the states on the host", Median(host_seconds), "s"),
            SpreadOf(host_seconds));

  const auto staging =
      static_cast<double>(memserver::StateTier::MemoryBytes(1)) / static_cast<double>(kMiB);
  Row memory = RowOf("memory of the staging, for all jobs", staging, "MiB");
  memory.against = "256 MiB";
  memory.ratio = static_cast<double>(kStagingMax) / static_cast<double>(kMiB) / staging;
  memory.target = 1;
  rows->Add(memory);

  drive.Detach();
  host.Detach();
}

}  // namespace tidepool::bench
