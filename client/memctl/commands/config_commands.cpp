#include "client/memctl/commands/config_commands.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/text/json_writer.h"
#include "base/text/suggest.h"
#include "client/memctl/commands/admin_calls.h"
#include "client/memctl/commands/changes.h"
#include "client/memctl/commands/config_edit.h"
#include "client/admin/views.h"
#include "shm/socket_path.h"

namespace tidepool::client {
namespace {

Result<ConfigView> ConfigOf(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, "/v1/config"));
  return ReadConfig(body);
}

Result<SettingView> SettingOf(const ConfigView& config, const std::string& key) {
  std::vector<std::string_view> names;
  for (const SettingView& each : config.settings) {
    if (each.key == key) return each;
    names.emplace_back(each.key);
  }
  return Status(ErrorId::kAdminNotFound,
                "no setting is called '" + key + "'" + DidYouMean(key, names))
      .Fix("memctl config show lists all");
}

// One setting: only its value, or an object.
Result<Shown> GetSetting(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const ConfigView config, ConfigOf(invocation));
  TP_ASSIGN_OR_RETURN(const SettingView setting, SettingOf(config, invocation.target));
  if (!invocation.json) return Shown{setting.value + "\n", ""};
  JsonWriter json;
  json.BeginObject()
      .Field("key", setting.key)
      .Field("value", setting.value)
      .Field("origin", setting.origin)
      .Field("default", setting.fallback);
  return Shown{json.Field("reloads", setting.reloads).EndObject().Take() + "\n", ""};
}

// A setting, and the file before and after the edit.
struct PlannedEdit {
  SettingView setting;
  std::string file, before;
  EditedText after;
};

// The server names the file that memctl changes, so only the server's own user may trust it. Others
// name the file themselves.
Result<std::string> FileOf(const Invocation& invocation, const ConfigView& config) {
  if (!invocation.file.empty()) return invocation.file;
  if (config.file.empty())
    return Status(ErrorId::kUsageError, "memserver was started without a configuration file")
        .Fix("start it with --config FILE, or with other flags");
  struct stat socket {};
  const bool own = stat(shm::AdminSocketPath(invocation.socket_dir).c_str(), &socket) == 0 &&
                   socket.st_uid == geteuid();
  if (own && config.file.starts_with("/")) return config.file;

  return Status(ErrorId::kUsageError, "the file is to be named")
      .Why(own ? "memserver was given a path from where it was started: " + config.file
               : "memserver is another user's, and says that it reads " + config.file)
      .Fix("memctl config set " + invocation.target + " " + invocation.value + " --file FILE");
}

Result<PlannedEdit> PlanSet(const Invocation& invocation) {
  PlannedEdit plan;
  TP_ASSIGN_OR_RETURN(const ConfigView config, ConfigOf(invocation));
  TP_ASSIGN_OR_RETURN(plan.setting, SettingOf(config, invocation.target));
  TP_ASSIGN_OR_RETURN(plan.file, FileOf(invocation, config));
  const std::string& origin = plan.setting.origin;
  ConfigEdit edit{plan.setting.key, invocation.value, 0};

  if (origin.starts_with(config.file + ":") && !config.file.empty()) {
    const size_t begin = config.file.size() + 1;
    std::from_chars(origin.data() + begin, origin.data() + origin.size(), edit.line);
  } else if (origin != "default") {
    return Status(ErrorId::kUsageError,
                  edit.key + " comes from " + origin + ", which wins over the file")
        .Fix("start memserver without it, then set it in the file");
  }
  TP_ASSIGN_OR_RETURN(plan.before, ReadWhole(plan.file));
  TP_ASSIGN_OR_RETURN(plan.after, EditedConfig(plan.before, edit));
  return plan;
}

// "limits.jobs: 64 (default) becomes 7, in /etc/x.toml:4".
std::string TextOf(const PlannedEdit& plan, const std::string& value) {
  return plan.setting.key + ": " + plan.setting.value + " (" + plan.setting.origin + ") becomes " +
         value + ", in " + plan.file + ":" + std::to_string(plan.after.line);
}

// Changes the file first, because memserver reads no other; restores it if memserver refuses it.
Result<Shown> SetSetting(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const PlannedEdit plan, PlanSet(invocation));
  TP_RETURN_IF_ERROR(ReplaceFile(plan.file, plan.after.text));
  auto reply = Ask(invocation, {"POST", "/v1/reload"});
  // Whether memserver has read the file is unknown, so the file keeps the requested setting.
  if (!reply.ok())
    return Status(reply.status())
        .Fix(plan.file + " is changed; when memserver answers: memctl config reload");
  const Status refused = reply->status == 200 ? Status() : ReadProblem(reply->body);
  if (!refused.ok() && refused.id() != ErrorId::kConfigNeedsRestart) {
    TP_RETURN_IF_ERROR(ReplaceFile(plan.file, plan.before));
    return refused;
  }

  if (invocation.json) {
    JsonWriter json;
    json.BeginObject()
        .Field("result", "done")
        .Field("key", plan.setting.key)
        .Field("value", invocation.value)
        .Field("file", plan.file);
    return Shown{
        json.Field("line", plan.after.line).Field("applied", refused.ok()).EndObject().Take() +
            "\n",
        ""};
  }

  const std::string when =
      refused.ok() ? "" : "when memserver is started again (" + refused.why() + ")";
  return Shown{
      TextOf(plan, invocation.value) + (refused.ok() ? "; it holds now" : "; " + when) + "\n", ""};
}

}  // namespace

Result<Preview> PreviewOfSet(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const PlannedEdit plan, PlanSet(invocation));
  const bool reloads = plan.setting.reloads;
  return Preview{
      "change a setting",
      {TextOf(plan, invocation.value),
       reloads ? "at once, by a reload, if memserver finds it sound; else the file stays as it is"
               : "when memserver is started again; a value that it finds wrong is not kept"},
      {{"line", plan.after.line}}};
}

Result<Shown> RunConfig(const Invocation& invocation, const Style& style) {
  if (invocation.action == "get") return GetSetting(invocation);
  if (invocation.action == "set") return SetSetting(invocation);
  if (invocation.action == "reload") return RunReload(invocation);

  TP_ASSIGN_OR_RETURN(
      const std::string body,
      GetBody(invocation, invocation.action == "diff" ? "/v1/config/diff" : "/v1/config"));
  if (invocation.json) return Shown{body + "\n", ""};
  TP_ASSIGN_OR_RETURN(const ConfigView config, ReadConfig(body));
  std::string text;
  for (const std::string& line : RenderConfig(config, style)) text += line + "\n";
  return Shown{text, config.settings.empty() ? "every setting is the default\n" : ""};
}

}  // namespace tidepool::client
