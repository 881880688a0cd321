#include "client/admin/ask_layout.h"

#include <optional>
#include <utility>

#include "client/admin/send_http.h"
#include "client/admin/view_fields.h"
#include "client/admin/views.h"
#include "shm/socket_path.h"

namespace tidepool::client {
namespace {

struct Held {
  uint64_t id = 0, rank_rcache_bytes = 0;
};

Result<std::string> Get(const std::string& socket, const std::string& target, int64_t timeout_ns) {
  TP_ASSIGN_OR_RETURN(HttpReply reply,
                      SendHttp(socket, {.method = "GET", .target = target}, timeout_ns));
  if (reply.status != 200) return ReadProblem(reply.body);
  return std::move(reply.body);
}

Result<Held> FindJob(const std::string& jobs, const std::string& name) {
  std::optional<Held> found;
  TP_RETURN_IF_ERROR(ReadFields(jobs, [&](Fields& fields) {
    fields.Array("jobs", [&](const Fields::Value& value) {
      Fields row(value, fields.wrong());
      Held held;
      std::string its_name;

      row.Read("id", &held.id).Read("name", &its_name);
      row.Read("rank_rcache_bytes", &held.rank_rcache_bytes);
      if (its_name == name) found = held;
    });
  }));

  if (found) return *found;
  return Status(ErrorId::kAdminNotFound, "memserver holds no job " + name);
}

}  // namespace

Result<HeldLayout> AskLayout(const std::string& socket_dir, const std::string& job,
                             int64_t timeout_ns) {
  const std::string socket =
      shm::AdminSocketPath(socket_dir.empty() ? shm::DefaultClientDir() : socket_dir);
  TP_ASSIGN_OR_RETURN(const std::string jobs, Get(socket, "/v1/jobs", timeout_ns));
  TP_ASSIGN_OR_RETURN(const Held held, FindJob(jobs, job));

  HeldLayout layout{{}, held.rank_rcache_bytes};
  const std::string first = "/v1/tensors?limit=10000&job=" + std::to_string(held.id);
  for (std::string target = first; !target.empty();) {
    TP_ASSIGN_OR_RETURN(const std::string page, Get(socket, target, timeout_ns));
    TP_ASSIGN_OR_RETURN(TensorsView tensors, ReadTensors(page));
    for (TensorView& tensor : tensors.tensors) layout.parameters.push_back(std::move(tensor.name));
    target = tensors.next_cursor.empty() ? "" : first + "&cursor=" + tensors.next_cursor;
  }
  return layout;
}

}  // namespace tidepool::client
