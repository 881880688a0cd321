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

namespace {

void TellOf(const Invocation& invocation, const HttpQuestion& question, int64_t begin_ns,
            const std::string& outcome) {
  if (!invocation.tell) return;
  invocation.tell(Printable(question.method + " " + question.target + " at " +
                            shm::AdminSocketPath(invocation.socket_dir) + ": " + outcome + " in " +
                            FormatNs(invocation.clock->NowNs() - begin_ns)));
}

std::string OutcomeOf(const HttpReply& reply) {
  return std::to_string(reply.status) + ", " + FormatBytes(reply.body.size());
}

Result<std::string> BodyOf(HttpReply reply) {
  if (reply.status == 200) return std::move(reply.body);
  if (reply.content_type == "application/problem+json") return ReadProblem(reply.body);
  return Status(ErrorId::kHandshakeBad,
                "memserver answered with HTTP status " + std::to_string(reply.status));
}

}  // namespace

Result<HttpReply> Ask(const Invocation& invocation, const HttpQuestion& question) {
  const int64_t begin = invocation.clock->NowNs();
  auto reply =
      SendHttp(shm::AdminSocketPath(invocation.socket_dir), question, invocation.timeout_ns);
  TellOf(invocation, question, begin, reply.ok() ? OutcomeOf(*reply) : reply.status().Line());
  return reply;
}

Result<std::string> GetBody(const Invocation& invocation, const std::string& target) {
  if (!invocation.answer.empty()) return invocation.answer;
  TP_ASSIGN_OR_RETURN(HttpReply reply, Ask(invocation, {"GET", target}));
  return BodyOf(std::move(reply));
}

Result<std::vector<std::string>> GetBodies(const Invocation& invocation,
                                           const std::vector<std::string>& targets) {
  std::vector<HttpQuestion> questions;
  for (const std::string& target : targets) questions.push_back({"GET", target});
  const int64_t begin = invocation.clock->NowNs();
  auto replies =
      SendHttpAtOnce(shm::AdminSocketPath(invocation.socket_dir), questions, invocation.timeout_ns);
  if (!replies.ok()) {
    TellOf(invocation, questions.front(), begin, replies.status().Line());
    return replies.status();
  }

  std::vector<std::string> bodies;
  for (HttpReply& reply : *replies) {
    TellOf(invocation, questions[bodies.size()], begin, OutcomeOf(reply));
    TP_ASSIGN_OR_RETURN(bodies.emplace_back(), BodyOf(std::move(reply)));
  }
  if (bodies.size() == targets.size()) return bodies;
  return Status(ErrorId::kServerGone, "memserver closed the connection before it had answered")
      .Where(shm::AdminSocketPath(invocation.socket_dir));
}

}  // namespace tidepool::client
