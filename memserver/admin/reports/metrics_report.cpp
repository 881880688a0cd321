#include "memserver/admin/reports/metrics_report.h"

#include <array>
#include <map>

#include "memserver/admin/reports/exposition.h"
#include "memserver/admin/reports/health_report.h"

namespace tidepool::memserver {
namespace {

uint64_t FlagOf(bool set) {
  return set ? 1 : 0;
}

// Writes a family with one sample per job, or more.
template <typename Of>
void OfJobs(const Snapshot& now, Exposition* out, Of sample) {
  for (const JobRow& job : now.jobs) sample(job, Label{"job_name", job.name}, out);
}

void WriteServer(const SnapshotLook& look, const ServerFacts& facts, Exposition* out) {
  const Snapshot& now = *look.snapshot;
  out->Gauge("tidepool_build_info",
             "The value is always 1; the labels name the release, the ABI and the build.")
      .Sample(
          uint64_t{1},
          {{"version", facts.version}, {"abi", std::to_string(facts.abi)}, {"build", facts.build}});

  out->Gauge("tidepool_uptime_seconds", "Seconds since this memserver started.")
      .Sample(static_cast<double>(now.uptime_ns) / kNsPerSecond);
  out->Gauge("tidepool_ready", "This is 1 while new jobs are taken, else 0.")
      .Sample(FlagOf(std::string_view(StateOf(now)) == "ready"));
  out->Gauge("tidepool_serve_loop_silent_seconds",
             "Seconds for which a question to the serve loop has been open; 0 when none is open.")
      .Sample(look.silent_seconds);
  out->Gauge("tidepool_optimizer_workers", "Number of threads that update chunks.")
      .Sample(uint64_t{now.workers});

  out->Counter("tidepool_serve_loop_turns_total", "Turns that the serve loop has made.")
      .Sample(now.turns);
  out->Counter("tidepool_serve_loop_long_turns_total",
               "Turns of the serve loop that took more than 5 ms.")
      .Sample(now.long_turns);

  out->Counter("tidepool_parameters_updated_total",
               "Parameters that the optimizer has updated, each counted once a step.")
      .Sample(now.parameters_updated);
  out->Counter("tidepool_sessions_ended_badly_total", "Ranks that were lost or expelled.")
      .Sample(now.sessions_ended_badly);
  out->Counter("tidepool_transfer_bytes_total",
               "Bytes that were copied between host memory and rCaches.")
      .Sample(now.bytes_h2d, {{"direction", "host_to_device"}})
      .Sample(now.bytes_d2h, {{"direction", "device_to_host"}});
}

void WriteHealth(const SnapshotLook& look, Exposition* out) {
  out->Gauge("tidepool_health_status",
             "State of each health check: 0 is ok, 1 a warning, 2 an error.");
  for (const HealthCheck& check : CheckHealth(look))
    out->Sample(static_cast<uint64_t>(check.severity), {{"code", check.code}});
}

void WriteTiers(const Snapshot& now, Exposition* out) {
  const auto bytes = [out](uint64_t used, uint64_t all) {
    out->Sample(used, {{"state", "used"}}).Sample(all - std::min(used, all), {{"state", "free"}});
  };
  out->Gauge("tidepool_pool_bytes", "Bytes of host memory in the pool, used and free.");
  bytes(now.pool_used, now.pool_bytes);
  out->Gauge(
         "tidepool_pool_frozen_bytes",
         "Bytes of the pool that frozen chunks use; a chunk that several jobs share counts once.")
      .Sample(now.pool_frozen);
  out->Gauge("tidepool_rcache_bytes",
             "Bytes of memory for rCaches that the server makes, used and free.");

  bytes(now.rcache_used, now.rcache_limit);
  out->Gauge("tidepool_nvme_bytes", "Bytes of room in all --nvme directories, used and free.");
  bytes(now.nvme.bytes_used, now.nvme.bytes);
  out->Counter("tidepool_nvme_read_bytes_total", "Bytes that were read from NVMe.")
      .Sample(now.nvme.bytes_read);
  out->Counter("tidepool_nvme_written_bytes_total", "Bytes that were written to NVMe.")
      .Sample(now.nvme.bytes_written);
  out->Counter("tidepool_nvme_repetitions_total",
               "Reads and writes that had failed and were repeated.")
      .Sample(now.nvme.repetitions);
  out->Gauge("tidepool_nvme_blocks_stalled", "Blocks that a drive has held for 10 s or more.")
      .Sample(uint64_t{now.nvme.stalled});

  out->Counter("tidepool_nvme_writes_failed_total",
               "Writes of states that a drive did not take; repetitions of one count once.")
      .Sample(now.nvme.writes_failed);
  out->Gauge("tidepool_nvme_pieces_in_pool",
             "Pieces of states that lie in the pool because a drive did not take them.")
      .Sample(now.nvme.pieces_in_pool);
  out->Gauge("tidepool_nvme_pieces_waiting",
             "Pieces of states that neither a drive nor the pool takes; their jobs wait.")
      .Sample(now.nvme.pieces_waiting);
  out->Gauge("tidepool_nvme_late",
             "Reads and writes of states that a drive has not answered within --nvme-deadline.")
      .Sample(now.nvme.late.size());

  out->Counter("tidepool_demotions_total",
               "Jobs without ranks whose states were to go to NVMe because others needed their "
               "room, by outcome.")
      .Sample(now.nvme.demotion.done, {{"outcome", "moved"}})
      .Sample(now.nvme.demotion.failed, {{"outcome", "failed"}})
      .Sample(now.nvme.demotion.dropped, {{"outcome", "dropped"}});
  out->Counter("tidepool_demoted_bytes_total", "Bytes of the pool that such jobs gave back.")
      .Sample(now.nvme.demotion.bytes_freed);
  out->Gauge("tidepool_nvme_directory_failed",
             "This is 1 when the flush of a directory failed; it takes no new jobs then.")
      .Sample(FlagOf(!now.nvme.failed.empty()));
}

void WriteGpus(const Snapshot& now, Exposition* out) {
  const auto each = [&](auto sample) {
    for (const GpuRow& gpu : now.gpus) sample(gpu, Label{"gpu", gpu.name});
  };
  out->Gauge(
      "tidepool_gpu_server_bytes",
      "Bytes of the GPU's memory that this server's context takes; 0 where nobody can tell.");
  each([out](const GpuRow& gpu, const Label& name) { out->Sample(gpu.bytes_taken, {name}); });

  out->Gauge("tidepool_gpu_pinned_bytes",
             "Bytes of the host pool that are registered with the GPU, and that are not.");
  each([out](const GpuRow& gpu, const Label& name) {
    out->Sample(gpu.pinned_bytes, {name, {"state", "pinned"}});
    out->Sample(gpu.pool_bytes - gpu.pinned_bytes, {name, {"state", "unpinned"}});
  });

  out->Gauge("tidepool_gpu_failed",
             "This is 1 when a call of the driver failed; nothing more is done on that GPU.");
  each([out](const GpuRow& gpu, const Label& name) {
    out->Sample(FlagOf(!gpu.failure.empty()), {name});
  });

  out->Counter("tidepool_gpu_transfer_bytes_total",
               "Bytes that were copied between host memory and rCaches on the GPU.");
  each([out](const GpuRow& gpu, const Label& name) {
    out->Sample(gpu.bytes_h2d, {name, {"direction", "host_to_device"}});
    out->Sample(gpu.bytes_d2h, {name, {"direction", "device_to_host"}});
  });
  out->Counter("tidepool_gpu_copies_unpinned_total",
               "Copies of host memory that is not registered with the GPU, which are slow.");
  each([out](const GpuRow& gpu, const Label& name) { out->Sample(gpu.copies_unpinned, {name}); });
}

void WriteCounts(const Snapshot& now, Exposition* out) {
  std::map<std::string_view, uint64_t> by_state{{"loading", 0},  {"training", 0}, {"updating", 0},
                                                {"detached", 0}, {"demoting", 0}, {"awaiting", 0}};
  uint64_t sessions = 0;
  for (const JobRow& job : now.jobs) {
    ++by_state[job.state];
    sessions += job.sessions.size();
  }

  out->Gauge("tidepool_jobs", "Number of jobs in each state.");
  for (const auto& [state, count] : by_state) out->Sample(count, {{"state", std::string(state)}});
  out->Gauge("tidepool_sessions", "Number of attached ranks.").Sample(sessions);
  out->Gauge("tidepool_ranks_waiting", "Number of ranks in the queue for room.")
      .Sample(static_cast<uint64_t>(now.waiting.size()));
}

void WriteAccounts(const Snapshot& now, Exposition* out) {
  out->Gauge("tidepool_account_bytes",
             "Bytes of the pool that an account uses, that it is guaranteed, and that it may have "
             "at most.");
  for (const AccountRow& row : now.accounts) {
    out->Sample(row.used, {{"account", row.account}, {"bound", "used"}});
    out->Sample(row.quota.guarantee, {{"account", row.account}, {"bound", "guarantee"}});
    if (row.quota.limit != kNoLimit)
      out->Sample(row.quota.limit, {{"account", row.account}, {"bound", "limit"}});
  }
}

void WriteJobs(const Snapshot& now, Exposition* out) {
  out->Gauge(
      "tidepool_job_bytes",
      "Bytes that a job holds in each tier; frozen is what it shares with the user's other jobs.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    to->Sample(job.pool_bytes, {name, {"tier", "host"}});
    to->Sample(job.frozen_bytes, {name, {"tier", "frozen"}});
    to->Sample(job.nvme_bytes, {name, {"tier", "nvme"}});
    if (job.chunks_on_gpu > 0) to->Sample(job.gpu_bytes, {name, {"tier", "gpu"}});
    to->Sample(job.rcache_bytes, {name, {"tier", "rcache"}});
  });

