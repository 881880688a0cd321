#include "client/memctl/commands/admin_calls.h"

#include <array>
#include <cstdio>

#include "base/clock.h"
#include "base/units.h"
#include "client/memctl/views/table.h"
#include "client/admin/views.h"
#include "shm/socket_path.h"

namespace tidepool::client {

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_';
    std::array<char, 4> escape{};
    std::snprintf(escape.data(), escape.size(), "%%%02X",
                  static_cast<unsigned>(static_cast<unsigned char>(c)));
    out += plain ? std::string(1, c) : escape.data();
  }
  return out;
}

std::string Target(const std::string& path,
                   std::initializer_list<std::pair<const char*, std::string>> parameters) {
  std::string target = path;
  char separator = '?';
  for (const auto& [key, value] : parameters) {
    if (value.empty()) continue;
    target += separator + std::string(key) + "=" + Escaped(value);
    separator = '&';
  }
  return target;
}

Result<HttpReply> Ask(const Invocation& invocation, const HttpQuestion& question) {
  const std::string socket = shm::AdminSocketPath(invocation.socket_dir);
  const int64_t begin = invocation.clock->NowNs();
  auto reply = SendHttp(socket, question, invocation.timeout_ns);
  if (invocation.tell) {
    const std::string outcome =
        reply.ok() ? std::to_string(reply->status) + ", " + FormatBytes(reply->body.size())
                   : reply.status().Line();
    invocation.tell(Printable(question.method + " " + question.target + " at " + socket + ": " +
                              outcome + " in " + FormatNs(invocation.clock->NowNs() - begin)));
  }

  return reply;
}

Result<std::string> GetBody(const Invocation& invocation, const std::string& target) {
  if (!invocation.answer.empty()) return invocation.answer;
  TP_ASSIGN_OR_RETURN(const HttpReply reply, Ask(invocation, {"GET", target}));
  if (reply.status == 200) return reply.body;
  if (reply.content_type == "application/problem+json") return ReadProblem(reply.body);
  return Status(ErrorId::kHandshakeBad,
                "memserver answered with HTTP status " + std::to_string(reply.status));
}

}  // namespace tidepool::client
