#include "client/memctl/commands/doctor.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error_catalog.h"
#include "base/text/json_writer.h"
#include "base/text/suggest.h"
#include "base/units.h"
#include "client/memctl/commands/admin_calls.h"
#include "client/memctl/views/table.h"
#include "shm/socket_path.h"

namespace tidepool::client {
namespace {

const std::string kOk = "ok", kWarn = "warn", kError = "error";

std::string Joined(const std::vector<std::string>& texts, const char* between) {
  std::string text;
  for (const std::string& each : texts) text += (text.empty() ? "" : between) + each;
  return text;
}

std::string Rendered(const HealthView& health, const Style& style) {
  Table table({{"CHECK"}, {"STATE"}, {"WHAT"}});
  for (const HealthCheckView& check : health.checks) {
    const std::string muted =
        check.muted_seconds > 0 ? ", muted for " + FormatDuration(check.muted_seconds) : "";
    table.Add(
        {check.code, check.severity + muted,
         check.summary + (check.detail.empty() ? "" : " (" + Joined(check.detail, ", ") + ")")},
        check.node);
    if (!check.remedy.empty()) table.Add({"", "", "fix: " + check.remedy}, check.node);
  }

  return Joined(table.Lines(style.header), "\n") + "\n";
}

HealthCheckView CheckDirectory(const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) {
    return {"SOCKET_DIR",
            kError,
            path + ": " + std::strerror(errno),
            {},
            "start a memserver (memserver run), or name the directory of one that runs (-s, "
            "TIDEPOOL_SOCKET_DIR)",
            0};
  }

  if (!S_ISDIR(about.st_mode))
    return {"SOCKET_DIR",
            kError,
            path + " is no directory",
            {},
            "give the directory in which the sockets are (-s DIR)",
            0};

  if (access(path.c_str(), X_OK) != 0) {
    return {"SOCKET_DIR",
            kError,
            path + " is not open to you: it belongs to user " + std::to_string(about.st_uid) +
                " and group " + std::to_string(about.st_gid),
            {},
            "a private memserver serves its own user; of a service, join the group (usermod "
            "--append --groups), then log in again",
            0};
  }
  return {"SOCKET_DIR", kOk, path, {}, "", 0};
}

HealthCheckView CheckSockets(const std::string& path) {
  std::vector<std::string> missing;
  for (const std::string& socket : {shm::AdminSocketPath(path), shm::DataSocketPath(path)}) {
    struct stat about {};
    if (stat(socket.c_str(), &about) != 0 || !S_ISSOCK(about.st_mode)) missing.push_back(socket);
  }
  if (missing.empty()) return {"SOCKETS", kOk, "both sockets are there", {}, "", 0};

  return {"SOCKETS",
          kError,
          "sockets are missing",
          missing,
          "memserver is starting, or has ended: see its log (journalctl -u tidepool-memserver)",
          0};
}

// Also if the server is draining or stalled: its checks tell more.
void AddServer(const Invocation& invocation, HealthView* health) {
  auto body = GetBody(invocation, "/v1/health");
  auto found = body.ok() ? ReadHealth(*body) : Result<HealthView>(body.status());
  if (!found.ok()) {
    const std::string& fix = found.status().fix();
    const std::string advice = fix.empty() ? ErrorEntryOf(found.status().id()).advice : fix;
    health->checks.push_back({"MEMSERVER", kError, found.status().what(), {}, advice, 0});
    return;
  }
  health->checks.push_back({"MEMSERVER", kOk, "it answers", {}, "", 0});
  std::move(found->checks.begin(), found->checks.end(), std::back_inserter(health->checks));
}

std::string JsonOf(const HealthView& health) {
  JsonWriter json;
  json.BeginObject().Field("status", health.status).Key("checks").BeginArray();
  for (const HealthCheckView& check : health.checks) {
    json.BeginObject()
        .Field("code", check.code)
        .Field("severity", check.severity)
        .Field("summary", check.summary)
        .Key("detail")
        .BeginArray();

    for (const std::string& each : check.detail) json.String(each);
    json.EndArray()
        .Field("remedy", check.remedy)
        .Field("muted_seconds", check.muted_seconds)
        .EndObject();
  }
  return json.EndArray().EndObject().Take() + "\n";
}

std::string WorstOf(const HealthView& health) {
  std::string worst = kOk;
  for (const HealthCheckView& check : health.checks) {
    if (check.muted_seconds > 0) continue;
    if (check.severity == kError || (check.severity == kWarn && worst == kOk))
      worst = check.severity;
  }
  return worst;
}

const char* ClassOf(Code code) {
  constexpr std::array<const char*, 9> kNames{"no error",
                                              "the input is wrong",
                                              "a named thing does not exist",
                                              "there is no room, or no right",
                                              "a peer is gone, or not there yet",
                                              "a wait ended without its event",
                                              "bytes are not what they must be",
                                              "two sides speak different versions",
                                              "the operating system refused or failed"};
  return kNames[static_cast<size_t>(code)];
}

}  // namespace

