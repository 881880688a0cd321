// Creates the groups and links of RunSession: one group per set of ranks that share chunks, over
// NCCL where all have it, one for ranks that share experts, and the links between pipeline stages.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/log.h"
#include "trainer/comm/nccl/nccl_collective.h"
#include "trainer/comm/staged_collective.h"
#include "trainer/run/run_session.h"

namespace tidepool::trainer {

Result<bool> RunSession::AgreeOnNccl() {
  if (task_.device.device == nullptr || place_.world == 1) return false;
  const Result<const NcclTable*> nccl = LoadNccl();
  if (!nccl.ok())
    LogWarn("no NCCL for this rank: blocks go through host memory, which is slower",
            {{"why", nccl.status().what()}});

  double without = task_.device.shared || !nccl.ok() ? 1 : 0;
  TP_RETURN_IF_ERROR(world_->SumDoubles(&without, 1));
  if (without > 0 && place_.rank == 0) {
    LogWarn(
        "blocks go from GPU to GPU through host memory, which is slower: ranks share a GPU, or "
        "have no NCCL",
        {{"ranks", static_cast<uint64_t>(without)}});
  }
  return without == 0;
}

Result<std::unique_ptr<Collective>> RunSession::OnDevice(const GroupSpec& group, bool nccl) {
  TP_ASSIGN_OR_RETURN(std::unique_ptr<Collective> host, meeting_->MakeGroup(group));
  if (group.ranks.size() == 1) return host;

  if (!nccl) {
    TP_ASSIGN_OR_RETURN(std::unique_ptr<StagedCollective> staged,
                        StagedCollective::Open(std::move(host), task_.device.device));
    return std::unique_ptr<Collective>(std::move(staged));
  }

  NcclSetup setup;
  setup.name = group.name;
  TP_ASSIGN_OR_RETURN(setup.nccl, LoadNccl());
  setup.host = std::move(host);
  setup.stream = task_.device.group;
  setup.native_stream = task_.device.native_group;
  setup.clock = task_.clock;
  setup.doomed = [this] { return SlotLost(); };
  if (!communicators_) communicators_.emplace(setup.nccl, task_.clock);
  setup.together = &*communicators_;

  TP_ASSIGN_OR_RETURN(std::unique_ptr<NcclCollective> fast, NcclCollective::Open(std::move(setup)));
  return std::unique_ptr<Collective>(std::move(fast));
}

Status RunSession::MakeGroup(size_t index, bool nccl) {
  const std::vector<Rank>& ranks = task_.groups[index];
  const bool on_device = task_.device.device != nullptr;
  group_storage_.emplace_back();
  if (std::find(ranks.begin(), ranks.end(), place_.rank) == ranks.end()) return {};
  // A separate group, even if all ranks are members: transfers start when their chunks arrive, so
  // the caller's operations in the same group would come at a different position on each rank.
  const GroupSpec spec{"data" + std::to_string(index), ranks};
  TP_ASSIGN_OR_RETURN(group_storage_.back(),
                      on_device ? OnDevice(spec, nccl) : meeting_->MakeGroup(spec));
  return {};
}

Status RunSession::Meet() {
  TP_RETURN_IF_ERROR(MeetWorld());
  TP_ASSIGN_OR_RETURN(const bool nccl, AgreeOnNccl());
  for (size_t i = 0; i < task_.groups.size(); ++i) TP_RETURN_IF_ERROR(MakeGroup(i, nccl));

  if (task_.routes && place_.world > 1) {
    GroupSpec all{"routing", std::vector<Rank>(place_.world)};
    std::iota(all.ranks.begin(), all.ranks.end(), 0);
    TP_ASSIGN_OR_RETURN(routing_, meeting_->MakeGroup(all));
  }

  for (const std::vector<Rank>& ranks : task_.expert_groups) {
    const GroupSpec spec{
        "experts" + std::to_string(ranks.size()) + "from" + std::to_string(ranks.front()), ranks};
    experts_.emplace_back();
    TP_ASSIGN_OR_RETURN(experts_.back(), meeting_->MakeGroup(spec));
  }
  return MakeLinks();
}

Status RunSession::MakeLinks() {
  for (const LinkSpec& link : task_.links) {
    link_storage_.emplace_back();
    if (link.from != place_.rank && link.to != place_.rank) continue;
    TP_ASSIGN_OR_RETURN(link_storage_.back(), meeting_->MakeLink(link));
  }
  return {};
}

std::vector<RankLink*> RunSession::links() const {
  std::vector<RankLink*> links;
  for (const auto& link : link_storage_) links.push_back(link.get());
  return links;
}

std::vector<Collective*> RunSession::experts() const {
  std::vector<Collective*> groups;
  for (const auto& group : experts_) groups.push_back(group.get());
  return groups;
}

std::vector<Collective*> RunSession::groups() const {
  std::vector<Collective*> groups;
  for (const auto& group : group_storage_) groups.push_back(group.get());
  return groups;
}

}  // namespace tidepool::trainer
