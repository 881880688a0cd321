// The subcommands that start no training: estimate, launch, version.
#include <iostream>

#include "client/job_spec.h"
#include "trainer/launch/child_process.h"
#include "trainer/launch/rank_place.h"
#include "trainer/launch/spawn_ranks.h"
#include "trainer/run.h"
#include "trainer/run_plan.h"

#include <unistd.h>

namespace tidepool::trainer {
namespace {

int Ended(const Status& status) {
  if (status.ok()) return kExitOk;
  std::cerr << status.Format() << "\n";
  return status.exit_code();
}

Status Estimate(const RunOptions& options) {
  uint32_t world = options.ranks;
  if (world == 0) {
    TP_ASSIGN_OR_RETURN(const RankPlace place, DetectRank(ReadEnvironment(), getppid()));
    world = place.world;
  }
  if (world > client::kRanksMax) {
    return Status(ErrorId::kUsageError, std::to_string(world) + " ranks are more than one node can have")
        .Where("--ranks")
        .Fix("give at most 64");
  }
  TP_ASSIGN_OR_RETURN(const RunPlan plan, MakeRunPlan(options, world, 0, "estimate"));
  std::cout << (options.json ? PlanJson(plan) + "\n" : DescribePlan(plan));
  return {};
}

// A rank can only be started again where it then goes on with the job.
bool Resumes(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--resume=auto" || (arguments[i] == "--resume" && i + 1 < arguments.size() && arguments[i + 1] == "auto"))
      return true;
  }
  return false;
}

}  // namespace

int RunEstimate(const RunOptions& options) {
  return Ended(Estimate(options));
}

int RunLaunch(uint32_t ranks, uint32_t restarts, const std::vector<std::string>& arguments) {
  SpawnOptions spawn;
  Result<std::string> self = FindProgramBeside("trainer");
  if (!self.ok()) return Ended(self.status());
  spawn.ranks = ranks;
  spawn.program = self.value();
  spawn.arguments = arguments;
  spawn.max_restarts = Resumes(arguments) ? restarts : 0;
  Result<int> code = SpawnRanks(spawn);
  return code.ok() ? code.value() : Ended(code.status());
}

}  // namespace tidepool::trainer
