#include "memserver/admin/admin_api.h"

#include <algorithm>
#include <memory>
#include <span>

#include "memserver/admin/admin_routes.h"
#include "memserver/admin/request_target.h"

namespace tidepool::memserver {
namespace {

Status NoRoute(std::string_view target) {
  std::string all;
  for (const std::string& endpoint : AdminApi::Endpoints())
    all += (all.empty() ? "" : ", ") + endpoint;
  return Status(ErrorId::kAdminNotFound,
                "there is no path '" + std::string(target.substr(0, 200)) + "'")
      .Fix("there are: " + all);
}

// What a user without further rights sees: the sums of all users, and the user's own jobs, waiting
// ranks and accounts.
std::shared_ptr<const Snapshot> OnlyOf(const Snapshot& all, const AdminCaller& caller) {
  auto own = std::make_shared<Snapshot>(all);
  const auto hidden = [&caller](const auto& row) { return !caller.MaySee(row.uid); };
  const auto hide = [&hidden](auto&... rows) { (std::erase_if(rows, hidden), ...); };
  hide(own->jobs, own->waiting, own->lost, own->set_aside);
  const auto of_others = [&own](const auto& row) {
    return std::none_of(own->jobs.begin(), own->jobs.end(),
                        [&row](const JobRow& job) { return job.job == row.job; });
  };

  std::erase_if(own->nvme.unwritten, of_others);
  std::erase_if(own->nvme.late, of_others);
  std::erase_if(own->accounts, [&](const AccountRow& row) {
    const auto of_account = [&row](const JobRow& job) { return job.account == row.account; };
    return row.account != UserAccount(caller.uid) &&
           std::none_of(own->jobs.begin(), own->jobs.end(), of_account);
  });
  // The reasons contain names of others' jobs.
  for (WaitingRow& row : own->waiting) row.why = row.why.substr(0, row.why.find(';'));
  return own;
}

AdminAnswer NotAllowed(bool readable, const std::string& changes) {
  const std::string methods = (readable ? std::string("GET, HEAD") : std::string()) +
                              (readable && !changes.empty() ? ", " : "") + changes;
  AdminAnswer answer =
      Problem(405, Status(ErrorId::kAdminBadRequest, "this path answers " + methods + " only")
                       .Fix("use one of them"));
  answer.allow = methods;
  return answer;
}

}  // namespace

std::vector<std::string> AdminApi::Endpoints() {
  std::vector<std::string> all;
  for (const Route& route : Routes())
    all.push_back("GET " + PathText(std::span(route.path).first(route.segments)));
  for (std::string& change : AdminChanges::Endpoints()) all.push_back(std::move(change));
  return all;
}

AdminAnswer AdminApi::Change(const AdminRequest& request, const RequestTarget& target) {
  const SnapshotLook look = source_->Get();
  if (look.snapshot == nullptr)
    return ProblemOf(
        Status(ErrorId::kNotReady, "memserver is starting: no snapshot has been taken yet"));
  AdminAnswer answer = changes_.Apply(request, target, *look.snapshot);
  source_->Outdate();
  return answer;
}

AdminAnswer AdminApi::Answer(const AdminRequest& request) {
  auto parsed = ParseTarget(request.target);
  if (!parsed.ok()) return ProblemOf(parsed.status());

  const Route* route = FindRoute(*parsed);
  const std::string changes = AdminChanges::MethodsOf(*parsed);
  if (route == nullptr && changes.empty()) return ProblemOf(NoRoute(request.target));
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (!reads && AdminChanges::Takes(request.method, *parsed)) return Change(request, *parsed);
  if (!reads || route == nullptr) return NotAllowed(route != nullptr, changes);
  if (const Status allowed = CheckLevel(request.caller, route->least); !allowed.ok())
    return ProblemOf(allowed);
  const Status known =
      CheckParameters(*parsed, std::span(route->parameters).first(route->parameter_count));
  if (!known.ok()) return ProblemOf(known);

  SnapshotLook look;
  if (route->needs == Needs::kLook) look = source_->Look();
  if (route->needs == Needs::kSnapshot) look = source_->Get();
  if (route->needs == Needs::kSnapshot && look.snapshot == nullptr && !route->is_probe) {
    return ProblemOf(
        Status(ErrorId::kNotReady, "memserver is starting: no snapshot has been taken yet"));
  }

  if (look.snapshot != nullptr && request.caller.level < AdminLevel::kOperator)
    look.snapshot = OnlyOf(*look.snapshot, request.caller);
  return route->handler({.target = *parsed, .look = look, .facts = facts_});
}

}  // namespace tidepool::memserver
