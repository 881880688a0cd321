#include "memserver/reload.h"

#include <optional>
#include <utility>

#include "base/log.h"
#include "memserver/server.h"

namespace tidepool::memserver {
namespace {

// The position of an entry in the file does not matter.
bool SaysTheSame(const QuotaEntry& one, const QuotaEntry& other) {
  return one.match == other.match && one.guarantee == other.guarantee && one.limit == other.limit &&
         one.nvme_limit == other.nvme_limit && one.weight == other.weight &&
         one.priority == other.priority;
}

bool SayTheSame(const std::vector<QuotaEntry>& some, const std::vector<QuotaEntry>& others) {
  bool same = some.size() == others.size();
  for (size_t i = 0; same && i < some.size(); ++i) same = SaysTheSame(some[i], others[i]);
  return same;
}

}  // namespace

std::shared_ptr<const ConfigRows> RowsOf(const LoadedConfig& loaded) {
  auto rows = std::make_shared<ConfigRows>();
  rows->file = loaded.file;
  for (const EffectiveSetting& each : loaded.settings) {
    rows->settings.push_back({std::string(each.setting->key), each.text, each.origin,
                              std::string(each.setting->fallback), each.setting->is_live});
  }

  for (const QuotaEntry& entry : loaded.config.quota.entries) {
    rows->quotas.push_back({entry.match, entry.where, entry.guarantee, entry.limit,
                            entry.nvme_limit, entry.weight, entry.priority});
  }
  return rows;
}

Result<ApplySettings> PlanReload(const LoadedConfig& now, const LoadedConfig& wanted,
                                 uint64_t pool_bytes) {
  ApplySettings plan;
  std::string fixed;
  for (size_t i = 0; i < now.settings.size(); ++i) {
    const EffectiveSetting& was = now.settings[i];
    const EffectiveSetting& is = wanted.settings[i];
    if (was.text == is.text) continue;
    const std::string key(was.setting->key);
    plan.changed.push_back(key);

    if (was.setting->is_live) continue;
    fixed += (fixed.empty() ? "" : "; ") + key + " = \"" + is.text + "\" (" + is.origin +
             "), it runs with \"" + was.text + "\"";
  }
  if (!fixed.empty()) {
    return Status(ErrorId::kConfigNeedsRestart,
                  "the configuration changes what a memserver that runs cannot change; nothing was "
                  "applied")
        .Where(wanted.file)
        .Why(fixed);
  }

  if (!SayTheSame(now.config.quota.entries, wanted.config.quota.entries))
    plan.changed.push_back("jobs.quota");
  TP_RETURN_IF_ERROR(CheckQuotas(wanted.config.quota.entries, pool_bytes));
  TP_ASSIGN_OR_RETURN(plan.quotas, ResolveQuotas(wanted.config.quota.entries, pool_bytes));
  plan.live = wanted.config.live;
  TP_ASSIGN_OR_RETURN(plan.live.quota_fallback,
                      ResolveFallback(wanted.config.quota.fallback, pool_bytes));
  plan.config = RowsOf(wanted);
  return plan;
}

Result<ApplySettings> Reloader::Apply(Server* server, const AdminCaller& caller) {
  TP_ASSIGN_OR_RETURN(LoadedConfig wanted, LoadConfig(sources_));
  TP_ASSIGN_OR_RETURN(const ApplySettings plan, PlanReload(now_, wanted, server->pool_bytes()));
  const auto ticket = std::make_shared<CommandTicket>();
  server->Command({caller, ticket, plan});
  const std::optional<Status> result = ticket->Wait(kWaitMs);
  if (!result)
    return Status(ErrorId::kWaitTimeout,
                  "the serve loop has not answered in time; the change may still be made");

  TP_RETURN_IF_ERROR(*result);
  now_ = std::move(wanted);
  return plan;
}

Result<ApplySettings> Reloader::Plan(Server* server) const {
  TP_ASSIGN_OR_RETURN(const LoadedConfig wanted, LoadConfig(sources_));
  return PlanReload(now_, wanted, server->pool_bytes());
}

void Reloader::Do(Server* server, const MainCommand& asked) {
  if (asked.what == MainCommand::What::kPlanReload) {
    auto plan = Plan(server);
    asked.ticket->Answer(plan.status(), plan.ok() ? plan->changed : std::vector<std::string>());
    return;
  }
  auto plan = Apply(server, asked.caller);
  // The loop has already logged what it applied or refused, with the caller; a plan that failed
  // before is logged here.
  if (!plan.ok()) {
    LogWarn("the configuration was not reloaded",
            {{"uid", asked.caller.uid}, {"pid", asked.caller.pid}, {"why", plan.status().Line()}});
  }
  asked.ticket->Answer(plan.status(), plan.ok() ? plan->changed : std::vector<std::string>());
}

}  // namespace tidepool::memserver
