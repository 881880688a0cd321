#include "memserver/residency/demotion_choice.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/planted.h"
#include "base/units.h"

namespace tidepool::memserver {
namespace {

struct World {  // the hypothetical state
  Ledger ledger;
  std::vector<uint64_t> nvme_free;
  std::vector<JobId> moved;

  bool HasRoomFor(const Newcomer& newcomer) const {
    return newcomer.fits({ledger, nvme_free, moved});
  }
};

Holding* HoldingOf(Ledger* ledger, JobId job) {
  const auto it = std::find_if(ledger->holdings.begin(), ledger->holdings.end(),
                               [job](const Holding& each) { return each.id == job; });
  return it == ledger->holdings.end() ? nullptr : &*it;
}

// Moves the job's states in `world`; else returns why that is not allowed.
std::optional<std::string> TryToMove(const Movable& job, const Newcomer& newcomer, World* world) {
  if (!job.why_not.empty()) return job.why_not;
  Holding* const holding = HoldingOf(&world->ledger, job.job);
  if (holding == nullptr) return "is not in the ledger";
  if (job.priority > newcomer.priority && !TP_PLANTED("residency.demoted_above_priority"))
    return "has a higher priority";

  const Quota quota = world->ledger.QuotaOf(holding->account);
  const uint64_t bytes = MovableBytes(*job.spec, job.on_host);
  const uint64_t used = world->ledger.PoolUsedBy(holding->account);
  const bool borrowed = used >= quota.guarantee && used - quota.guarantee >= bytes;
  if (holding->account != newcomer.account && !borrowed &&
      !TP_PLANTED("residency.demoted_into_guarantee")) {
    return "is within the guarantee of " + holding->account;
  }

  const auto plan = PlanMove(*job.spec, job.on_host, world->nvme_free);
  if (!plan) return "finds no room on NVMe";
  uint64_t nvme = 0;
  for (const uint64_t each : plan->nvme_bytes) nvme += each;
  const uint64_t nvme_used = world->ledger.NvmeUsedBy(holding->account);
  if (nvme > quota.nvme_limit - std::min(quota.nvme_limit, nvme_used))
    return "would be above the limit on NVMe of " + holding->account;

  holding->pool_bytes -= bytes;
  holding->nvme_bytes += nvme;
  world->moved.push_back(job.job);
  for (size_t d = 0; d < plan->nvme_bytes.size(); ++d) world->nvme_free[d] -= plan->nvme_bytes[d];
  return std::nullopt;
}

// Moves candidates one after the other until the newcomer fits; false if it does not.
bool MoveUntilItFits(const std::vector<Movable>& jobs, const Newcomer& newcomer, World world,
                     std::vector<const Movable*>* moved) {
  for (const Movable& job : jobs) {
    if (TryToMove(job, newcomer, &world)) continue;
    moved->push_back(&job);
    if (world.HasRoomFor(newcomer)) return true;
  }
  return false;
}

bool FitsWith(const std::vector<const Movable*>& jobs, const Newcomer& newcomer, World world) {
  for (const Movable* job : jobs) {
    if (TryToMove(*job, newcomer, &world)) return false;
  }
  return world.HasRoomFor(newcomer);
}

std::string WhyNone(const std::vector<Movable>& jobs, const Newcomer& newcomer, World world) {
  std::string text;
  size_t named = 0;
  for (const Movable& job : jobs) {
    const Holding* holding = HoldingOf(&world.ledger, job.job);
    if (holding == nullptr) continue;
    if (named++ == kNamedMax) return text + ", and so on";

    const std::string name = holding->job;
    const auto why = TryToMove(job, newcomer, &world);
    if (!text.empty()) text += ", ";
    text += name + " " +
            (why ? *why
                 : "gives " + FormatBytes(MovableBytes(*job.spec, job.on_host)) +
                       ", which is not enough");
  }
  return text;
}

}  // namespace

DemotionChoice ChooseDemotions(Ledger ledger, std::vector<Movable> jobs,
                               std::vector<uint64_t> nvme_free, const Newcomer& newcomer) {
  std::stable_sort(jobs.begin(), jobs.end(), [](const Movable& a, const Movable& b) {
    return std::pair(a.priority, a.detached_ns) < std::pair(b.priority, b.detached_ns);
  });

  const World world{std::move(ledger), std::move(nvme_free), {}};
  DemotionChoice choice;
  std::vector<const Movable*> moved;
  choice.fits = world.HasRoomFor(newcomer);
  if (choice.fits) return choice;
  if (!MoveUntilItFits(jobs, newcomer, world, &moved)) {
    choice.why_not = WhyNone(jobs, newcomer, world);
    return choice;
  }
  choice.fits = true;
  // Drops those that turn out not to be needed, the most expensive first.
  for (size_t i = moved.size(); i-- > 0;) {
    std::vector<const Movable*> fewer = moved;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (!fewer.empty() && FitsWith(fewer, newcomer, world)) moved = std::move(fewer);
  }
  for (const Movable* job : moved) {
    choice.jobs.push_back(job->job);
    choice.bytes += MovableBytes(*job->spec, job->on_host);
  }
  return choice;
}

}  // namespace tidepool::memserver
