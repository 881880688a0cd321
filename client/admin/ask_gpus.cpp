#include "client/admin/ask_gpus.h"

#include <utility>

#include "client/admin/send_http.h"
#include "shm/socket_path.h"

namespace tidepool::client {

Result<std::vector<GpuView>> AskGpus(const std::string& socket_dir, int64_t timeout_ns) {
  const std::string directory = socket_dir.empty() ? shm::DefaultClientDir() : socket_dir;
  TP_ASSIGN_OR_RETURN(const HttpReply reply,
                      SendHttp(shm::AdminSocketPath(directory),
                               {.method = "GET", .target = "/v1/status"}, timeout_ns));
  if (reply.status != 200) return ReadProblem(reply.body);
  TP_ASSIGN_OR_RETURN(StatusView status, ReadStatus(reply.body));
  return std::move(status.gpus);
}

}  // namespace tidepool::client
