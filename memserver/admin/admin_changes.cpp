#include "memserver/admin/admin_changes.h"

#include <array>
#include <memory>
#include <span>
#include <utility>
#include <variant>

#include "base/text/json_writer.h"
#include "base/units.h"
#include "memserver/admin/reports/health_report.h"
#include "memserver/admin/request_body.h"

namespace tidepool::memserver {
namespace {

using LoopCommand = decltype(AdminCommand::what);
using Command = std::variant<LoopCommand, MainCommand::What>;

constexpr int64_t kMuteMaxNs = 30ll * 24 * 3600 * kNsPerSecond;

// The arguments of a row's handler.
struct ChangeAsk {
  const RequestTarget& target;
  const RequestBody& body;
  const Snapshot& snapshot;
};

// Reads a boolean parameter; `fallback` if it is not given.
Result<bool> ReadSwitch(const RequestTarget& target, const char* name, bool fallback) {
  const std::string* value = target.Find(name);
  if (value == nullptr) return fallback;
  if (*value == "true" || *value == "false") return *value == "true";
  return Status(ErrorId::kAdminBadRequest, "the parameter " + std::string(name) + "='" + *value +
                                               "' is neither true nor false");
}

Result<Command> ReadJobQuota(const ChangeAsk& ask) {
  TP_ASSIGN_OR_RETURN(const QuotaChange change, ReadQuotaChange(ask.body, ask.snapshot.pool_bytes));
  return Command(SetJobQuota{ask.target.path[2], change});
}

Result<Command> ReadSuspend(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({}));
  return Command(SuspendJob{ask.target.path[2], true});
}

Result<Command> ReadResume(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({}));
  return Command(SuspendJob{ask.target.path[2], false});
}

Result<Command> ReadRecord(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({"record"}));
  const RequestBody::Value* record = ask.body.Find("record");
  if (record == nullptr || !std::holds_alternative<bool>(*record))
    return Status(ErrorId::kAdminBadRequest, "the field 'record' must be true or false");
  return Command(RecordSpans{ask.target.path[2], std::get<bool>(*record)});
}

Result<Command> ReadRelease(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({}));
  TP_ASSIGN_OR_RETURN(const bool force, ReadSwitch(ask.target, "force", false));
  return Command(ReleaseJob{ask.target.path[2], force});
}

Result<Command> ReadDrain(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({}));
  return Command(DrainJobs{true});
}

Result<Command> ReadUndrain(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({}));
  return Command(DrainJobs{false});
}

Result<Command> ReadLogLevel(const ChangeAsk& ask) {
  constexpr std::array<std::pair<std::string_view, LogLevel>, 4> kLevels{
      {{"debug", LogLevel::kDebug},
       {"info", LogLevel::kInfo},
       {"warn", LogLevel::kWarn},
       {"error", LogLevel::kError}}};

  TP_RETURN_IF_ERROR(ask.body.CheckFields({"level", "for"}));
  TP_ASSIGN_OR_RETURN(const std::string name, ask.body.Text("level"));
  ChangeLogLevel change;
  if (ask.body.Find("for") != nullptr) {
    TP_ASSIGN_OR_RETURN(const std::string text, ask.body.Text("for"));
    auto duration = ParseDurationNs(text);
    if (!duration.ok())
      return Status(ErrorId::kAdminBadRequest, "the field 'for': " + duration.status().what())
          .Fix(duration.status().fix());
    change.for_ns = *duration;
  }

  for (const auto& [level_name, level] : kLevels) {
    if (name != level_name) continue;
    change.level = level;
    return Command(change);
  }
  return Status(ErrorId::kAdminBadRequest, "'" + name + "' is no level of the log")
      .Fix("give debug, info, warn or error");
}

