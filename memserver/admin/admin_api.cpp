#include "memserver/admin/admin_api.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <span>

#include "base/text/json_writer.h"
#include "base/log.h"
#include "memserver/admin/exposition.h"
#include "memserver/admin/health_report.h"
#include "memserver/admin/metrics_report.h"
#include "memserver/admin/request_target.h"

namespace tidepool::memserver {
namespace {

std::string Seconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", seconds);
  return text.data();
}

// What a handler is given.
struct Ask {
  const RequestTarget& target;
  const SnapshotLook& look;
  const ServerFacts& facts;
};

// The job named by number, else by name.
const JobRow* FindJob(const Snapshot& snapshot, const std::string& who) {
  JobId id = 0;
  const auto [end, error] = std::from_chars(who.data(), who.data() + who.size(), id);
  const bool is_number = error == std::errc() && end == who.data() + who.size();
  for (const JobRow& job : snapshot.jobs) {
    if (is_number && job.job == id) return &job;
  }
  for (const JobRow& job : snapshot.jobs) {
    if (job.name == who) return &job;
  }
  return nullptr;
}

Status NoJob(const Snapshot& snapshot, const std::string& who) {
  std::string all;
  for (const JobRow& job : snapshot.jobs) all += (all.empty() ? "" : ", ") + job.name;
  return Status(ErrorId::kAdminNotFound, "no job has the number or name '" + who + "'")
      .Fix(all.empty() ? "no job is attached at the moment; start one with `trainer run`"
                       : "jobs there are: " + all);
}

// The job of the parameter `job`, or all jobs when it was not given.
Result<std::vector<const JobRow*>> ChosenJobs(const Ask& ask) {
  std::vector<const JobRow*> jobs;
  const std::string* who = ask.target.Find("job");
  if (who == nullptr) {
    for (const JobRow& job : ask.look.snapshot->jobs) jobs.push_back(&job);
    return jobs;
  }
  const JobRow* job = FindJob(*ask.look.snapshot, *who);
  if (job == nullptr) return NoJob(*ask.look.snapshot, *who);
  jobs.push_back(job);
  return jobs;
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
  const std::string& who = ask.target.path[2];
  const JobRow* job = FindJob(*ask.look.snapshot, who);
  return job == nullptr ? ProblemOf(NoJob(*ask.look.snapshot, who)) : Ok(JobReport(*job));
}

Result<ResidencyBy> ReadBy(const RequestTarget& target) {
  const std::string* name = target.Find("by");
  if (name == nullptr || *name == "chunk") return ResidencyBy::kChunk;
  if (*name == "layer") return ResidencyBy::kLayer;
  if (*name == "tensor") return ResidencyBy::kTensor;
  if (*name == "job") return ResidencyBy::kJob;
  return Status(ErrorId::kAdminBadRequest, "there is no residency by '" + *name + "'")
      .Fix("give chunk, layer, tensor or job");
}

AdminAnswer GetResidency(const Ask& ask) {
  auto jobs = ChosenJobs(ask);
  if (!jobs.ok()) return ProblemOf(jobs.status());
  auto by = ReadBy(ask.target);
  return by.ok() ? Ok(ResidencyReport(*ask.look.snapshot, *jobs, *by)) : ProblemOf(by.status());
}

Status ReadState(const RequestTarget& target, const ChunkState** state) {
  const std::string* name = target.Find("state");
  if (name == nullptr) return {};
  std::string all;
  for (const ChunkState& each : kChunkStates) {
    if (*name == NameOf(each)) *state = &each;
    all += (all.empty() ? "" : ", ") + std::string(NameOf(each));
  }
  if (*state != nullptr) return {};
  return Status(ErrorId::kAdminBadRequest, "no chunk state is called '" + *name + "'")
      .Fix("states are: " + all);
}

Status ReadTier(const RequestTarget& target, std::string* tier) {
  const std::string* name = target.Find("tier");
  if (name == nullptr) return {};
  *tier = *name;
  if (*name == "rcache" || *name == "host" || *name == "nvme" || *name == "gpu") return {};
  return Status(ErrorId::kAdminBadRequest, "no tier is called '" + *name + "'")
      .Fix("tiers are: rcache, host, nvme");
}

// "JOB:ROW", where the page before ended.
Status ReadCursor(const RequestTarget& target, JobId* from_job, auto* from_row) {
  const std::string* cursor = target.Find("cursor");
  if (cursor == nullptr) return {};
  const char* const end = cursor->data() + cursor->size();
  const auto job = std::from_chars(cursor->data(), end, *from_job);
  const bool parted = job.ec == std::errc() && job.ptr != end && *job.ptr == ':';
  const auto chunk = parted ? std::from_chars(job.ptr + 1, end, *from_row) : job;
  if (parted && chunk.ec == std::errc() && chunk.ptr == end) return {};
  return Status(ErrorId::kAdminBadRequest, "'" + *cursor + "' is no cursor")
      .Fix("give next_cursor of the page before");
}

Result<ChunkPage> ReadPage(const Ask& ask) {
  ChunkPage page;
  TP_ASSIGN_OR_RETURN(page.jobs, ChosenJobs(ask));
  TP_RETURN_IF_ERROR(ReadState(ask.target, &page.state));
  TP_RETURN_IF_ERROR(ReadTier(ask.target, &page.tier));
  TP_RETURN_IF_ERROR(ReadCursor(ask.target, &page.from_job, &page.from_chunk));
  TP_ASSIGN_OR_RETURN(page.limit, NumberParameter(ask.target, "limit", AdminApi::kChunksPerPage,
                                                  AdminApi::kChunksPerPageMax));
  if (page.limit == 0) return Status(ErrorId::kAdminBadRequest, "a page of 0 chunks was asked for");
  return page;
}

AdminAnswer GetChunks(const Ask& ask) {
  auto page = ReadPage(ask);
  return page.ok() ? Ok(ChunksReport(*page)) : ProblemOf(page.status());
}

// A chunk has its number within a job; where only one job is there, that one is meant.
Result<std::string> ReadChunk(const Ask& ask) {
  TP_ASSIGN_OR_RETURN(const std::vector<const JobRow*> jobs, ChosenJobs(ask));
  if (jobs.size() != 1) {
    return Status(ErrorId::kAdminBadRequest, "the parameter job is missing, and " +
                                                 std::to_string(jobs.size()) + " jobs are there");
  }
  const std::string& text = ask.target.path[2];
  ChunkId id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  const size_t count = jobs[0]->chunks.size();
  if (is_number && id < count) return ChunkReport(*jobs[0], id);
  return Status(ErrorId::kAdminNotFound, "job " + jobs[0]->name + " has no chunk '" + text + "'")
      .Fix("its chunks are 0 to " + std::to_string(count - 1));
}

AdminAnswer GetChunk(const Ask& ask) {
  auto chunk = ReadChunk(ask);
  return chunk.ok() ? Ok(std::move(chunk).value()) : ProblemOf(chunk.status());
}

Result<TensorPage> ReadTensorPage(const Ask& ask) {
  TensorPage page;
  TP_ASSIGN_OR_RETURN(page.jobs, ChosenJobs(ask));
  TP_RETURN_IF_ERROR(ReadCursor(ask.target, &page.from_job, &page.from_tensor));
  if (const std::string* name = ask.target.Find("name")) page.name = *name;
  if (ask.target.Find("chunk") != nullptr) {
    TP_ASSIGN_OR_RETURN(const uint64_t chunk, NumberParameter(ask.target, "chunk", 0, UINT32_MAX));
    page.chunk = static_cast<ChunkId>(chunk);
  }
  TP_ASSIGN_OR_RETURN(page.limit, NumberParameter(ask.target, "limit", AdminApi::kChunksPerPage,
                                                  AdminApi::kChunksPerPageMax));
  if (page.limit == 0)
    return Status(ErrorId::kAdminBadRequest, "a page of 0 tensors was asked for");
  return page;
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
  json.Field("silent", look.silent_seconds > AdminApi::kSilentSeconds)
      .Field("silent_seconds", look.silent_seconds)
      .EndObject();
  return Ok(json.EndObject().Take());
}

AdminAnswer GetLive(const Ask& ask) {
  return Probe(ask.look,
               ask.look.silent_seconds > AdminApi::kDeadSeconds ? WhySilent(ask.look) : "");
}

AdminAnswer GetReady(const Ask& ask) {
  std::string why_not;
  if (ask.look.silent_seconds > AdminApi::kSilentSeconds) {
    why_not = WhySilent(ask.look);
  } else if (ask.look.snapshot == nullptr) {
    why_not = "memserver is starting: no snapshot has been taken yet";
  } else if (const std::string state = StateOf(*ask.look.snapshot); state != "ready") {
    why_not = "memserver is " + state;
  }
  return Probe(ask.look, why_not);
}

enum class Needs { kNothing, kLook, kSnapshot };  // kLook: what is there, without waiting

struct Route {
  std::array<std::string_view, 3> path;  // "*" stands for any segment
  size_t segments;
  Needs needs;
  AdminAnswer (*handler)(const Ask&);
  std::array<std::string_view, 5> parameters;
  size_t parameter_count;
  AdminLevel least = AdminLevel::kUser;
};

constexpr auto kRoutes = std::to_array<Route>({
    {{"v1", "version"}, 2, Needs::kNothing, GetVersion, {}, 0},
    {{"v1", "topology"}, 2, Needs::kNothing, GetTopology, {}, 0},
    {{"v1", "status"}, 2, Needs::kSnapshot, GetStatus, {}, 0},
    {{"v1", "jobs"}, 2, Needs::kSnapshot, GetJobs, {}, 0},
    {{"v1", "jobs", "*"}, 3, Needs::kSnapshot, GetJob, {}, 0},
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
    {{"readyz"}, 1, Needs::kSnapshot, GetReady, {}, 0},
});

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

Status NoRoute(std::string_view target) {
  std::string all;
  for (const std::string& endpoint : AdminApi::Endpoints())
    all += (all.empty() ? "" : ", ") + endpoint;
  return Status(ErrorId::kAdminNotFound,
                "there is no path '" + std::string(target.substr(0, 200)) + "'")
      .Fix("there are: " + all);
}

// What a user without further rights sees: sums of all, and its own jobs, waiting ranks and
// accounts.
std::shared_ptr<const Snapshot> OnlyOf(const Snapshot& all, const AdminCaller& caller) {
  auto own = std::make_shared<Snapshot>(all);
  const auto hidden = [&caller](const auto& row) { return !caller.MaySee(row.uid); };
  const auto hide = [&hidden](auto&... rows) { (std::erase_if(rows, hidden), ...); };
  hide(own->jobs, own->waiting, own->lost, own->set_aside);
  const auto of_others = [&own](const auto& row) {
    return std::none_of(own->jobs.begin(), own->jobs.end(),
                        [&row](const JobRow& job) { return job.job == row.job; });
  };
  std::erase_if(own->nvme.unwritten, of_others);
  std::erase_if(own->nvme.late, of_others);
  std::erase_if(own->accounts, [&](const AccountRow& row) {
    const auto of_account = [&row](const JobRow& job) { return job.account == row.account; };
    return row.account != UserAccount(caller.uid) &&
           std::none_of(own->jobs.begin(), own->jobs.end(), of_account);
  });
  // Names of others stand in the reasons.
  for (WaitingRow& row : own->waiting) row.why = row.why.substr(0, row.why.find(';'));
  return own;
}

AdminAnswer NotAllowed(bool readable, const std::string& changes) {
  const std::string methods = (readable ? std::string("GET, HEAD") : std::string()) +
                              (readable && !changes.empty() ? ", " : "") + changes;
  AdminAnswer answer =
      Problem(405, Status(ErrorId::kAdminBadRequest, "this path answers " + methods + " only")
                       .Fix("use one of them"));
  answer.allow = methods;
  return answer;
}

}  // namespace

