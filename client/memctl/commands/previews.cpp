#include "client/memctl/commands/previews.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/text/json_writer.h"
#include "base/text/plural.h"
#include "base/units.h"
#include "client/memctl/commands/admin_calls.h"
#include "client/memctl/commands/changes.h"
#include "client/memctl/commands/checkpoints.h"
#include "client/memctl/commands/config_commands.h"
#include "client/memctl/commands/own_programs.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/table.h"
#include "client/admin/views.h"

namespace tidepool::client {
namespace {

// "195 KiB (199680 bytes)".
std::string Exact(uint64_t bytes) {
  return FormatBytes(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

Result<JobView> JobOf(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const std::string body,
                      GetBody(invocation, "/v1/jobs/" + Escaped(invocation.job)));
  return ReadOneJob(body);
}

Result<StatusView> StatusOf(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, "/v1/status"));
  return ReadStatus(body);
}

// "release job gpt (number 3, training, 41 steps)".
std::string OfJob(const char* verb, const JobView& job) {
  return verb + (" job " + job.name) + " (number " + std::to_string(job.id) + ", " +
         StateText(job) + ", " + Counted(job.version, "step") + ")";
}

// The refusal that memserver would give. Ranks of an awaited job are expected back after a restart.
Status HasRanks(const JobView& job, const char* fix) {
  if (job.ranks_attached == 0 && job.state != "awaiting") return Status();
  return Status(ErrorId::kJobBusy, "job " + job.name + " still has ranks")
      .Why(std::to_string(job.ranks_attached) + " of " + std::to_string(job.world) +
           " ranks are attached" +
           (job.state == "awaiting" ? ", the others are expected back" : ""))
      .Fix(fix);
}

Result<Preview> OfRelease(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const JobView job, JobOf(invocation));
  if (!invocation.force)
    TP_RETURN_IF_ERROR(HasRanks(job, "end its trainers first, or both with --force"));
  Preview preview{OfJob("release", job), {}};
  if (job.ranks_attached > 0)
    preview.effects.push_back(Counted(job.ranks_attached, "attached rank") + " ended");
  preview.effects.push_back(Exact(job.pool_bytes) + " of the pool given back");
  if (job.nvme_bytes > 0) preview.effects.push_back(Exact(job.nvme_bytes) + " on NVMe given back");
  if (job.rcache_bytes > 0)
    preview.effects.push_back(Exact(job.rcache_bytes) + " of rCaches given back");

  if (job.frozen_bytes > 0)
    preview.effects.push_back(Exact(job.frozen_bytes) +
                              " of frozen chunks given back, unless other jobs use them");
  preview.effects.emplace_back("its states are lost: nothing brings them back");
  preview.numbers = {{"ranks", job.ranks_attached},
                     {"pool_bytes", job.pool_bytes},
                     {"nvme_bytes", job.nvme_bytes},
                     {"rcache_bytes", job.rcache_bytes},
                     {"frozen_bytes", job.frozen_bytes}};
  return preview;
}

Result<Preview> OfEvict(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const JobView job, JobOf(invocation));
  TP_ASSIGN_OR_RETURN(const StatusView status, StatusOf(invocation));
  if (status.nvme_bytes == 0)
    return Status(ErrorId::kAdminNotFound, "memserver has no NVMe directory")
        .Fix("start it with --nvme DIR:SIZE");
  TP_RETURN_IF_ERROR(
      HasRanks(job, "only states of a job without ranks go to NVMe; end its trainers first"));
  const uint64_t chunks = job.chunks - std::min(job.chunks_spilled, job.chunks);
  if (chunks == 0)
    return Status(ErrorId::kJobBusy, "the states of job " + job.name + " do not move to NVMe")
        .Why("all of them are there");

  const uint64_t free = status.nvme_bytes - std::min(status.nvme_used, status.nvme_bytes);
  Preview preview{OfJob("evict", job),
                  {},
                  {{"chunks", chunks}, {"pool_bytes", job.pool_bytes}, {"nvme_bytes_free", free}}};
  preview.effects = {"the states of " + Counted(chunks, "chunk") + " of " +
                         std::to_string(job.chunks) + " go to NVMe, which has " + Exact(free) +
                         " free",
                     "they stay there until the job ends: its steps then wait for the drive",
                     "it holds " + Exact(job.pool_bytes) +
                         " of the pool now; `memctl nvme status` counts what comes back"};
  return preview;
}

Result<Preview> OfSuspend(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const JobView job, JobOf(invocation));
  Preview preview{OfJob("suspend", job),
                  {"it is suspended already: nothing changes"},
                  {{"ranks", job.ranks_attached}, {"pool_bytes", job.pool_bytes}}};
  if (job.suspended) return preview;
  preview.effects = {
      Counted(job.ranks_attached, "attached rank") + " served no longer, until it is resumed",
      Exact(job.pool_bytes) + " of the pool kept; beyond its lease where an operator suspends it"};
  return preview;
}

