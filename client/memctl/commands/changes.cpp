#include "client/memctl/commands/changes.h"

#include <array>
#include <charconv>
#include <string_view>

#include "base/clock.h"
#include "base/text/json_writer.h"
#include "client/memctl/commands/admin_calls.h"
#include "client/admin/views.h"
#include "shm/socket_path.h"

namespace tidepool::client {
namespace {

constexpr auto kChanges = std::to_array<ChangeWord>({{"job", "quota"},
                                                     {"job", "suspend"},
                                                     {"job", "resume"},
                                                     {"job", "evict", true},
                                                     {"job", "release", true},
                                                     {"drain", ""},
                                                     {"undrain", ""},
                                                     {"shutdown", "", true},
                                                     {"logs", ""},
                                                     {"health", "mute"},
                                                     {"health", "unmute"},
                                                     {"nvme", "scrub"},
                                                     {"nvme", "tune"},
                                                     {"config", "set"},
                                                     {"config", "reload"},
                                                     {"checkpoint", "prune", true}});

// The requested action. For `health` it comes from the fields, because --mute and --unmute set it.
std::string_view ActionOf(const Invocation& invocation) {
  if (invocation.command != "health") return invocation.action;
  return invocation.fields.contains("check")    ? "mute"
         : invocation.fields.contains("unmute") ? "unmute"
                                                : "";
}

// The fields as a JSON object; a text of only digits becomes a number.
std::string BodyOf(const std::map<std::string, std::string>& fields) {
  JsonWriter json;
  json.BeginObject();
  for (const auto& [name, text] : fields) {
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    json.Key(name);
    is_number ? json.Uint(number) : json.String(text);
  }
  return json.EndObject().Take();
}

struct Change {
  std::string method, target, done;  // done: the message on success
};

Result<Shown> Apply(const Invocation& invocation, const Change& change) {
  const HttpQuestion question{change.method, change.target,
                              invocation.fields.empty() ? "" : BodyOf(invocation.fields)};
  TP_ASSIGN_OR_RETURN(const HttpReply reply, Ask(invocation, question));
  if (reply.status != 200) return ReadProblem(reply.body);
  return Shown{invocation.json ? reply.body + "\n" : change.done + "\n", "", 0, "", reply.body};
}

struct JobAction {
  const char* name;
  const char* method;
  const char* path;  // after /v1/jobs/{job}
  const char* done;
};
constexpr auto kJobActions = std::to_array<JobAction>(
    {{"quota", "PUT", "/quota", "quota changed; memctl quotas shows it"},
     {"suspend", "POST", "/suspend", "suspended; memctl job resume serves it again"},
     {"resume", "POST", "/resume", "served again"},
     {"evict", "POST", "/evict",
      "its states go to NVMe; memctl nvme status shows how far they are"},
     {"release", "DELETE", "", "released"}});

// Waits until no rank is attached. Remaining jobs are kept for their leases, and go to the next
// memserver.
Status WaitForNoRanks(const Invocation& invocation) {
  Clock* const clock = invocation.clock;
  const int64_t end = clock->NowNs() + invocation.for_ns;
  while (true) {
    TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, "/v1/status"));
    TP_ASSIGN_OR_RETURN(const StatusView view, ReadStatus(body));
    if (view.sessions == 0) return Status();

    if (clock->NowNs() > end) {
      return Status(ErrorId::kWaitTimeout, std::to_string(view.sessions) + " ranks of " +
                                               std::to_string(view.jobs) +
                                               " jobs are still attached")
          .Where(shm::AdminSocketPath(invocation.socket_dir))
          .Fix(
              "new jobs are not taken; memctl ps shows those that are left, memctl undrain takes "
              "new ones again");
    }
    clock->SleepNs(200 * kNsPerMs);
  }
}

}  // namespace

const ChangeWord* FindChange(const Invocation& invocation) {
  for (const ChangeWord& change : kChanges) {
    if (invocation.command == change.command &&
        (*change.action == '\0' || ActionOf(invocation) == change.action))
      return &change;
  }
  return nullptr;
}

std::string ListChanges() {
  std::string text;
  for (const ChangeWord& change : kChanges) {
    text += (text.empty() ? "" : ", ") + std::string(change.command) +
            (*change.action == '\0' ? "" : " ") + change.action;
  }
  return text;
}

Result<Shown> RunJob(const Invocation& invocation, const Style&) {
  for (const JobAction& action : kJobActions) {
    if (invocation.action != action.name) continue;
    return Apply(invocation, {action.method,
                              "/v1/jobs/" + Escaped(invocation.job) + action.path +
                                  (invocation.force ? "?force=true" : ""),
                              "job " + invocation.job + ": " + action.done});
  }
  return Status(ErrorId::kInternal, "the action '" + invocation.action + "' has no code");
}

Result<Shown> RunDrain(const Invocation& invocation, const Style&) {
  Invocation plain = invocation;
  plain.fields.clear();
  TP_ASSIGN_OR_RETURN(
      Shown shown,
      Apply(plain, {"POST", "/v1/drain",
                    "memserver takes no new jobs; memctl ps shows those that are left"}));
  if (!invocation.fields.contains("wait")) return shown;
  TP_RETURN_IF_ERROR(WaitForNoRanks(invocation));
  if (!invocation.json) shown.result = "memserver takes no new jobs, and no rank is attached\n";
  return shown;
}

Result<Shown> RunUndrain(const Invocation& invocation, const Style&) {
  return Apply(invocation, {"DELETE", "/v1/drain", "memserver takes new jobs again"});
}

Result<Shown> RunShutdown(const Invocation& invocation, const Style&) {
  return Apply(invocation,
               {"POST", invocation.force ? "/v1/shutdown?keep=false" : "/v1/shutdown",
                invocation.force ? "memserver and its jobs end"
                                 : "memserver ends; its keeper holds the jobs for the next one"});
}

Result<Shown> RunLogs(const Invocation& invocation, const Style&) {
  return Apply(invocation, {"PUT", "/v1/log", "log level changed"});
}

Result<Shown> RunMute(const Invocation& invocation) {
  if (const auto unmuted = invocation.fields.find("unmute"); unmuted != invocation.fields.end()) {
    Invocation plain = invocation;
    plain.fields.clear();
    return Apply(plain, {"DELETE", Target("/v1/health/mutes", {{"check", unmuted->second}}),
                         unmuted->second + " counts again"});
  }
  Invocation muting = invocation;
  const std::string length = muting.fields.emplace("for", "1h").first->second;
  return Apply(muting,
               {"PUT", "/v1/health/mutes", muting.fields["check"] + " is muted for " + length});
}

Result<Shown> RunScrub(const Invocation& invocation) {
  return Apply(invocation,
               {"POST", "/v1/nvme/scrub",
                "states on NVMe are being checked; memctl nvme status shows how far it is"});
}

Result<Shown> RunReload(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(Shown shown, Apply(invocation, {"POST", "/v1/reload", ""}));
  if (invocation.json) return shown;
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> keys, ReadApplied(shown.answer));
  shown.result = keys.empty() ? "the configuration was read again; nothing is different\n"
                              : "the configuration was read again; applied: ";
  for (const std::string& key : keys) shown.result += key + (&key == &keys.back() ? "\n" : ", ");
  return shown;
}

}  // namespace tidepool::client