std::string EventLines(uint64_t* last, uint64_t most) {
  std::string lines;
  for (const LoggedLine& line : RecentLines(*last, most)) {
    lines += "{\"number\":" + std::to_string(line.number) + "," + line.json.substr(1) + "\n";
    *last = line.number;
  }
  return lines;
}

std::vector<std::string> AdminApi::Endpoints() {
  std::vector<std::string> all;
  for (const Route& route : kRoutes)
    all.push_back("GET " + PathText(std::span(route.path).first(route.segments)));
  for (std::string& change : AdminChanges::Endpoints()) all.push_back(std::move(change));
  return all;
}

AdminAnswer AdminApi::Change(const AdminRequest& request, const RequestTarget& target) {
  const SnapshotLook look = source_->Get();
  if (look.snapshot == nullptr)
    return ProblemOf(
        Status(ErrorId::kNotReady, "memserver is starting: no snapshot has been taken yet"));
  AdminAnswer answer = changes_.Apply(request, target, *look.snapshot);
  source_->Outdate();
  return answer;
}

AdminAnswer AdminApi::Answer(const AdminRequest& request) {
  auto parsed = ParseTarget(request.target);
  if (!parsed.ok()) return ProblemOf(parsed.status());
  const Route* route = FindRoute(*parsed);
  const std::string changes = AdminChanges::MethodsOf(*parsed);
  if (route == nullptr && changes.empty()) return ProblemOf(NoRoute(request.target));
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (!reads && AdminChanges::Takes(request.method, *parsed)) return Change(request, *parsed);
  if (!reads || route == nullptr) return NotAllowed(route != nullptr, changes);
  if (const Status allowed = CheckLevel(request.caller, route->least); !allowed.ok())
    return ProblemOf(allowed);
  const Status known =
      CheckParameters(*parsed, std::span(route->parameters).first(route->parameter_count));
  if (!known.ok()) return ProblemOf(known);
  SnapshotLook look;
  if (route->needs == Needs::kLook) look = source_->Look();
  if (route->needs == Needs::kSnapshot) look = source_->Get();
  const bool is_probe = route->handler == GetReady;
  if (route->needs == Needs::kSnapshot && look.snapshot == nullptr && !is_probe) {
    return ProblemOf(
        Status(ErrorId::kNotReady, "memserver is starting: no snapshot has been taken yet"));
  }
  if (look.snapshot != nullptr && request.caller.level < AdminLevel::kOperator)
    look.snapshot = OnlyOf(*look.snapshot, request.caller);
  return route->handler({.target = *parsed, .look = look, .facts = facts_});
}

}  // namespace tidepool::memserver
