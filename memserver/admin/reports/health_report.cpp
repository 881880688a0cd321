#include "memserver/admin/reports/health_report.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text/json_writer.h"
#include "base/units.h"

namespace tidepool::memserver {
namespace {

constexpr double kNearFull = 0.95;
constexpr uint64_t kHugeMatters = kGiB;  // smaller pools are for experiments
constexpr int64_t kLongWaitNs = 600 * kNsPerSecond;

const char* NameOf(Severity severity) {
  constexpr std::array<const char*, 3> kNames{"ok", "warn", "error"};
  return kNames[static_cast<size_t>(severity)];
}

HealthCheck Of(const char* code, Severity if_bad, bool bad, const std::string& summary,
               const char* remedy) {
  return {.code = code,
          .severity = bad ? if_bad : Severity::kOk,
          .summary = summary,
          .detail = {},
          .remedy = remedy,
          .muted_ns = 0};
}

// Lists the names of the rows that `bad` is true of; the check is not ok if there are any.
template <typename Rows, typename Bad>
HealthCheck OfRows(HealthCheck check, const Rows& rows, Bad bad) {
  for (const auto& row : rows) {
    if (bad(row)) check.detail.push_back(row.name);
  }
  if (check.detail.empty()) check.severity = Severity::kOk;
  check.summary += ": " + std::to_string(check.detail.size());
  return check;
}

HealthCheck OverQuota(const Snapshot& now) {
  HealthCheck check =
      Of("JOB_OVER_QUOTA", Severity::kWarn, true, "accounts that hold more than their limit",
         "they are given nothing more; memctl quotas");
  for (const AccountRow& row : now.accounts) {
    if (row.used > row.quota.limit) check.detail.push_back(row.account);
  }
  if (check.detail.empty()) check.severity = Severity::kOk;
  check.summary += ": " + std::to_string(check.detail.size());
  return check;
}

HealthCheck PoolNearFull(const Snapshot& now) {
  const bool full =
      static_cast<double>(now.pool_used) > kNearFull * static_cast<double>(now.pool_bytes);
  return Of("POOL_NEAR_FULL", Severity::kWarn, full,
            FormatBytes(now.pool_used) + " of " + FormatBytes(now.pool_bytes) + " are used",
            "memctl quotas says by whom; memctl job release gives back what a detached job holds");
}

HealthCheck PoolNotHuge(const Snapshot& now) {
  const bool small_pages =
      now.pool_bytes >= kHugeMatters && now.pool_huge_bytes < now.pool_bytes / 2;
  return Of(
      "POOL_NOT_HUGE", Severity::kWarn, small_pages,
      FormatBytes(now.pool_huge_bytes) + " of the pool are in pages of 2 MiB",
      "allow huge pages for shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled), or "
      "set some aside and give --huge reserved");
}

HealthCheck NvmeLate(const NvmeRow& nvme) {
  const bool lost =
      std::any_of(nvme.late.begin(), nvme.late.end(), [](const LateRow& row) { return row.lost; });
  HealthCheck check = Of("NVME_LATE", lost ? Severity::kError : Severity::kWarn, !nvme.late.empty(),
                         "reads and writes that a drive has not answered within the deadline: " +
                             std::to_string(nvme.late.size()),
                         "look at the kernel log for this drive; what waits for it goes on when it "
                         "answers, or ends after ten deadlines");

  for (const LateRow& row : nvme.late) {
    const std::string who = row.job == 0 ? "no job's"
                                         : "job " + std::to_string(row.job) + " (" + row.name +
                                               "), chunk " + std::to_string(row.chunk) +
                                               ", piece " + std::to_string(row.piece);
    check.detail.push_back(who + ", " + row.directory + " at offset " + std::to_string(row.offset) +
                           ": a " + (row.write ? "write" : "read") + ", for " +
                           FormatDuration(row.seconds));
  }
  return check;
}

HealthCheck NvmeUnwritten(const NvmeRow& nvme) {
  const bool waits = nvme.pieces_waiting > 0;
  HealthCheck check =
      Of("NVME_WRITE_FAILED", waits ? Severity::kError : Severity::kWarn,
         waits || nvme.pieces_in_pool > 0,
         "pieces of states that a drive did not take: " + std::to_string(nvme.pieces_in_pool) +
             " in the pool, " + std::to_string(nvme.pieces_waiting) +
             " whose jobs wait for room there",
         "look at the kernel log for this drive; where jobs wait, give the pool room (memctl "
         "quotas says who holds it)");

  for (const UnwrittenRow& row : nvme.unwritten) {
    check.detail.push_back("job " + std::to_string(row.job) + " (" + row.name + "), chunk " +
                           std::to_string(row.chunk) + ", piece " + std::to_string(row.piece) +
                           ", " + row.directory + " at offset " + std::to_string(row.offset) +
                           ": " + std::strerror(row.error) +
                           (row.in_pool ? "" : "; the job waits"));
  }
  return check;
}

void AddNvme(const NvmeRow& nvme, std::vector<HealthCheck>* checks) {
  HealthCheck failed =
      Of("NVME_FLUSH_FAILED", Severity::kError, !nvme.failed.empty(),
         nvme.failed.empty() ? "no flush of a directory has failed"
                             : "a flush failed: the directory takes no new jobs",
         "look at the kernel log for this drive; give memserver another directory");

  if (!nvme.failed.empty()) failed.detail.push_back(nvme.failed);
  checks->push_back(std::move(failed));
  checks->push_back(NvmeUnwritten(nvme));
  checks->push_back(NvmeLate(nvme));
  checks->push_back(
      Of("NVME_SLOW", Severity::kWarn, nvme.stalled > 0,
         "blocks that a drive has held for 10 s and more: " + std::to_string(nvme.stalled),
         "look at the kernel log for this drive"));
}

// One GPU check: lists the GPUs for which `why` returns a text.
template <typename Why>
HealthCheck OfGpus(HealthCheck check, const std::vector<GpuRow>& gpus, Why why) {
  for (const GpuRow& gpu : gpus) {
    if (const std::string text = why(gpu); !text.empty())
      check.detail.push_back(gpu.name + ": " + text);
  }
  if (check.detail.empty()) check.severity = Severity::kOk;
  check.summary += ": " + std::to_string(check.detail.size());
  return check;
}

void AddGpus(const std::vector<GpuRow>& gpus, std::vector<HealthCheck>* checks) {
  checks->push_back(
      OfGpus(Of("CUDA_FAILED", Severity::kError, true, "GPUs on which a call of the driver failed",
                "look at the kernel log for Xid messages of this GPU; start memserver again"),
             gpus, [](const GpuRow& gpu) { return gpu.failure; }));
  checks->push_back(OfGpus(
      Of("PIN_FAILED", Severity::kError, true,
         "GPUs with which not all of the pool is registered: copies are slow",
         "allow memory to be locked (systemd: LimitMEMLOCK=infinity), and start memserver again"),
      gpus, [](const GpuRow& gpu) { return gpu.pin_failure; }));

  checks->push_back(
      OfGpus(Of("CUDA_IPC_FALLBACK", Severity::kWarn, true,
                "GPUs whose memory leaves a process as an IPC handle",
                "a newer driver exports descriptors; in containers give both sides the same GPU"),
             gpus, [](const GpuRow& gpu) {
               return gpu.form == "ipc" ? "no descriptors: " + gpu.note : std::string();
             }));
}

HealthCheck JobsSetAside(const Snapshot& now) {
  HealthCheck check =
      Of("JOB_SET_ASIDE", Severity::kWarn, true, "jobs in kept memory that wait, and are not lost",
         "see what each waits for: it goes on when that is there, or has ended");
  for (const SetAsideRow& row : now.set_aside) check.detail.push_back(row.name + ": " + row.why);
  if (check.detail.empty()) check.severity = Severity::kOk;
  check.summary += ": " + std::to_string(check.detail.size());
  return check;
}

void AddJobs(const Snapshot& now, std::vector<HealthCheck>* checks) {
  checks->push_back(OverQuota(now));
  checks->push_back(
      OfRows(Of("JOB_SUSPENDED", Severity::kWarn, true, "suspended jobs", "memctl job resume JOB"),
             now.jobs, [](const JobRow& job) { return job.suspended; }));
  checks->push_back(
      OfRows(Of("LEASE_STALE", Severity::kWarn, true, "jobs without trainers, kept for their lease",
                "start them again with --resume auto, or memctl job release"),
             now.jobs, [](const JobRow& job) {
               return job.state == "detached" || job.state == "demoting" || job.state == "awaiting";
             }));

  checks->push_back(JobsSetAside(now));
  checks->push_back(OfRows(
      Of("RANKS_WAIT", Severity::kWarn, true,
         "ranks that have waited for room for ten minutes and more", "memctl quotas says for what"),
      now.waiting, [](const WaitingRow& row) { return row.waited_ns >= kLongWaitNs; }));
}

}  // namespace

std::vector<HealthCheck> CheckHealth(const SnapshotLook& look) {
  const Snapshot& now = *look.snapshot;
  const bool silent = look.silent_seconds > kSilentSeconds;
  std::vector<HealthCheck> checks;
  checks.push_back(
      Of("LOOP_SILENT", Severity::kError, silent,
         silent ? "the serve loop has not answered for " + FormatDuration(look.silent_seconds)
                : "the serve loop answers",
         "see the log of memserver; a watchdog (systemd: WatchdogSec) starts it again"));
  checks.push_back(Of("DRAINING", Severity::kWarn, now.draining,
                      now.draining ? "no new jobs are taken" : "new jobs are taken",
                      "memctl undrain"));

  checks.push_back(PoolNearFull(now));
  checks.push_back(PoolNotHuge(now));
  AddNvme(now.nvme, &checks);
  AddGpus(now.gpus, &checks);
  AddJobs(now, &checks);
  for (HealthCheck& check : checks) {
    for (const MuteRow& mute : now.mutes) {
      if (mute.code == check.code) check.muted_ns = mute.left_ns;
    }
  }
  return checks;
}

std::string HealthReport(const SnapshotLook& look) {
  const std::vector<HealthCheck> checks = CheckHealth(look);
  Severity worst = Severity::kOk;
  for (const HealthCheck& check : checks) {
    if (check.muted_ns == 0) worst = std::max(worst, check.severity);
  }
  JsonWriter json;
  json.BeginObject().Field("status", NameOf(worst)).Key("checks").BeginArray();

  for (const HealthCheck& check : checks) {
    json.BeginObject()
        .Field("code", check.code)
        .Field("severity", NameOf(check.severity))
        .Field("summary", check.summary);
    json.Key("detail").BeginArray();
    for (const std::string& each : check.detail) json.String(each);
    json.EndArray().Field("remedy", check.severity == Severity::kOk ? "" : check.remedy);
    json.Field("muted_seconds", static_cast<double>(check.muted_ns) / kNsPerSecond).EndObject();
  }
  return json.EndArray().EndObject().Take();
}

}  // namespace tidepool::memserver
