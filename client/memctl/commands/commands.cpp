#include "client/memctl/commands/commands.h"

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "client/memctl/commands/admin_calls.h"
#include "client/memctl/commands/changes.h"
#include "client/memctl/commands/checkpoints.h"
#include "client/memctl/commands/config_commands.h"
#include "client/memctl/commands/doctor.h"
#include "client/memctl/views/forms.h"
#include "client/memctl/commands/nodes.h"
#include "client/memctl/commands/own_programs.h"
#include "client/memctl/commands/previews.h"
#include "client/memctl/commands/recording.h"
#include "client/memctl/commands/run_report.h"
#include "client/memctl/views/table.h"
#include "client/memctl/commands/timeline.h"
#include "client/memctl/views/top.h"
#include "client/admin/views.h"
#include "shm/protocol.h"
#include "shm/socket_path.h"

namespace tidepool::client {
namespace {

std::string Joined(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Queries, and shows the unchanged JSON or the lines rendered from it.
template <typename Read, typename Render>
Result<Shown> Show(const Invocation& invocation, const std::string& target, Read read,
                   Render render) {
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, target));
  if (invocation.json) return Shown{body + "\n", ""};
  TP_ASSIGN_OR_RETURN(const auto view, read(body));
  return render(view);
}

Result<Shown> RunStatus(const Invocation& invocation, const Style& style) {
  return Show(invocation, "/v1/status", ReadStatus, [&](const StatusView& view) {
    return Shown{Joined(RenderStatus(view, style)), ""};
  });
}

Result<Shown> RunPs(const Invocation& invocation, const Style& style) {
  // Queries one job by its own path, so that a wrong name is an error and not an empty table.
  if (!invocation.job.empty())
    TP_RETURN_IF_ERROR(GetBody(invocation, "/v1/jobs/" + Escaped(invocation.job)).status());
  return Show(invocation, "/v1/jobs", ReadJobs, [&](std::vector<JobView> jobs) {
    const auto other = [&](const JobView& job) {
      return job.name != invocation.job && std::to_string(job.id) != invocation.job;
    };
    if (!invocation.job.empty()) std::erase_if(jobs, other);
    return Shown{Joined(RenderJobs(jobs, style)),
                 jobs.empty() ? "no job is attached; start one with `trainer run`\n" : ""};
  });
}

Shown ShowResidency(const Invocation& invocation, const ResidencyView& view, const Style& style) {
  if (invocation.form == "svg") return {RenderSvg(view), ""};
  if (invocation.form == "html") return {RenderPicturePage(view), ""};
  return {Joined(RenderResidency(view, style)),
          view.jobs.empty() ? "no job is attached; start one with `trainer run`\n" : ""};
}

Result<Shown> RunResidency(const Invocation& invocation, const Style& style) {
  if (!invocation.from.empty()) {
    if (invocation.json)
      return Status(ErrorId::kUsageError,
                    "a recording is shown as a picture; its lines are JSON already")
          .Where("--from");
    TP_ASSIGN_OR_RETURN(const ResidencyView then, ResidencyAt(invocation));
    return ShowResidency(invocation, then, style);
  }

  return Show(invocation, Target("/v1/residency", {{"job", invocation.job}, {"by", invocation.by}}),
              ReadResidency,
              [&](const ResidencyView& view) { return ShowResidency(invocation, view, style); });
}

Result<Shown> RunTopo(const Invocation& given, const Style& style) {
  Invocation invocation = given;
  if (!invocation.xml.empty()) {
    TP_ASSIGN_OR_RETURN(invocation.answer, TopologyOfFile(invocation));
  }
  return Show(invocation, "/v1/topology", ReadTopology, [&](const TopologyView& view) {
    return Shown{Joined(RenderTopology(view, style)), ""};
  });
}

// The command for the next page, with the same filters.
std::string MoreOf(const Invocation& invocation, const std::string& name,
                   const std::string& cursor) {
  // A document for programs has the cursor already.
  if (cursor.empty() || invocation.form == "json" || invocation.form == "yaml") return "";
  std::string line =
      "there are more: memctl " + invocation.command + (name.empty() ? "" : " " + name);
  const std::string limit = invocation.limit == 0 ? "" : std::to_string(invocation.limit);

  for (const auto& [flag, value] : {std::pair{" --job ", invocation.job},
                                    {" --state ", invocation.state},
                                    {" --tier ", invocation.tier},
                                    {" --limit ", limit},
                                    {" --cursor ", cursor}}) {
    if (!value.empty()) line += flag + value;
  }
  return Printable(line) + "\n";
}

Result<Shown> RunChunks(const Invocation& invocation, const Style& style) {
  const std::string limit = invocation.limit == 0 ? "" : std::to_string(invocation.limit);
  const std::string target = Target("/v1/chunks", {{"job", invocation.job},
                                                   {"state", invocation.state},
                                                   {"tier", invocation.tier},
                                                   {"limit", limit},
                                                   {"cursor", invocation.cursor}});
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, target));
  TP_ASSIGN_OR_RETURN(const ChunksView view, ReadChunks(body));
  return Shown{invocation.json ? body + "\n" : Joined(RenderChunks(view, style)),
               MoreOf(invocation, "", view.next_cursor)};
}

