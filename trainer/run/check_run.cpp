#include "trainer/run/check_run.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/units.h"
#include "trainer/advice/pipeline_run.h"
#include "trainer/inputs/model_config.h"
#include "trainer/run/resuming/resume.h"
#include "trainer/inputs/run_files.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kQueueDefault = "24h";

Result<int64_t> DurationOf(const char* flag, const std::string& text) {
  Result<int64_t> duration = ParseDurationNs(text);
  return duration.ok() ? std::move(duration) : Status(duration.status()).Where(flag);
}

Status CheckJobName(const std::string& job) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  constexpr size_t kBytesMax = 63;
  if (!job.empty() && job.size() <= kBytesMax &&
      job.find_first_not_of(kAllowed) == std::string::npos)
    return {};
  return Status(ErrorId::kUsageError, "\"" + job + "\" cannot be the name of a job")
      .Where("--job " + job)
      .Why("it becomes part of paths and metrics")
      .Fix("give 1 to 63 letters, digits, dots, underscores and hyphens");
}

// The adapters' config.json must not overwrite their base's.
Status CheckBesideBase(const std::string& save_dir, const RunPlan& plan) {
  if (plan.base == nullptr || save_dir.empty()) return {};
  std::error_code unknown;
  if (!std::filesystem::equivalent(save_dir, DirectoryOfWeights(plan.base->file().path()), unknown))
    return {};
  return Status(ErrorId::kUsageError, "adapters cannot be saved where their base lies")
      .Where("--save " + save_dir)
      .Why("config.json there describes the base")
      .Fix("give another directory");
}

}  // namespace

Result<RunWaits> WaitsOf(const JobOptions& job, const ServerOptions& server) {
  RunWaits waits;
  if (!server.pool.empty()) {
    Result<uint64_t> pool = ParseSize(server.pool);
    if (!pool.ok()) return Status(pool.status()).Where("--pool");
    waits.pool_bytes = *pool;
  }

  TP_ASSIGN_OR_RETURN(waits.server_timeout_ns, DurationOf("--server-timeout", server.timeout));
  TP_ASSIGN_OR_RETURN(waits.rejoin_timeout_ns, DurationOf("--rejoin-timeout", job.rejoin_timeout));
  waits.slot_timeout_ns = waits.rejoin_timeout_ns;
  const std::string& queue = job.queue_timeout;
  TP_ASSIGN_OR_RETURN(waits.queue_timeout_ns,
                      DurationOf("--wait", queue.empty() ? kQueueDefault : queue));
  return waits;
}

Status SeatStaysTaken(const Status& taken, int64_t waited_ns, bool standalone) {
  const std::string longer =
      standalone ? "" : " (`memctl ps` names them), or wait longer with --rejoin-timeout";
  return Status(taken.id(), taken.what() + "; it has not left for " + FormatNs(waited_ns))
      .Where(taken.where())
      .Why(taken.why())
      .Fix("end the ranks of the run before" + longer);
}

Result<RunPlan> CheckPlan(const RunOptions& options, const RankPlace& place,
                          const std::string& job) {
  TP_RETURN_IF_ERROR(CheckJobName(job));
  TP_RETURN_IF_ERROR(WaitsOf(options.job, options.server).status());
  TP_ASSIGN_OR_RETURN(RunPlan plan, MakeRunPlan(options, place.world, place.rank, job));
  TP_RETURN_IF_ERROR(CheckPipelineRun(options, plan.shape, place.world));
  TP_RETURN_IF_ERROR(CheckBesideBase(options.output.save_dir, plan));
  return plan;
}

Result<CheckedRun> CheckRun(const RunOptions& options, const RankPlace& place,
                            const std::string& job) {
  CheckedRun checked;
  TP_ASSIGN_OR_RETURN(checked.plan, CheckPlan(options, place, job));
  if (place.rank == 0) TP_RETURN_IF_ERROR(CheckOutputs(options.output));
  // The ranks of one pipeline column train the same sequences.
  const uint32_t columns = ColumnsOf(options, place.world);
  TP_ASSIGN_OR_RETURN(checked.data, OpenRunCorpus(options, checked.plan.shape, columns,
                                                  ColumnOfRank(options, place.world, place.rank),
                                                  checked.plan.from.get()));
  return checked;
}

Status CheckLaunch(const RunOptions& options, uint32_t world) {
  RankPlace place;
  place.world = place.local_world = world;
  RunOptions settled = options;
  // Any share will do for this check: the ranks choose one, which is valid, too.
  if (settled.memory.rcache == "auto") settled.memory.rcache = "100%";
  if (settled.job.name.empty()) settled.job.name = "launch";
  TP_RETURN_IF_ERROR(ResumeWanted(settled.job, settled.server, place).status());
  return CheckRun(settled, place, settled.job.name).status();
}

}  // namespace tidepool::trainer
