#include "client/admin/ask_spans.h"

#include <algorithm>
#include <utility>

#include "client/admin/send_http.h"
#include "client/admin/view_fields.h"
#include "client/admin/views.h"
#include "shm/socket_path.h"

namespace tidepool::client {
namespace {

Result<std::string> Send(const std::string& socket_dir, HttpQuestion question, int64_t timeout_ns) {
  const std::string socket =
      shm::AdminSocketPath(socket_dir.empty() ? shm::DefaultClientDir() : socket_dir);
  TP_ASSIGN_OR_RETURN(HttpReply reply, SendHttp(socket, question, timeout_ns));
  if (reply.status != 200) return ReadProblem(reply.body);
  return std::move(reply.body);
}

std::string PathOf(const std::string& job) {
  return "/v1/jobs/" + job + "/spans";
}

ServerSpan ReadSpan(Fields& fields) {
  ServerSpan span;
  uint64_t number = 0, begin_ns = 0, end_ns = 0;
  fields.Read("what", &span.what).Read("chunk", &span.chunk).Read("piece", &span.piece);
  fields.Read("begin_ns", &begin_ns).Read("end_ns", &end_ns);
  for (auto& [key, who] : {std::pair{"rank", &span.rank}, std::pair{"worker", &span.worker},
                           std::pair{"drive", &span.drive}}) {
    if (fields.IsNull(key)) continue;
    fields.Read(key, &number);
    *who = number;
  }

  span.begin_ns = static_cast<int64_t>(begin_ns);
  span.end_ns = static_cast<int64_t>(end_ns);
  return span;
}

}  // namespace

Status RecordSpans(const std::string& socket_dir, const std::string& job, bool record,
                   int64_t timeout_ns) {
  return Send(socket_dir,
              {.method = "PUT",
               .target = PathOf(job),
               .body = std::string("{\"record\":") + (record ? "true" : "false") + "}"},
              timeout_ns)
      .status();
}

Result<ServerSpans> AskSpans(const std::string& socket_dir, const std::string& job,
                             int64_t since_ns, int64_t timeout_ns) {
  const std::string since = std::to_string(std::max<int64_t>(since_ns, 0));
  TP_ASSIGN_OR_RETURN(
      const std::string body,
      Send(socket_dir, {.method = "GET", .target = PathOf(job) + "?since_ns=" + since},
           timeout_ns));

  return ReadDocument<ServerSpans>(body, [](Fields& fields, ServerSpans* answer) {
    uint64_t now_ns = 0;
    fields.Read("recording", &answer->recording).Read("now_ns", &now_ns);
    answer->now_ns = static_cast<int64_t>(now_ns);
    fields.Array("spans", [&](const Fields::Value& value) {
      Fields row(value, fields.wrong());
      answer->spans.push_back(ReadSpan(row));
    });
  });
}

}  // namespace tidepool::client