// The error of `memctl chunk` when the chunk does not exist, or no tensor lies in it.
Status NoTensorIn(const Invocation& invocation) {
  const std::string of_job = invocation.job.empty() ? "" : " of job " + invocation.job;
  return Status(ErrorId::kAdminNotFound, "no tensor lies in chunk " + invocation.chunk + of_job)
      .Why("there is no such chunk, it is frozen, or its job has not told its tensors")
      .Fix("memctl chunks lists the chunks, memctl residency --by tensor what lies in them");
}

Result<Shown> RunTensors(const Invocation& invocation, const Style& style) {
  const std::string limit = invocation.limit == 0 ? "" : std::to_string(invocation.limit);
  const std::string target = Target("/v1/tensors", {{"job", invocation.job},
                                                    {"name", invocation.name},
                                                    {"chunk", invocation.chunk},
                                                    {"limit", limit},
                                                    {"cursor", invocation.cursor}});
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, target));
  TP_ASSIGN_OR_RETURN(const TensorsView view, ReadTensors(body));
  if (view.tensors.empty() && invocation.command == "chunk") return NoTensorIn(invocation);
  if (invocation.json)
    return Shown{body + "\n", MoreOf(invocation, invocation.name, view.next_cursor)};

  const std::string none =
      view.tensors.empty() ? "no job has such a tensor; memctl ps lists the jobs\n" : "";
  return Shown{Joined(RenderTensors(view, style)),
               none + MoreOf(invocation, invocation.name, view.next_cursor)};
}

Result<Shown> RunEvents(const Invocation& invocation, const Style&) {
  const std::string limit = invocation.limit == 0 ? "" : std::to_string(invocation.limit);
  TP_ASSIGN_OR_RETURN(
      const std::string body,
      GetBody(invocation, Target("/v1/events", {{"after", invocation.cursor}, {"limit", limit}})));
  TP_ASSIGN_OR_RETURN(std::vector<EventView> events, ReadEvents(body));
  // A continued look shows all events since the last one.
  const uint64_t skipped =
      invocation.last > 0 && invocation.cursor.empty() && events.size() > invocation.last
          ? events.size() - invocation.last
          : 0;
  size_t begin = 0;
  for (uint64_t line = 0; line < skipped; ++line) begin = body.find('\n', begin) + 1;
  events.erase(events.begin(), events.begin() + static_cast<ptrdiff_t>(skipped));
  Shown shown{invocation.json ? body.substr(begin) : Joined(RenderEvents(events)), ""};
  shown.cursor = events.empty() ? invocation.cursor : std::to_string(events.back().number);
  return shown;
}

Result<Shown> RunQuotas(const Invocation& invocation, const Style& style) {
  return Show(invocation, "/v1/quotas", ReadQuotas, [&](const QuotasView& view) {
    return Shown{Joined(RenderQuotas(view, style)), ""};
  });
}

Result<Shown> RunHealthCommand(const Invocation& invocation, const Style& style) {
  return FindChange(invocation) != nullptr ? RunMute(invocation) : RunHealth(invocation, style);
}

Result<Shown> RunNvme(const Invocation& invocation, const Style& style) {
  if (invocation.action == "scrub") return RunScrub(invocation);
  if (invocation.action == "tune") return RunTune(invocation, style);
  return Show(invocation, "/v1/nvme", ReadNvme, [&](const NvmeView& view) {
    return Shown{Joined(RenderNvme(view, style)), ""};
  });
}

Result<Shown> RunVersion(const Invocation& invocation, const Style&) {
  const std::string own =
      "memctl     " TIDEPOOL_VERSION "   abi " + std::to_string(shm::kOwnProtocols.highest) + "\n";
  auto body = GetBody(invocation, "/v1/version");
  // The own release is always known, so a server that does not answer is only a remark here.
  if (!body.ok() && !invocation.json) return Shown{own, body.status().Format() + "\n"};
  if (!body.ok()) return body.status();
  if (invocation.json) return Shown{*body + "\n", ""};
  TP_ASSIGN_OR_RETURN(const VersionView view, ReadVersion(*body));
  return Shown{own + "memserver  " + view.version + "   abi " + std::to_string(view.abi) + "   " +
                   view.build + "   pid " + std::to_string(view.pid) + "\n",
               ""};
}

