// How the server of a simulated world dies, and how the next one begins.
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/invariants.h"
#include "tests/sim/sim_world.h"

namespace tidepool::memserver {
namespace {

constexpr uint32_t kDeathsInRecoveryMax = 5;

}  // namespace

// The control thread may or may not have passed on the dead server's replies.
void SimWorld::KillServer(const std::string& how) {
  Note("the server dies: " + how);
  ++report_.server_deaths;
  for (size_t i = 0; i < kServerPoints.size(); ++i)
    report_.killed_at[i] += how == kServerPoints[i] ? 1 : 0;
  for (const char* point : kFrozenPoints) report_.frozen_deaths += how == point ? 1 : 0;
  for (const char* point : kNvmePoints) report_.nvme_deaths += how == point ? 1 : 0;
  for (const char* point : kDemotionPoints) report_.demotion_deaths += how == point ? 1 : 0;
  CountDemotions();
  LetWorkersDie();
  std::vector<ControlReply> last_words;
  if (random_.Below(2) == 0) last_words = world_->TakeAllReplies();
  saves_.clear();
  watches_.clear();
  told_.clear();
  server_->DieAt(nullptr, 0);
  if (lingers_) NoteLateWrites();
  const bool with_keeper =
      !chaos_is_over_ && plan_.Has(Fault::kKeeperDeath) && random_.Below(12) == 0;
  const bool states_lost = with_keeper || keeper_renewed_at_ != 0;
  report_.losses_in_renewal += keeper_renewed_at_ != 0 ? 1 : 0;
  if (states_lost) {
    late_.clear();
    StartAfresh();
  } else {
    if (lingers_ && !chaos_is_over_) DamageAJob();
    StartNextServer();
  }
  report_.set_aside += world_->tables().set_aside.size();
  leftovers_.BeginServer(*world_);
  wakes_.BeginServer();
  FollowJobs();
  for (ControlReply& reply : last_words) Route(std::move(reply));
  watches_.clear();  // those of the last words
  for (Actor& actor : actors_) {
    for (const auto& rank : actor.ranks) {
      if (states_lost) rank->LoseStates();
      rank->LoseServer();
    }
  }
  if (!chaos_is_over_ && plan_.Has(Fault::kRankDeath) && random_.Below(4) == 0) KillWithServer();
  RouteReplies();
  CheckAll();
  handing_over_ = false;
}

// Whatever killed the server killed a trainer as well.
void SimWorld::KillWithServer() {
  Actor& actor = actors_[random_.Below(actors_.size())];
  SimRank& rank = *actor.ranks[random_.Below(actor.ranks.size())];
  if (rank.nonce() == 0) return;
  ++report_.rank_deaths;
  Note(NameOf(actor, rank) + "is killed with it");
  rank.Die();
}

// The other workers were somewhere in their pieces when the server died, so several tiles may be
// open.
void SimWorld::LetWorkersDie() {
  for (uint32_t worker = 0; worker < kWorkers && world_->team().waiting() > 0; ++worker) {
    if (worker == dying_worker_ || random_.Below(2) == 0) continue;
    const auto index = static_cast<uint32_t>(random_.Below(world_->team().waiting()));
    server_->DieAt(nullptr, 1 + random_.Below(20));
    server_->Run([&] { world_->team().RunOne(index, worker); });
  }
  dying_worker_ = kWorkers;
}

void SimWorld::StartAfresh() {
  ++report_.losses;
  keeper_renewed_at_ = 0;
  Note("nobody holds the states");
  for (Actor& actor : actors_) actor.there = false;
  world_->StartOver();
}

void SimWorld::StartNextServer() {
  const uint64_t deaths_max =
      plan_.Has(Fault::kDeathInRecovery) ? random_.Below(kDeathsInRecoveryMax + 1) : 0;
  for (uint64_t deaths = 0;; ++deaths) {
    const std::vector<KeptFact> kept = ReadKept(world_, lease_ns_ > 0, damaged_);
    server_->DieAt(nullptr, deaths < deaths_max ? 1 + random_.Below(12) : 0);
    const char* point = server_->Run([&] { world_->Restart(); });
    server_->DieAt(nullptr, 0);
    if (point == nullptr) return CheckRecovered(kept, *world_);
    ++report_.deaths_in_recovery;
    Note(std::string("the server dies in recovery: ") + point);
    for (size_t i = 0; i < kServerPoints.size(); ++i)
      report_.killed_at[i] += std::string(point) == kServerPoints[i] ? 1 : 0;
  }
}

}  // namespace tidepool::memserver
