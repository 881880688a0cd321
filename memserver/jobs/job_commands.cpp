// The fourth part of JobDesk: what admins change.
#include <array>
#include <charconv>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "memserver/jobs/job_desk.h"
#include "memserver/jobs/snapshot_builder.h"

namespace tidepool::memserver {
namespace {

// By number, else by name.
Job* FindNamed(const Tables& tables, const std::string& who) {
  JobId id = 0;
  const auto [end, error] = std::from_chars(who.data(), who.data() + who.size(), id);
  if (error == std::errc() && end == who.data() + who.size()) {
    if (Job* job = tables.FindJob(id); job != nullptr && job->phase != JobPhase::kRemoving)
      return job;
  }
  return tables.FindJob(who);
}

std::string NameOf(const SetJobQuota& command) {
  return "quota of job " + command.job;
}
std::string NameOf(const SuspendJob& command) {
  return (command.suspended ? "suspend job " : "resume job ") + command.job;
}
std::string NameOf(const ReleaseJob& command) {
  return (command.force ? "release with its ranks job " : "release job ") + command.job;
}
std::string NameOf(const EvictJob& command) {
  return "evict job " + command.job;
}
std::string NameOf(const DrainJobs& command) {
  return command.draining ? "drain" : "end of drain";
}
std::string NameOf(const StartScrub&) {
  return "scrub of NVMe";
}
std::string NameOf(const MuteCheck& command) {
  return command.for_ns == 0 ? "unmute check " + command.code
                             : "mute check " + command.code + " for " + FormatNs(command.for_ns);
}
std::string NameOf(const ApplySettings& command) {
  std::string keys;
  for (const std::string& key : command.changed) keys += (keys.empty() ? ": " : ", ") + key;
  return "reload" + (keys.empty() ? ": nothing is different" : keys);
}
std::string NameOf(const ChangeLogLevel& command) {
  constexpr std::array<const char*, 4> kLevels{"debug", "info", "warn", "error"};
  const std::string level = kLevels[static_cast<size_t>(command.level)];
  return "log level " + level + (command.for_ns == 0 ? "" : " for " + FormatNs(command.for_ns));
}

}  // namespace

// A job that the caller may not see is as if it were not there.
Result<Job*> JobDesk::JobFor(const AdminCaller& caller, const std::string& who) const {
  Job* job = FindNamed(*tables_, who);
  if (job != nullptr && caller.MaySee(job->uid)) return job;
  return Status(ErrorId::kAdminNotFound, "no job has the number or name '" + who + "'");
}

Status JobDesk::Do(const AdminCaller& caller, const SetJobQuota& command) {
  TP_ASSIGN_OR_RETURN(const Job* job, JobFor(caller, command.job));
  const std::string& name = job->spec().name;
  const QuotaChange& change = command.change;
  Quota quota = Changed(job->quota, change);
  const bool of_memory = change.is_of_memory();
  // What the job's user is guaranteed stays the user's.
  if (of_memory && job->account != JobAccount(name) && !change.guarantee) quota.guarantee = 0;
  TP_RETURN_IF_ERROR(Validate(quota));
  if (of_memory) {
    TP_RETURN_IF_ERROR(
        CheckRule(BuildLedger(parts_, options_, *tables_), {JobAccount(name), quota}, name));
    tables_->quotas.SetJob(name, quota);
  } else {
    tables_->quotas.SetShare(name, quota.weight, quota.priority);
  }
  ApplyQuotas();
  return Status();
}

Status JobDesk::Do(const AdminCaller& caller, const SuspendJob& command) {
  TP_ASSIGN_OR_RETURN(Job * job, JobFor(caller, command.job));
  job->suspended = command.suspended;
  // Who may only handle jobs of their own cannot keep them for ever.
  job->suspended_by_operator = command.suspended && caller.level >= AdminLevel::kOperator;
  // The lease of a job without ranks begins again.
  job->detached_ns = parts_.clock->NowNs();
  return Status();
}

Status JobDesk::Do(const AdminCaller& caller, const ReleaseJob& command) {
  TP_ASSIGN_OR_RETURN(Job * job, JobFor(caller, command.job));
  if (job->HasRanks() && !command.force) {
    std::string ranks;
    for (Rank rank = 0; rank < job->seats.size(); ++rank) {
      if (job->seats[rank] != nullptr || job->IsAwaited(rank))
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    }
    return Status(ErrorId::kJobBusy, "job " + job->spec().name + " still has ranks")
        .Why("attached or expected back: rank " + ranks);
  }
  const Status why(ErrorId::kSessionEnded, "an admin released the job");
  for (Rank rank = 0; rank < job->seats.size(); ++rank) {
    if (job->seats[rank] != nullptr) LeaveSeat(job->seats[rank], Leaving::kExpelled, why);
  }
  if (job->phase != JobPhase::kRemoving) BeginRemoval(job);
  return Status();
}

// What makes room for others makes it for nobody too: the same rules, with the job's own account as
// the one that asks.
Status JobDesk::Do(const AdminCaller& caller, const EvictJob& command) {
  TP_ASSIGN_OR_RETURN(Job * job, JobFor(caller, command.job));
  const std::string& name = job->spec().name;
  if (parts_.tier == nullptr) {
    return Status(ErrorId::kAdminNotFound, "memserver has no NVMe directory")
        .Fix("start it with --nvme DIR:SIZE");
  }
  if (IsDemoting())
    return Status(ErrorId::kJobBusy, "states of another job are on their way to NVMe")
        .Fix("ask again when they are there");
  const DemotionChoice choice = ChooseAlone(*job);
  if (choice.jobs.empty())
    return Status(ErrorId::kJobBusy, "the states of job " + name + " do not move to NVMe")
        .Why(choice.why_not);
  if (!job->AtRest())
    return Status(ErrorId::kJobBusy, "the last step of job " + name + " is being updated")
        .Fix("ask again in a moment");
  Status reserved;
  if (!BeginDemotion(job, 0, &reserved)) return reserved;
  tables_->demotion_asked = true;
  return Status();
}

Status JobDesk::Do(const AdminCaller&, const DrainJobs& command) {
  tables_->closed = command.draining;
  tables_->room_changes.Note(RoomChange::kDrain);
  return Status();
}

Status JobDesk::Do(const AdminCaller&, const ChangeLogLevel& command) {
  SetLogLevel(command.level);
  tables_->log_level_until_ns = command.for_ns == 0 ? 0 : parts_.clock->NowNs() + command.for_ns;
  return Status();
}

Status JobDesk::Do(const AdminCaller&, const MuteCheck& command) {
  const int64_t now = parts_.clock->NowNs();
  std::erase_if(tables_->mutes, [&](const Mute& mute) {
    return mute.code == command.code || mute.until_ns <= now;
  });
  if (command.for_ns > 0) tables_->mutes.push_back({command.code, now + command.for_ns});
  return Status();
}

Status JobDesk::Do(const AdminCaller&, const StartScrub&) {
  if (parts_.tier == nullptr) {
    return Status(ErrorId::kAdminNotFound, "memserver has no NVMe directory")
        .Fix("start it with --nvme DIR:SIZE");
  }
  std::vector<JobId> jobs;
  uint64_t pieces = 0;
  for (const auto& job : tables_->jobs) {
    if (job->phase != JobPhase::kOpen || !job->states->spills()) continue;
    jobs.push_back(job->id);
    pieces += SpilledPieces(*job->states);
  }
  tables_->scrub.Begin(std::move(jobs), pieces, parts_.clock->NowNs());
  return Status();
}

Status JobDesk::Do(const AdminCaller&, const ApplySettings& command) {
  QuotaBook book = tables_->quotas.Reconfigured(command.quotas, command.live.quota_fallback);
  const Ledger before = BuildLedger(parts_, options_, *tables_);
  Ledger after = before;
  after.quotas = book.Rules();
  after.fallback = command.live.quota_fallback;
  for (size_t i = 0; i < tables_->jobs.size(); ++i) {
    after.holdings[i].account =
        book.AccountOf(tables_->jobs[i]->spec().name, tables_->jobs[i]->uid);
  }
  TP_RETURN_IF_ERROR(CheckRules(before, after));
  // A level that was set by hand for a time ends by itself, and then this one holds.
  if (command.live.log_level != tables_->live.log_level && tables_->log_level_until_ns == 0)
    SetLogLevel(command.live.log_level);
  tables_->quotas = std::move(book);
  tables_->live = command.live;
  tables_->config = command.config;
  ApplyQuotas();
  return Status();
}

bool JobDesk::TendLogLevel() {
  if (tables_->log_level_until_ns == 0 || parts_.clock->NowNs() < tables_->log_level_until_ns)
    return false;
  tables_->log_level_until_ns = 0;
  SetLogLevel(tables_->live.log_level);
  return true;
}

void JobDesk::On(AdminCommand event) {
  const Status result =
      std::visit([&](const auto& command) { return Do(event.caller, command); }, event.what);
  LogInfo("change by an admin",
          {{"change", std::visit([](const auto& command) { return NameOf(command); }, event.what)},
           {"uid", event.caller.uid},
           {"pid", event.caller.pid},
           {"result", result.ok() ? std::string("done") : result.Line()}});
  Send(CommandDone{std::move(event.ticket), result});
}

}  // namespace tidepool::memserver