Status KnowsCheck(const Snapshot& snapshot, const std::string& code) {
  std::string all;
  for (const HealthCheck& check : CheckHealth({.snapshot = std::make_shared<Snapshot>(snapshot)})) {
    if (code == check.code) return Status();
    all += (all.empty() ? "" : ", ") + std::string(check.code);
  }
  return Status(ErrorId::kAdminBadRequest, "no check of health is called '" + code + "'")
      .Fix("checks are: " + all);
}

Result<Command> ReadMute(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({"check", "for"}));
  TP_ASSIGN_OR_RETURN(const std::string code, ask.body.Text("check"));
  TP_ASSIGN_OR_RETURN(const std::string text, ask.body.Text("for"));
  TP_RETURN_IF_ERROR(KnowsCheck(ask.snapshot, code));

  const auto duration = ParseDurationNs(text);
  if (!duration.ok())
    return Status(ErrorId::kAdminBadRequest, "the field 'for': " + duration.status().what())
        .Fix(duration.status().fix());
  if (duration.value() <= 0 || duration.value() > kMuteMaxNs) {
    return Status(
        ErrorId::kAdminBadRequest,
        "a check is muted for some time, and for 30 days at most, not for '" + text + "'");
  }
  return Command(MuteCheck{code, duration.value()});
}

Result<Command> ReadUnmute(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({}));
  const std::string* code = ask.target.Find("check");
  if (code == nullptr) return Status(ErrorId::kAdminBadRequest, "the parameter check is missing");
  TP_RETURN_IF_ERROR(KnowsCheck(ask.snapshot, *code));
  return Command(MuteCheck{*code, 0});
}

Result<Command> ReadStartScrub(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({}));
  return Command(StartScrub{});
}

Result<Command> ReadReload(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({}));
  TP_ASSIGN_OR_RETURN(const bool dry_run, ReadSwitch(ask.target, "dry_run", false));
  return Command(dry_run ? MainCommand::What::kPlanReload : MainCommand::What::kReload);
}

Result<Command> ReadShutdown(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({}));
  TP_ASSIGN_OR_RETURN(const bool keep, ReadSwitch(ask.target, "keep", true));
  return Command(keep ? MainCommand::What::kHandOver : MainCommand::What::kEnd);
}

Result<Command> ReadEvict(const ChangeAsk& ask) {
  TP_RETURN_IF_ERROR(ask.body.CheckFields({}));
  return Command(EvictJob{ask.target.path[2]});
}

struct ChangeRoute {
  const char* method;
  std::array<std::string_view, 4> path;  // "*" stands for any segment
  size_t segments;
  AdminLevel least;
  Result<Command> (*read)(const ChangeAsk& ask);
  std::string_view parameter = {};  // the one parameter that it takes
};

constexpr auto kChanges = std::to_array<ChangeRoute>({
    {"PUT", {"v1", "jobs", "*", "quota"}, 4, AdminLevel::kOperator, ReadJobQuota},
    {"POST", {"v1", "jobs", "*", "suspend"}, 4, AdminLevel::kUser, ReadSuspend},
    {"POST", {"v1", "jobs", "*", "resume"}, 4, AdminLevel::kUser, ReadResume},
    {"POST", {"v1", "jobs", "*", "evict"}, 4, AdminLevel::kUser, ReadEvict},
    {"PUT", {"v1", "jobs", "*", "spans"}, 4, AdminLevel::kUser, ReadRecord},
    {"DELETE", {"v1", "jobs", "*"}, 3, AdminLevel::kUser, ReadRelease, "force"},
    {"POST", {"v1", "nvme", "scrub"}, 3, AdminLevel::kOperator, ReadStartScrub},
    {"PUT", {"v1", "health", "mutes"}, 3, AdminLevel::kOperator, ReadMute},
    {"DELETE", {"v1", "health", "mutes"}, 3, AdminLevel::kOperator, ReadUnmute, "check"},
    {"POST", {"v1", "drain"}, 2, AdminLevel::kOperator, ReadDrain},
    {"DELETE", {"v1", "drain"}, 2, AdminLevel::kOperator, ReadUndrain},
    {"PUT", {"v1", "log"}, 2, AdminLevel::kAdmin, ReadLogLevel},
    {"POST", {"v1", "reload"}, 2, AdminLevel::kAdmin, ReadReload, "dry_run"},
    {"POST", {"v1", "shutdown"}, 2, AdminLevel::kAdmin, ReadShutdown, "keep"},
});

