#include "client/memctl/commands/own_programs.h"

#include <string>
#include <vector>

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

}  // namespace tidepool::client
