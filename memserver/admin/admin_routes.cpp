#include "memserver/admin/admin_routes.h"

#include <array>
#include <cstdio>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/text/json_writer.h"
#include "memserver/admin/reports/exposition.h"
#include "memserver/admin/reports/health_report.h"
#include "memserver/admin/reports/metrics_report.h"

namespace tidepool::memserver {
namespace {

std::string Seconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", seconds);
  return text.data();
}

AdminAnswer Ok(std::string body) {
  return {.status = 200, .body = std::move(body)};
}

AdminAnswer GetVersion(const Ask& ask) {
  return Ok(VersionReport(ask.facts));
}
AdminAnswer GetTopology(const Ask& ask) {
  return Ok(ask.facts.topology);
}
AdminAnswer GetStatus(const Ask& ask) {
  return Ok(StatusReport(ask.look, ask.facts));
}
AdminAnswer GetJobs(const Ask& ask) {
  return Ok(JobsReport(*ask.look.snapshot));
}

AdminAnswer GetQuotas(const Ask& ask) {
  return Ok(QuotasReport(*ask.look.snapshot));
}

AdminAnswer GetHealth(const Ask& ask) {
  return Ok(HealthReport(ask.look));
}

AdminAnswer GetEvents(const Ask& ask) {
  auto after = NumberParameter(ask.target, "after", 0, UINT64_MAX);
  auto limit = NumberParameter(ask.target, "limit", kLoggedLinesKept, kLoggedLinesKept);
  if (!after.ok() || !limit.ok()) return ProblemOf(after.ok() ? limit.status() : after.status());
  const std::string* follow = ask.target.Find("follow");
  if (follow != nullptr && *follow != "true" && *follow != "false") {
    return ProblemOf(Status(ErrorId::kAdminBadRequest,
                            "the parameter follow='" + *follow + "' is neither true nor false"));
  }

  uint64_t last = *after;
  AdminAnswer answer{
      .status = 200, .content_type = "application/x-ndjson", .body = EventLines(&last, *limit)};
  if (follow != nullptr && *follow == "true") answer.follow_after = last;
  return answer;
}

AdminAnswer GetMetrics(const Ask& ask) {
  return {.status = 200,
          .content_type = Exposition::kContentType,
          .body = MetricsReport(ask.look, ask.facts)};
}

AdminAnswer GetSummary(const Ask& ask) {
  return {
      .status = 200, .content_type = "text/plain; charset=utf-8", .body = SummaryReport(ask.look)};
}

AdminAnswer GetTiers(const Ask& ask) {
  return Ok(TiersReport(*ask.look.snapshot));
}

AdminAnswer GetNvme(const Ask& ask) {
  return Ok(NvmeReport(*ask.look.snapshot));
}

AdminAnswer GetConfig(const Ask& ask) {
  return Ok(ConfigReport(*ask.look.snapshot, false));
}
AdminAnswer GetConfigDiff(const Ask& ask) {
  return Ok(ConfigReport(*ask.look.snapshot, true));
}

AdminAnswer GetConfigSchema(const Ask& ask) {
  return Ok(ask.facts.config_schema);
}

AdminAnswer GetJob(const Ask& ask) {
  auto job = JobInPath(ask);
  return job.ok() ? Ok(JobReport(**job)) : ProblemOf(job.status());
}

AdminAnswer GetSpans(const Ask& ask) {
  auto job = JobInPath(ask);
  auto since = NumberParameter(ask.target, "since_ns", 0, INT64_MAX);
  if (!job.ok() || !since.ok()) return ProblemOf(job.ok() ? since.status() : job.status());
  return Ok(SpansReport(**job, static_cast<int64_t>(*since)));
}

AdminAnswer GetResidency(const Ask& ask) {
  auto jobs = ChosenJobs(ask);
  if (!jobs.ok()) return ProblemOf(jobs.status());
  auto by = ReadBy(ask.target);
  return by.ok() ? Ok(ResidencyReport(*ask.look.snapshot, *jobs, *by)) : ProblemOf(by.status());
}

AdminAnswer GetChunks(const Ask& ask) {
  auto page = ReadPage(ask);
  return page.ok() ? Ok(ChunksReport(*page)) : ProblemOf(page.status());
}

AdminAnswer GetChunk(const Ask& ask) {
  auto chunk = ChunkInPath(ask);
  return chunk.ok() ? Ok(std::move(chunk).value()) : ProblemOf(chunk.status());
}

AdminAnswer GetTensors(const Ask& ask) {
  auto page = ReadTensorPage(ask);
  return page.ok() ? Ok(TensorsReport(*page)) : ProblemOf(page.status());
}

std::string WhySilent(const SnapshotLook& look) {
  return "the serve loop has not answered for " + Seconds(look.silent_seconds);
}

AdminAnswer Probe(const SnapshotLook& look, const std::string& why_not) {
  if (!why_not.empty()) return Problem(503, Status(ErrorId::kNotReady, why_not));
  JsonWriter json;
  json.BeginObject().Field("status", "ok").Key("serve_loop").BeginObject();
  json.Field("silent", look.silent_seconds > kSilentSeconds)
      .Field("silent_seconds", look.silent_seconds)
      .EndObject();
  return Ok(json.EndObject().Take());
}

AdminAnswer GetLive(const Ask& ask) {
  return Probe(ask.look, ask.look.silent_seconds > kDeadSeconds ? WhySilent(ask.look) : "");
}

AdminAnswer GetReady(const Ask& ask) {
  std::string why_not;
  if (ask.look.silent_seconds > kSilentSeconds) {
    why_not = WhySilent(ask.look);
  } else if (ask.look.snapshot == nullptr) {
    why_not = "memserver is starting: no snapshot has been taken yet";
  } else if (const std::string state = StateOf(*ask.look.snapshot); state != "ready") {
    why_not = "memserver is " + state;
  }
  return Probe(ask.look, why_not);
}

constexpr auto kRoutes = std::to_array<Route>({
    {{"v1", "version"}, 2, Needs::kNothing, GetVersion, {}, 0},
    {{"v1", "topology"}, 2, Needs::kNothing, GetTopology, {}, 0},
    {{"v1", "status"}, 2, Needs::kSnapshot, GetStatus, {}, 0},
    {{"v1", "jobs"}, 2, Needs::kSnapshot, GetJobs, {}, 0},
    {{"v1", "jobs", "*"}, 3, Needs::kSnapshot, GetJob, {}, 0},
    {{"v1", "jobs", "*", "spans"}, 4, Needs::kSnapshot, GetSpans, {"since_ns"}, 1},
    {{"v1", "quotas"}, 2, Needs::kSnapshot, GetQuotas, {}, 0},
    {{"v1", "nvme"}, 2, Needs::kSnapshot, GetNvme, {}, 0, AdminLevel::kOperator},
    {{"v1", "config"}, 2, Needs::kSnapshot, GetConfig, {}, 0, AdminLevel::kOperator},
    {{"v1", "config", "diff"}, 3, Needs::kSnapshot, GetConfigDiff, {}, 0, AdminLevel::kOperator},
    {{"v1", "config", "schema"}, 3, Needs::kNothing, GetConfigSchema, {}, 0},
    {{"v1", "tiers"}, 2, Needs::kSnapshot, GetTiers, {}, 0},
    {{"v1", "chunks", "*"}, 3, Needs::kSnapshot, GetChunk, {"job"}, 1},
    {{"v1", "chunks"},
     2,
     Needs::kSnapshot,
     GetChunks,
     {"job", "state", "tier", "cursor", "limit"},
     5},
    {{"v1", "tensors"},
     2,
     Needs::kSnapshot,
     GetTensors,
     {"job", "name", "chunk", "cursor", "limit"},
     5},
    {{"v1", "residency"}, 2, Needs::kSnapshot, GetResidency, {"job", "by"}, 2},
    {{"v1", "health"}, 2, Needs::kSnapshot, GetHealth, {}, 0},
    {{"v1", "events"},
     2,
     Needs::kNothing,
     GetEvents,
     {"after", "limit", "follow"},
     3,
     AdminLevel::kOperator},
    {{"metrics"}, 1, Needs::kSnapshot, GetMetrics, {}, 0},
    {{"metrics", "summary"}, 2, Needs::kSnapshot, GetSummary, {}, 0},
    {{"livez"}, 1, Needs::kLook, GetLive, {}, 0},
    {{"readyz"}, 1, Needs::kSnapshot, GetReady, {}, 0, AdminLevel::kUser, /*is_probe=*/true},
});

}  // namespace

std::span<const Route> Routes() {
  return kRoutes;
}

const Route* FindRoute(const RequestTarget& target) {
  for (const Route& route : kRoutes) {
    if (target.path.size() != route.segments) continue;
    bool same = true;
    for (size_t i = 0; i < route.segments; ++i)
      same &= route.path[i] == "*" || route.path[i] == target.path[i];
    if (same) return &route;
  }
  return nullptr;
}

}  // namespace tidepool::memserver