bool Fits(const ChangeRoute& route, const RequestTarget& target) {
  if (target.path.size() != route.segments) return false;
  for (size_t i = 0; i < route.segments; ++i) {
    if (route.path[i] != "*" && route.path[i] != target.path[i]) return false;
  }
  return true;
}

const ChangeRoute* Find(std::string_view method, const RequestTarget& target) {
  for (const ChangeRoute& route : kChanges) {
    if (route.method == method && Fits(route, target)) return &route;
  }
  return nullptr;
}

}  // namespace

Status CheckLevel(const AdminCaller& caller, AdminLevel least) {
  if (caller.level >= least) return Status();
  return Status(ErrorId::kNotOwner, std::string("this takes the level '") + NameOf(least) +
                                        "'; yours is '" + NameOf(caller.level) + "'")
      .Fix("ask a member of the group of operators, or root");
}

bool AdminChanges::Takes(std::string_view method, const RequestTarget& target) {
  return Find(method, target) != nullptr;
}

std::string AdminChanges::MethodsOf(const RequestTarget& target) {
  std::string methods;
  for (const ChangeRoute& route : kChanges) {
    if (Fits(route, target)) methods += (methods.empty() ? "" : ", ") + std::string(route.method);
  }
  return methods;
}

std::vector<std::string> AdminChanges::Endpoints() {
  std::vector<std::string> all;
  for (const ChangeRoute& route : kChanges) {
    all.push_back(route.method + (" " + PathText(std::span(route.path).first(route.segments))));
  }
  return all;
}

AdminAnswer AdminChanges::Apply(const AdminRequest& request, const RequestTarget& target,
                                const Snapshot& snapshot) {
  const ChangeRoute* route = Find(request.method, target);
  if (const Status allowed = CheckLevel(request.caller, route->least); !allowed.ok())
    return ProblemOf(allowed);
  if (const Status known =
          CheckParameters(target, std::span(&route->parameter, route->parameter.empty() ? 0 : 1));
      !known.ok())
    return ProblemOf(known);
  auto body = ParseBody(request.body);
  if (!body.ok()) return ProblemOf(body.status());

  auto command = route->read({target, *body, snapshot});
  if (!command.ok()) return ProblemOf(command.status());
  const auto ticket = std::make_shared<CommandTicket>();
  const auto* to_main = std::get_if<MainCommand::What>(&*command);
  const bool plans = to_main != nullptr && *to_main == MainCommand::What::kPlanReload;
  const bool reads_again = plans || (to_main != nullptr && *to_main == MainCommand::What::kReload);
  if (to_main != nullptr) {
    mail_.to_main->Push({request.caller, ticket, *to_main});
  } else {
    mail_.to_loop->Push(
        AdminCommand{request.caller, ticket, std::get<LoopCommand>(std::move(command).value())});
  }

  const std::optional<Status> result = ticket->Wait(kWaitMs);
  if (!result)
    return ProblemOf(
        Status(ErrorId::kWaitTimeout,
               "the serve loop has not answered in time; the change may still be made"));
  if (!result->ok()) return ProblemOf(*result);

  JsonWriter json;
  json.BeginObject().Field("result", plans ? "planned" : "done");
  if (reads_again) {
    json.Key(plans ? "would_apply" : "applied").BeginArray();
    for (const std::string& key : ticket->changed()) json.String(key);
    json.EndArray();
  }
  return {.status = 200, .body = json.EndObject().Take()};
}

}  // namespace tidepool::memserver