Result<Preview> OfResume(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const JobView job, JobOf(invocation));
  Preview preview{OfJob("resume", job),
                  {"it is not suspended: nothing changes"},
                  {{"ranks", job.ranks_attached}}};
  if (job.suspended)
    preview.effects = {Counted(job.ranks_attached, "attached rank") + " served again"};
  return preview;
}

Result<Preview> OfQuota(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const JobView job, JobOf(invocation));
  if (invocation.fields.empty())
    return Status(ErrorId::kAdminBadRequest, "nothing is given that would change")
        .Fix("memctl job quota --help lists what may be given");
  const auto limit = [](const std::optional<uint64_t>& bytes) {
    return bytes ? FormatBytes(*bytes) : std::string("none");
  };

  const std::map<std::string, std::string> now{{"guarantee", FormatBytes(job.quota.guarantee)},
                                               {"limit", limit(job.quota.limit)},
                                               {"nvme_limit", limit(job.quota.nvme_limit)},
                                               {"weight", std::to_string(job.quota.weight)},
                                               {"priority", job.quota.priority}};

  Preview preview{OfJob("change the quota of", job), {}};
  bool of_memory = false;
  for (const auto& [field, wanted] : invocation.fields) {
    std::string name = field;
    std::replace(name.begin(), name.end(), '_', ' ');
    preview.effects.push_back(name + ": " + now.at(field) + " becomes " + wanted);
    of_memory = of_memory || (field != "weight" && field != "priority");
  }

  if (of_memory && job.account != "job:" + job.name) {
    preview.effects.push_back("it leaves the account " + job.account +
                              " for one of its own, job:" + job.name);
  }
  preview.effects.emplace_back(
      "until the job ends, or memserver; whether the numbers are sound and have room is checked "
      "when it is done");
  return preview;
}

Result<Preview> OfDrain(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const StatusView status, StatusOf(invocation));
  Preview preview{"drain memserver", {}, {{"jobs", status.jobs}, {"ranks", status.sessions}}};
  preview.effects.emplace_back(status.state == "draining"
                                   ? "it is drained already: nothing changes"
                                   : "no new jobs are taken, until memctl undrain");

  preview.effects.push_back(Counted(status.jobs, "job") + " with " +
                            Counted(status.sessions, "attached rank") + " go on");
  if (const auto wait = invocation.fields.find("wait"); wait != invocation.fields.end()) {
    preview.effects.push_back("then waits for the end of " + Counted(status.sessions, "rank") +
                              ", at most " + wait->second);
  }
  return preview;
}

Result<Preview> OfUndrain(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const StatusView status, StatusOf(invocation));
  const bool drained = status.state == "draining";
  return Preview{
      "end the drain",
      {drained ? "new jobs are taken again" : "memserver is not drained: nothing changes"}};
}

Result<Preview> OfShutdown(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const StatusView status, StatusOf(invocation));
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, "/v1/jobs"));
  TP_ASSIGN_OR_RETURN(const std::vector<JobView> jobs, ReadJobs(body));
  Preview preview{"end memserver (pid " + std::to_string(status.pid) + ")", {}};
  preview.numbers = {{"jobs", status.jobs},
                     {"ranks", status.sessions},
                     {"pool_bytes", status.pool_used},
                     {"nvme_bytes", status.nvme_used}};

  const std::string held =
      Exact(status.pool_used) + " of the pool" +
      (status.nvme_used > 0 ? ", " + Exact(status.nvme_used) + " on NVMe" : "");
  if (!invocation.force) {
    preview.effects = {Counted(status.jobs, "job") + " kept for the next memserver: " + held +
                           "; refused where no keeper holds them",
                       Counted(status.sessions, "attached rank") + " wait for it"};
    return preview;
  }

  if (status.sessions > 0)
    preview.effects.push_back(Counted(status.sessions, "attached rank") + " ended");
  for (const JobView& job : jobs) {
    preview.effects.push_back("job " + job.name + " ended (" + StateText(job) + ", " +
                              Counted(job.version, "step") + "): its states are lost");
  }
  preview.effects.push_back(held + " given back");
  return preview;
}

Result<Preview> OfLogs(const Invocation& invocation) {
  const auto length = invocation.fields.find("for");
  return Preview{"change the level of memserver's log to " + invocation.fields.at("level"),
                 {length == invocation.fields.end()
                      ? "until it is changed again, or memserver ends"
                      : "for " + length->second + "; then the configured level comes back"}};
}

// The overall status with this check left out or counted.
std::string WholeWith(const HealthView& health, const std::string& code, bool counts) {
  std::string worst = "ok";
  for (const HealthCheckView& check : health.checks) {
    if (check.code == code ? !counts : check.muted_seconds > 0) continue;
    if (check.severity == "error" || (check.severity == "warn" && worst == "ok"))
      worst = check.severity;
  }
  return worst;
}