Result<Shown> RunHealth(const Invocation& invocation, const Style& style) {
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, "/v1/health"));
  TP_ASSIGN_OR_RETURN(const HealthView health, ReadHealth(body));
  Shown shown{invocation.json ? body + "\n" : Rendered(health, style), ""};
  shown.exit_code = health.status == kOk ? 0 : health.status == kWarn ? 1 : 2;
  return shown;
}

Result<Shown> RunDoctor(const Invocation& invocation, const Style& style) {
  HealthView health;
  health.checks.push_back(CheckDirectory(invocation.socket_dir));
  if (health.checks.back().severity == kOk)
    health.checks.push_back(CheckSockets(invocation.socket_dir));
  if (health.checks.back().severity == kOk) AddServer(invocation, &health);
  health.status = WorstOf(health);
  Shown shown{invocation.json ? JsonOf(health) : Rendered(health, style), ""};
  shown.exit_code = health.status == kError ? kExitHostUnfit : kExitOk;
  return shown;
}

namespace {

std::string NumberOf(const ErrorEntry& entry) {
  return "TP" + std::to_string(static_cast<unsigned>(entry.id));
}

void WriteEntry(const ErrorEntry& entry, JsonWriter* json) {
  json->BeginObject()
      .Field("code", NumberOf(entry))
      .Field("name", entry.name)
      .Field("class", ClassOf(entry.code));
  json->Field("exit_code", entry.exit_code)
      .Field("meaning", entry.meaning)
      .Field("remedy", entry.advice)
      .EndObject();
}

Shown WholeCatalog(bool as_json, const Style& style) {
  JsonWriter json;
  json.BeginObject().Key("errors").BeginArray();
  Table table({{"NUMBER"}, {"NAME"}, {"EXIT CODE", true}, {"MEANING"}});
  for (const ErrorEntry& entry : ErrorCatalog()) {
    WriteEntry(entry, &json);
    table.Add({NumberOf(entry), entry.name, std::to_string(entry.exit_code), entry.meaning});
  }
  if (as_json) return {json.EndArray().EndObject().Take() + "\n", ""};

  std::string text;
  for (const std::string& line : table.Lines(style.header)) text += line + "\n";
  return {text, ""};
}

}  // namespace

Result<Shown> RunExplain(const Invocation& invocation, const Style& style) {
  if (invocation.target.empty()) return WholeCatalog(invocation.json, style);
  std::vector<std::string_view> names;
  for (const ErrorEntry& entry : ErrorCatalog()) {
    const std::string number = NumberOf(entry);
    names.emplace_back(entry.name);
    if (invocation.target != number && "TP" + invocation.target != number &&
        invocation.target != entry.name)
      continue;

    if (invocation.json) {
      JsonWriter json;
      WriteEntry(entry, &json);
      return Shown{json.Take() + "\n", ""};
    }

    return Shown{number + "  " + entry.name + ": " + ClassOf(entry.code) + "\n   " + entry.meaning +
                     "\n   fix:   " + entry.advice + "\n   exit code " +
                     std::to_string(entry.exit_code) + "\n",
                 ""};
  }
  return Status(ErrorId::kUsageError, "no error is called '" + invocation.target + "'" +
                                          DidYouMean(invocation.target, names))
      .Fix("give a number or a name, as TP2101 or PoolFull; `memctl explain` lists all");
}

}  // namespace tidepool::client