  out->Gauge("tidepool_job_suspended", "This is 1 while an admin keeps the job from being served.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    to->Sample(FlagOf(job.suspended), {name});
  });
  out->Gauge("tidepool_job_ranks", "Number of ranks of the job that are attached.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    to->Sample(uint64_t{job.sessions.size()}, {name});
  });
}

void WriteSteps(const Snapshot& now, Exposition* out) {
  out->Counter("tidepool_job_steps_total", "Steps that the job has sealed.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    to->Sample(uint64_t{job.version}, {name});
  });

  out->Counter("tidepool_job_steps_skipped_total",
               "Steps that were skipped because a gradient was not finite.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    to->Sample(job.steps_skipped, {name});
  });
  out->Gauge("tidepool_job_step_seconds", "Seconds between the last two sealed steps.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    to->Sample(job.step_seconds, {name});
  });

  out->Histogram("tidepool_job_step_duration_seconds",
                 "Seconds between two sealed steps that followed each other.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    const StepTimes& times = job.step_times;
    to->Buckets(StepTimes::kBounds, times.buckets, times.sum, name);
  });

  out->Gauge("tidepool_job_loss",
             "Mean loss of the last sealed step; absent where no rank tells it.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    if (job.step_facts) to->Sample(static_cast<double>(job.step_facts->loss), {name});
  });

  out->Counter("tidepool_job_tokens_total",
               "Tokens of the sealed steps; absent where no rank tells them.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    if (job.step_facts) to->Sample(job.tokens, {name});
  });
  out->Gauge(
      "tidepool_job_cpus_shared",
      "This is 1 when threads of a rank shared CPUs with others at the end of the last step.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    if (job.step_facts) to->Sample(FlagOf(job.step_facts->cpus_shared), {name});
  });

  out->Counter("tidepool_job_optimizer_bytes_total",
               "Bytes of memory traffic that optimizer workers had for the job.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    to->Sample(job.optimizer_bytes, {name});
  });

  out->Gauge("tidepool_job_step_fetches",
             "Fetches of all ranks for the last sealed step; some waited for an update.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    to->Sample(job.step.fetches - std::min(job.step.fetches, job.step.fetches_waited),
               {name, {"waited", "no"}});
    to->Sample(job.step.fetches_waited, {name, {"waited", "yes"}});
  });

  out->Gauge("tidepool_job_step_fetch_wait_seconds",
             "Seconds that the fetches of the last sealed step waited for updates, together.");
  OfJobs(now, out, [](const JobRow& job, const Label& name, Exposition* to) {
    to->Sample(static_cast<double>(job.step.fetch_wait_ns) / kNsPerSecond, {name});
  });
}

