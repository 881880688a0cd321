#include "memserver/jobs/commands/admin_commands.h"

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "memserver/jobs/admission/build_ledger.h"

namespace tidepool::memserver {
namespace {

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
std::string NameOf(const RecordSpans& command) {
  return (command.record ? "record spans of job " : "end the record of spans of job ") +
         command.job;
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

Result<Job*> AdminCommands::JobFor(const AdminCaller& caller, const std::string& who) const {
  Job* job = context_.tables->FindNamed(who);
  if (job != nullptr && caller.MaySee(job->uid)) return job;
  return Status(ErrorId::kAdminNotFound, "no job has the number or name '" + who + "'");
}

Status AdminCommands::Do(const AdminCaller& caller, const SetJobQuota& command) {
  TP_ASSIGN_OR_RETURN(const Job* job, JobFor(caller, command.job));
  const std::string& name = job->spec().name;
  const QuotaChange& change = command.change;
  Quota quota = Changed(job->quota, change);
  const bool of_memory = change.is_of_memory();
  // The job's guarantee stays with its user's account.
  if (of_memory && job->account != JobAccount(name) && !change.guarantee) quota.guarantee = 0;
  TP_RETURN_IF_ERROR(Validate(quota));

  if (of_memory) {
    const Ledger ledger =
        BuildLedger(context_.neighbours, context_.options, *context_.tables, context_.settings);
    TP_RETURN_IF_ERROR(CheckRule(ledger, {JobAccount(name), quota}, name));
    context_.tables->quotas.SetJob(name, quota);
  } else {
    context_.tables->quotas.SetShare(name, quota.weight, quota.priority);
  }
  ApplyQuotas();
  return Status();
}

Status AdminCommands::Do(const AdminCaller& caller, const SuspendJob& command) {
  TP_ASSIGN_OR_RETURN(Job * job, JobFor(caller, command.job));
  job->suspended = command.suspended;
  // A caller who may only handle their own jobs cannot keep them for ever.
  job->suspended_by_operator = command.suspended && caller.level >= AdminLevel::kOperator;
  // The lease of a job without ranks begins again.
  job->detached_ns = context_.neighbours.clock->NowNs();
  return Status();
}

Status AdminCommands::Do(const AdminCaller& caller, const ReleaseJob& command) {
  TP_ASSIGN_OR_RETURN(Job * job, JobFor(caller, command.job));
  if (job->HasRanks() && !command.force) {
    std::string ranks;
    for (Rank rank = 0; rank < job->slots.size(); ++rank) {
      if (job->slots[rank] != nullptr || job->IsAwaited(rank))
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    }
    return Status(ErrorId::kJobBusy, "job " + job->spec().name + " still has ranks")
        .Why("attached or expected back: rank " + ranks);
  }

  const Status why(ErrorId::kSessionEnded, "an admin released the job");
  owners_.slots->ExpelAllOf(job, why);
  if (job->phase != JobPhase::kRemoving) owners_.life->BeginRemoval(job);
  return Status();
}

Status AdminCommands::CheckHasNvme() const {
  if (context_.neighbours.tier != nullptr) return Status();
  return Status(ErrorId::kAdminNotFound, "memserver has no NVMe directory")
      .Fix("start it with --nvme DIR:SIZE");
}

Status AdminCommands::Do(const AdminCaller& caller, const EvictJob& command) {
  TP_ASSIGN_OR_RETURN(Job * job, JobFor(caller, command.job));
  TP_RETURN_IF_ERROR(CheckHasNvme());
  return owners_.demotions->Evict(job);
}

Status AdminCommands::Do(const AdminCaller& caller, const RecordSpans& command) {
  TP_ASSIGN_OR_RETURN(Job * job, JobFor(caller, command.job));
  if (command.record == (job->spans != nullptr)) return Status();
  job->spans = command.record ? std::make_shared<SpanLog>(context_.neighbours.clock) : nullptr;
  for (SessionSlot* slot : job->slots) {
    if (slot != nullptr && slot->session != nullptr)
      slot->session->lane().Record(job->spans, slot->rank);
  }
  return Status();
}

Status AdminCommands::Do(const AdminCaller&, const DrainJobs& command) {
  owners_.settings->SetClosed(command.draining);
  context_.room_changes->Note(RoomChange::kDrain);
  return Status();
}

Status AdminCommands::Do(const AdminCaller&, const ChangeLogLevel& command) {
  owners_.settings->ChangeLogLevel(
      command.level, command.for_ns == 0 ? 0 : context_.neighbours.clock->NowNs() + command.for_ns);
  return Status();
}

Status AdminCommands::Do(const AdminCaller&, const MuteCheck& command) {
  const int64_t now = context_.neighbours.clock->NowNs();
  owners_.settings->SetMute(command.code, now + command.for_ns, now);
  return Status();
}

Status AdminCommands::Do(const AdminCaller&, const StartScrub&) {
  TP_RETURN_IF_ERROR(CheckHasNvme());
  std::vector<JobId> jobs;
  uint64_t pieces = 0;
  for (const auto& job : context_.tables->jobs) {
    if (job->phase != JobPhase::kOpen || !job->states->spills()) continue;
    jobs.push_back(job->id);
    pieces += job->states->table().pieces_spilled();
  }
  context_.tables->scrub.Begin(std::move(jobs), pieces, context_.neighbours.clock->NowNs());
  return Status();
}

Status AdminCommands::Do(const AdminCaller&, const ApplySettings& command) {
  QuotaBook book =
      context_.tables->quotas.Reconfigured(command.quotas, command.live.quota_fallback);
  const Ledger before =
      BuildLedger(context_.neighbours, context_.options, *context_.tables, context_.settings);

  Ledger after = before;
  after.quotas = book.Rules();
  after.fallback = command.live.quota_fallback;
  for (size_t i = 0; i < context_.tables->jobs.size(); ++i) {
    after.holdings[i].account =
        book.AccountOf(context_.tables->jobs[i]->spec().name, context_.tables->jobs[i]->uid);
  }

  TP_RETURN_IF_ERROR(CheckRules(before, after));
  context_.tables->quotas = std::move(book);
  owners_.settings->Apply(command.live, command.config);
  ApplyQuotas();
  return Status();
}

void AdminCommands::Execute(AdminCommand event) {
  const Status result =
      std::visit([&](const auto& command) { return Do(event.caller, command); }, event.what);
  LogInfo("change by an admin",
          {{"change", std::visit([](const auto& command) { return NameOf(command); }, event.what)},
           {"uid", event.caller.uid},
           {"pid", event.caller.pid},
           {"result", result.ok() ? std::string("done") : result.Line()}});
  context_.Send(CommandDone{std::move(event.ticket), result});
}

void AdminCommands::ApplyQuotas() {
  // The choice of which job gives up room depends on quotas.
  owners_.demotions->Cancel(Status(ErrorId::kSessionEnded, "quotas were changed"));
  const QuotaBook& book = context_.tables->quotas;
  for (const auto& job : context_.tables->jobs) {
    job->SetQuota(book.AccountOf(job->spec().name, job->uid),
                  book.QuotaFor(job->spec().name, job->uid));
  }
  owners_.queue->ApplyQuotas();
}

}  // namespace tidepool::memserver