Result<Shown> RunWaitReady(const Invocation& invocation, const Style&) {
  constexpr int64_t kPauseNs = 100 * kNsPerMs;
  Clock* const clock = invocation.clock;
  const int64_t end = clock->NowNs() + invocation.timeout_ns;
  Invocation once = invocation;
  while (true) {
    once.timeout_ns = std::max<int64_t>(end - clock->NowNs(), kNsPerMs);

    auto body = GetBody(once, "/readyz");
    if (body.ok()) return Shown{invocation.json ? *body + "\n" : "memserver is ready\n", ""};
    if (body.status().id() == ErrorId::kNotOwner) return body.status();
    if (clock->NowNs() + kPauseNs > end) {
      return Status(ErrorId::kWaitTimeout,
                    "memserver did not become ready in time: " + body.status().what())
          .Where(shm::AdminSocketPath(invocation.socket_dir));
    }
    clock->SleepNs(kPauseNs);
  }
}

// The answer of a probe: the problem, if any, says why.
Result<Shown> RunReady(const Invocation& invocation, const Style&) {
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, "/readyz"));
  return Shown{invocation.json ? body + "\n" : "memserver is ready\n", ""};
}
Result<Shown> RunLive(const Invocation& invocation, const Style&) {
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, "/livez"));
  return Shown{invocation.json ? body + "\n" : "memserver is alive\n", ""};
}

Result<Shown> RunApi(const Invocation& invocation, const Style&) {
  const auto bad = [](char c) { return static_cast<unsigned char>(c) <= 0x20 || c == 0x7F; };
  for (const std::string* text : {&invocation.method, &invocation.target}) {
    if (std::any_of(text->begin(), text->end(), bad))
      return Status(ErrorId::kUsageError, "'" + *text + "' holds a blank or control character");
  }
  if (!invocation.target.starts_with("/"))
    return Status(ErrorId::kUsageError,
                  "the path '" + invocation.target + "' does not begin with /");

  TP_ASSIGN_OR_RETURN(const HttpReply reply,
                      Ask(invocation, {invocation.method, invocation.target}));
  if (reply.status == 200) return Shown{reply.body + "\n", ""};
  return ReadProblem(reply.body);
}

// Converts the command's JSON to -o jsonl or yaml. An answer that is not JSON (`api GET /metrics`)
// stays unchanged.
Status TakeForm(const Invocation& invocation, const char* rows, Shown* shown) {
  const bool is_json = shown->result.starts_with('{') || shown->result.starts_with('[');
  if (!is_json || !invocation.json || invocation.form == "json") return Status();
  const bool are_lines = invocation.command == "events";
  if (are_lines && invocation.form == "jsonl") return Status();
  TP_ASSIGN_OR_RETURN(shown->result, invocation.form == "jsonl" ? AsJsonLines(shown->result, rows)
                                     : are_lines                ? LinesAsYaml(shown->result)
                                                                : AsYaml(shown->result));
  return Status();
}

struct Command {
  const char* name;
  Result<Shown> (*run)(const Invocation&, const Style&);
  // Name of the JSON list that the table shows; each element is a line of -o jsonl.
  const char* rows = "";
};
constexpr auto kCommands = std::to_array<Command>({{"status", RunStatus},
                                                   {"ps", RunPs, "jobs"},
                                                   {"residency", RunResidency, "jobs"},
                                                   {"chunks", RunChunks, "chunks"},
                                                   {"tensors", RunTensors, "tensors"},
                                                   {"chunk", RunTensors, "tensors"},
                                                   {"topo", RunTopo},
                                                   {"quotas", RunQuotas},
                                                   {"nvme", RunNvme},
                                                   {"config", RunConfig, "settings"},
                                                   {"checkpoint", RunCheckpoint, "checkpoints"},
                                                   {"snapshot", RunSnapshot},
                                                   {"job", RunJob},
                                                   {"health", RunHealthCommand, "checks"},
                                                   {"doctor", RunDoctor, "checks"},
                                                   {"explain", RunExplain, "errors"},
                                                   {"events", RunEvents},
                                                   {"top", RunTop},
                                                   {"record", RunRecord},
                                                   {"report", RunReport},
                                                   {"timeline", RunTimeline},
                                                   {"drain", RunDrain},
                                                   {"undrain", RunUndrain},
                                                   {"shutdown", RunShutdown},
                                                   {"logs", RunLogs},
                                                   {"version", RunVersion},
                                                   {"wait-ready", RunWaitReady},
                                                   {"ready", RunReady},
                                                   {"live", RunLive},
                                                   {"api", RunApi}});

}  // namespace

Result<Shown> RunCommand(const Invocation& invocation, const Style& style) {
  Style own = style;
  own.wide = invocation.form == "wide";
  if (!invocation.nodes.empty()) {
    return RunOnNodes(invocation, own,
                      [&own](const Invocation& here) { return RunCommand(here, own); });
  }

  for (const Command& command : kCommands) {
    if (invocation.command != command.name) continue;
    TP_ASSIGN_OR_RETURN(Shown shown,
                        invocation.dry_run ? RunPreview(invocation) : command.run(invocation, own));
    TP_RETURN_IF_ERROR(TakeForm(invocation, command.rows, &shown));
    return shown;
  }
  return Status(ErrorId::kInternal, "the command '" + invocation.command + "' has no code");
}

}  // namespace tidepool::client
