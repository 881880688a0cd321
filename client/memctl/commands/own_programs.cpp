#include "client/memctl/commands/own_programs.h"

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/error_catalog.h"
#include "base/text/json_writer.h"
#include "client/memctl/commands/admin_calls.h"
#include "client/memctl/commands/run_programs.h"
#include "client/admin/views.h"

namespace tidepool::client {

Result<std::string> TopologyOfFile(const Invocation& invocation) {
  const ProgramEnd end =
      RunPrograms({{MemserverProgram(), "topo", "--topology", invocation.xml}}).front();
  if (end.exit_code == 0) return end.output.substr(0, end.output.find('\n'));
  return Status(ErrorId::kFileUnreadable, "the topology cannot be read")
      .Where(invocation.xml)
      .Why("memserver says: " + end.errors.substr(0, end.errors.find('\n')))
      .Fix("give a file of `lstopo --of xml FILE`; memserver has to be beside memctl, or in PATH");
}

Result<std::vector<std::string>> DirectoriesToTune(const Invocation& invocation) {
  if (!invocation.directories.empty()) return invocation.directories;
  TP_ASSIGN_OR_RETURN(const std::string body, GetBody(invocation, "/v1/nvme"));
  TP_ASSIGN_OR_RETURN(const NvmeView nvme, ReadNvme(body));
  std::vector<std::string> paths;
  for (const NvmeDirectoryView& directory : nvme.directories) paths.push_back(directory.path);
  if (!paths.empty()) return paths;
  return Status(ErrorId::kAdminNotFound, "memserver has no NVMe directory")
      .Fix("name one: memctl nvme tune /mnt/drive");
}

Result<Shown> RunTune(const Invocation& invocation, const Style&) {
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> paths, DirectoriesToTune(invocation));
  Shown shown;
  std::string documents;
  for (const std::string& path : paths) {
    if (invocation.say)
      invocation.say("measuring " + path + ": some 15 s, and 512 MiB of it for that time");
    std::vector<std::string> command{MemserverProgram(), "bench", "nvme", path};
    if (invocation.json) command.insert(command.end(), {"-o", "json"});

    const ProgramEnd end = RunPrograms({command}).front();
    shown.remark += end.errors;
    if (end.exit_code != 0 && shown.exit_code == 0) shown.exit_code = end.exit_code;
    if (end.exit_code != 0) continue;
    shown.result += end.output;
    documents += (documents.empty() ? "" : ",") + end.output.substr(0, end.output.find('\n'));
  }
  if (invocation.json) shown.result = "{\"directories\":[" + documents + "]}\n";
  if (shown.exit_code == 0)
    shown.remark += "a memserver that runs takes this when it is started again\n";
  return shown;
}

Result<Shown> RunSnapshot(const Invocation& invocation, const Style&) {
  const auto field = [&invocation](const char* name) {
    const auto found = invocation.fields.find(name);
    return found == invocation.fields.end() ? std::string() : found->second;
  };

  const std::string keep = field("keep").empty() ? "0" : field("keep");
  const ProgramEnd end =
      RunPrograms({{OwnProgram("tidepool-checkpoint"), "snapshot", invocation.socket_dir,
                    invocation.job, field("to"), keep, field("like")}})
          .front();
  Shown shown{"", end.errors};
  shown.exit_code = end.exit_code == 127 ? kExitFailed : end.exit_code;
  if (end.exit_code != 0) return shown;

  std::istringstream lines(end.output);
  std::string version, described, path;
  std::getline(lines, version);
  std::getline(lines, described);
  std::getline(lines, path);
  const bool is_model = described == "1";

  shown.result = "saved " + Printable(path) + "\n";
  if (invocation.json)
    shown.result =
        JsonWriter()
            .BeginObject()
            .Field("path", path)
            .Field("version", static_cast<uint64_t>(std::strtoull(version.c_str(), nullptr, 10)))
            .Field("described", is_model)
            .EndObject()
            .Take() +
        "\n";

  if (!is_model)
    shown.remark +=
        "it has no config.json: a run goes on from it, but trainer sample, export and "
        "--from need one; --like DIR takes it from there\n";
  return shown;
}

}  // namespace tidepool::client
