#include "memserver/admin/admin_changes.h"

#include <array>
#include <memory>
#include <utility>

#include "base/json_writer.h"
#include "memserver/admin/request_body.h"

namespace tidepool::memserver {
namespace {

using Command = decltype(AdminCommand::what);

// What a row of the table is given.
struct ChangeAsk {
  const RequestTarget& target;
  const RequestBody& body;
  const Snapshot& snapshot;
};

Result<Command> ReadJobQuota(const ChangeAsk& ask) {
  TP_ASSIGN_OR_RETURN(const QuotaChange change, ReadQuotaChange(ask.body, ask.snapshot.pool_bytes));
  return Command(SetJobQuota{ask.target.path[2], change});
}

struct ChangeRoute {
  const char* method;
  std::array<std::string_view, 4> path;  // "*" stands for any segment
  size_t segments;
  Result<Command> (*read)(const ChangeAsk& ask);
};

constexpr auto kChanges = std::to_array<ChangeRoute>({
    {"PUT", {"v1", "jobs", "*", "quota"}, 4, ReadJobQuota},
});

bool Fits(const ChangeRoute& route, const RequestTarget& target) {
  if (target.path.size() != route.segments) return false;
  for (size_t i = 0; i < route.segments; ++i) {
    if (route.path[i] != "*" && route.path[i] != target.path[i]) return false;
  }
  return true;
}

const ChangeRoute* Find(std::string_view method, const RequestTarget& target) {
  for (const ChangeRoute& route : kChanges) {
    if (route.method == method && Fits(route, target)) return &route;
  }
  return nullptr;
}

}  // namespace

std::string AdminChanges::MethodsOf(const RequestTarget& target) {
  std::string methods;
  for (const ChangeRoute& route : kChanges) {
    if (Fits(route, target)) methods += (methods.empty() ? "" : ", ") + std::string(route.method);
  }
  return methods;
}

AdminAnswer AdminChanges::Apply(const AdminRequest& request, const RequestTarget& target, const Snapshot& snapshot) {
  const ChangeRoute* route = Find(request.method, target);
  if (const Status known = CheckParameters(target, {}); !known.ok()) return ProblemOf(known);
  auto body = ParseBody(request.body);
  if (!body.ok()) return ProblemOf(body.status());
  auto command = route->read({target, *body, snapshot});
  if (!command.ok()) return ProblemOf(command.status());
  const auto ticket = std::make_shared<CommandTicket>();
  to_loop_->Push(AdminCommand{request.caller, ticket, std::move(command).value()});
  const std::optional<Status> result = ticket->Wait(kWaitMs);
  if (!result) return ProblemOf(Status(ErrorId::kWaitTimeout, "the serve loop has not answered in time; the change may still be made"));
  if (!result->ok()) return ProblemOf(*result);
  JsonWriter json;
  json.BeginObject().Field("result", "done").EndObject();
  return {.status = 200, .body = json.Take()};
}

}  // namespace tidepool::memserver