Result<Preview> OfMute(const Invocation& invocation) {
  const bool counts = invocation.fields.contains("unmute");
  const std::string code = invocation.fields.at(counts ? "unmute" : "check");
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, "/v1/health"));
  TP_ASSIGN_OR_RETURN(const HealthView health, ReadHealth(body));
  std::string all;
  for (const HealthCheckView& check : health.checks) {
    all += (all.empty() ? "" : ", ") + check.code;
    if (check.code != code) continue;
    const auto length = invocation.fields.find("for");

    Preview preview{(counts ? "unmute " : "mute ") + code, {}};
    preview.effects.push_back("now it says: " + check.severity + ", " + check.summary);
    if (!counts)
      preview.effects.push_back("for " +
                                (length == invocation.fields.end() ? "1h" : length->second) +
                                " it counts for nothing");

    preview.effects.push_back("the health as a whole: " + health.status + " becomes " +
                              WholeWith(health, code, counts));
    return preview;
  }
  return Status(ErrorId::kAdminBadRequest, "no check of health is called '" + code + "'")
      .Fix("checks are: " + all);
}

Result<Preview> OfScrub(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, "/v1/nvme"));
  TP_ASSIGN_OR_RETURN(const NvmeView nvme, ReadNvme(body));
  if (nvme.directories.empty())
    return Status(ErrorId::kAdminNotFound, "memserver has no NVMe directory")
        .Fix("start it with --nvme DIR:SIZE");

  uint64_t used = 0;
  for (const NvmeDirectoryView& directory : nvme.directories) used += directory.used;
  Preview preview{"check the states on NVMe",
                  {},
                  {{"directories", nvme.directories.size()}, {"nvme_bytes", used}}};
  const bool runs = nvme.scrub_state == "running";
  preview.effects.push_back(runs ? "a check runs already, and goes on: nothing changes"
                                 : "the states in " + Exact(used) + " of " +
                                       std::to_string(nvme.directories.size()) +
                                       " directories are read and checked, while training goes on");
  return preview;
}

Result<Preview> OfTune(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> paths, DirectoriesToTune(invocation));
  Preview preview{"measure drives", {}, {{"directories", paths.size()}}};
  for (const std::string& path : paths) {
    preview.effects.push_back(
        path + ": some 15 s, 512 MiB of it for that time, and its profile is written");
  }
  preview.effects.emplace_back("jobs that use the drives are slower meanwhile");
  return preview;
}

// The server's own dry run: it reads the file.
Result<Preview> OfReload(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const HttpReply reply, Ask(invocation, {"POST", "/v1/reload?dry_run=true"}));
  if (reply.status != 200) return ReadProblem(reply.body);
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> keys, ReadApplied(reply.body, "would_apply"));
  Preview preview{"read the configuration again", {}, {{"settings", keys.size()}}};
  for (const std::string& key : keys) preview.effects.push_back(key + " applied");
  if (keys.empty()) preview.effects.emplace_back("nothing is different");
  return preview;
}

struct PreviewEntry {
  const char* command;
  const char* action;  // empty: of all
  Result<Preview> (*make)(const Invocation&);
};
constexpr auto kPreviews = std::to_array<PreviewEntry>({{"job", "release", OfRelease},
                                                        {"job", "evict", OfEvict},
                                                        {"job", "suspend", OfSuspend},
                                                        {"job", "resume", OfResume},
                                                        {"job", "quota", OfQuota},
                                                        {"drain", "", OfDrain},
                                                        {"undrain", "", OfUndrain},
                                                        {"shutdown", "", OfShutdown},
                                                        {"logs", "", OfLogs},
                                                        {"health", "", OfMute},
                                                        {"nvme", "scrub", OfScrub},
                                                        {"nvme", "tune", OfTune},
                                                        {"config", "set", PreviewOfSet},
                                                        {"config", "reload", OfReload},
                                                        {"checkpoint", "prune", PreviewOfPrune}});

std::string JsonOf(const Preview& preview) {
  JsonWriter json;
  json.BeginObject()
      .Field("dry_run", true)
      .Field("change", preview.change)
      .Key("effects")
      .BeginArray();
  for (const std::string& effect : preview.effects) json.String(effect);
  json.EndArray();
  for (const auto& [name, number] : preview.numbers) json.Field(name, number);
  return json.EndObject().Take() + "\n";
}

std::string PreviewText(const Preview& preview) {
  std::string text = Printable(preview.change) + ":\n";
  for (const std::string& effect : preview.effects) text += "   " + Printable(effect) + "\n";
  return text;
}

}  // namespace

Result<Preview> PreviewOf(const Invocation& invocation) {
  for (const PreviewEntry& entry : kPreviews) {
    if (invocation.command == entry.command &&
        (*entry.action == '\0' || invocation.action == entry.action))
      return entry.make(invocation);
  }
  return Status(ErrorId::kInternal, "the command '" + invocation.command + " " + invocation.action +
                                        "' has no preview");
}

Result<Shown> RunPreview(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const Preview preview, PreviewOf(invocation));
  if (invocation.json) return Shown{JsonOf(preview), ""};
  return Shown{PreviewText(preview), "nothing was changed: --dry-run\n"};
}

}  // namespace tidepool::client
