#include "client/admin/ask_job.h"

#include <unistd.h>

#include <utility>

#include "client/admin/send_http.h"
#include "shm/socket_path.h"

namespace tidepool::client {

Result<JobWord> AskJob(const std::string& socket_dir, const std::string& name, int64_t timeout_ns) {
  const std::string directory = socket_dir.empty() ? shm::DefaultClientDir() : socket_dir;
  TP_ASSIGN_OR_RETURN(const HttpReply reply,
                      SendHttp(shm::AdminSocketPath(directory),
                               {.method = "GET", .target = "/v1/jobs"}, timeout_ns));
  if (reply.status != 200) return ReadProblem(reply.body);

  TP_ASSIGN_OR_RETURN(std::vector<JobView> jobs, ReadJobs(reply.body));
  TP_ASSIGN_OR_RETURN(std::vector<LostJobView> lost, ReadLostJobs(reply.body));
  JobWord word;
  for (JobView& job : jobs) {
    if (job.name == name) word.job = std::move(job);
  }
  for (LostJobView& job : lost) {
    if (job.name == name && job.uid == geteuid()) word.lost = std::move(job);
  }
  return word;
}

}  // namespace tidepool::client