void WriteRanks(const Snapshot& now, Exposition* out) {
  const auto each = [&](auto sample) {
    for (const JobRow& job : now.jobs) {
      for (const SessionRow& rank : job.sessions)
        sample(rank, Label{"job_name", job.name}, Label{"rank", std::to_string(rank.rank)});
    }
  };
  out->Counter("tidepool_rank_requests_total", "Requests of a rank since it attached.");
  each([out](const SessionRow& row, const Label& name, const Label& rank) {
    out->Sample(row.requests, {name, rank});
  });

  out->Counter("tidepool_rank_requests_parked_total",
               "Requests of a rank that waited for an update.");
  each([out](const SessionRow& row, const Label& name, const Label& rank) {
    out->Sample(row.requests_parked, {name, rank});
  });

  out->Counter("tidepool_rank_request_wait_seconds_total",
               "Seconds that requests of a rank waited before they began, by kind; those that wait "
               "at once each count.");
  each([out](const SessionRow& row, const Label& name, const Label& rank) {
    for (const RequestWaitKind& kind : kRequestWaitKinds) {
      out->Sample(static_cast<double>(row.waits.*kind.ns) / kNsPerSecond,
                  {name, rank, {"kind", kind.name}});
    }
  });

  out->Counter("tidepool_rank_transfer_bytes_total",
               "Bytes that were copied for a rank since it attached.");
  each([out](const SessionRow& row, const Label& name, const Label& rank) {
    out->Sample(row.bytes_h2d, {name, rank, {"direction", "host_to_device"}});
    out->Sample(row.bytes_d2h, {name, rank, {"direction", "device_to_host"}});
  });
}

}  // namespace

std::string MetricsReport(const SnapshotLook& look, const ServerFacts& facts) {
  Exposition out;
  WriteServer(look, facts, &out);
  WriteHealth(look, &out);
  WriteTiers(*look.snapshot, &out);
  WriteGpus(*look.snapshot, &out);

  WriteCounts(*look.snapshot, &out);
  WriteAccounts(*look.snapshot, &out);
  WriteJobs(*look.snapshot, &out);
  WriteSteps(*look.snapshot, &out);
  WriteRanks(*look.snapshot, &out);
  return out.Take();
}

}  // namespace tidepool::memserver
