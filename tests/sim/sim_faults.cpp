// What ranks do in a simulated world, and the faults that it makes.
#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "tests/sim/sim_world.h"

namespace tidepool::memserver {
namespace {

constexpr uint64_t kRenewalTicksMax = 400;
constexpr uint64_t kAwayTicks = 3000;
constexpr uint64_t kTicksToHear = 1000;  // of turns enough to take any event

}  // namespace

void SimWorld::PokeRank(bool faults) {
  Actor& actor = actors_[random_.Below(actors_.size())];
  SimRank& rank = *actor.ranks[random_.Below(actor.ranks.size())];
  if (faults && tick_ < SleepUntil(actor, rank)) return;
  if (rank.state() == SimRank::State::kAbsent) {
    if (!faults || random_.Below(32) != 0) return;
    rank.Reserve();
    Note(NameOf(actor, rank) + "asks to join");
    return;
  }
  if (faults && random_.Below(300) == 0) {
    MakeRankFault(&actor, &rank);
    return;
  }
  std::string did;
  rank.Poke(&did);
  if (!did.empty()) Note(NameOf(actor, rank) + did);
}

void SimWorld::MakeRankFault(Actor* actor, SimRank* rank) {
  const std::string name = NameOf(*actor, *rank);
  switch (random_.Below(5)) {
    case 0:
      if (!plan_.Has(Fault::kRankDeath)) return;
      ++report_.rank_deaths;
      Note(name + "is killed");
      rank->Die();
      return;
    case 1:
      if (rank->state() != SimRank::State::kRunning || random_.Below(2) == 0) return;
      LetLeave(actor, rank);
      return;
    case 2:
      if (!plan_.Has(Fault::kStall)) return;
      Note(name + "does nothing for a while");
      SleepUntil(*actor, *rank) = tick_ + random_.Below(kStallTicksMax);
      return;
    default:
      if (!plan_.Has(Fault::kSave) || !rank->MaySave()) return;
      Note(name + "saves");
      rank->Save();
  }
}

void SimWorld::MakeWorldFault() {
  if (random_.Below(16) != 0) return;
  if (plan_.Has(Fault::kServerDeathAtPoint) && random_.Below(120) == 0) ArmPoint();
  if (plan_.Has(Fault::kServerDeath) && random_.Below(300) == 0) return KillServer("between turns");
  if (plan_.Has(Fault::kClockJump) && random_.Below(200) == 0) {
    Note("the clock jumps");
    world_->clock().Advance(static_cast<int64_t>(random_.Below(10)) * kNsPerSecond);
  }
  if (plan_.Has(Fault::kStall) && random_.Below(60) == 0) {
    Note("the server, workers or copies do nothing for a while");
    uint64_t* const sleepers[] = {&server_asleep_until_, &workers_asleep_until_,
                                  &copies_asleep_until_};
    const uint64_t sleeper = random_.Below(std::size(sleepers));
    *sleepers[sleeper] = tick_ + random_.Below(kStallTicksMax);
    report_.stalls += sleeper == 0 ? 1 : 0;
  }
  if (plan_.Has(Fault::kKeeperDeath) && random_.Below(300) == 0 && keeper_renewed_at_ == 0)
    LoseKeeper();
  if (demotes_) ChangePlaces();
  // A server that does nothing starts no keeper either.
  if (keeper_renewed_at_ != 0 && tick_ >= keeper_renewed_at_ && tick_ >= server_asleep_until_)
    RenewKeeper();
  if (plan_.Has(Fault::kHandOver) && random_.Below(500) == 0 && !handing_over_) {
    ++report_.hand_overs;
    handing_over_ = true;
    Note("the server is to hand over");
    world_->Post(StopServing{true});
  }
}

void SimWorld::LetLeave(Actor* actor, SimRank* rank) {
  Note(NameOf(*actor, *rank) + "leaves");
  actor->said_goodbye |= uint64_t{1} << rank->rank();
  rank->Leave();
}

void SimWorld::KillRanks() {
  for (Actor& actor : actors_) {
    for (const auto& rank : actor.ranks) {
      if (rank->state() != SimRank::State::kAbsent) rank->Die();
    }
  }
  Note("all ranks are killed");
  if (random_.Below(2) == 0) world_->clock().Advance(3 * kNsPerSecond);
}

// Everybody leaves, and the last job stays away for longest, so that the others have the pool; then
// those lose all their trainers, and the last one comes for their room.
void SimWorld::ChangePlaces() {
  if (others_die_at_ == 0) {
    if (random_.Below(60) == 0) BeginAnew();
    return;
  }
  if (tick_ < others_die_at_) return;
  others_die_at_ = 0;
  for (size_t i = 0; i + 1 < actors_.size(); ++i) {
    Note(actors_[i].job->spec().name + " loses all its ranks");
    for (const auto& rank : actors_[i].ranks) {
      SleepUntil(actors_[i], *rank) = tick_ + random_.Below(kAwayTicks);
      if (rank->state() == SimRank::State::kAbsent) continue;
      ++report_.rank_deaths;
      rank->Die();
    }
  }
}

void SimWorld::BeginAnew() {
  for (Actor& actor : actors_) {
    const auto runs = [](const auto& rank) { return rank->state() == SimRank::State::kRunning; };
    const bool leaves = tick_ > 0 && std::all_of(actor.ranks.begin(), actor.ranks.end(), runs);
    for (const auto& rank : actor.ranks) {
      if (leaves) LetLeave(&actor, rank.get());
      if (&actor == &actors_.back()) SleepUntil(actor, *rank) = tick_ + kAwayTicks;
    }
  }
  others_die_at_ = tick_ + kAwayTicks - random_.Below(kAwayTicks / 4);
}

// Until the server has started another keeper and handed it everything, only the server itself has
// the memory.
void SimWorld::LoseKeeper() {
  ++report_.keeper_deaths;
  keeper_renewed_at_ = tick_ + 1 + random_.Below(kRenewalTicksMax);
  Note("the keeper dies");
}

void SimWorld::RenewKeeper() {
  if (keeper_renewed_at_ == 0) return;
  keeper_renewed_at_ = 0;
  Note("another keeper holds everything");
}

void SimWorld::ArmPoint() {
  const bool named = random_.Below(2) == 0;
  if (world_->has_tier() && random_.Below(4) == 0)
    return server_->DieAt(kNvmePoints[random_.Below(kNvmePoints.size())], 1 + random_.Below(9));
  if (demotes_ && random_.Below(3) == 0)
    return server_->DieAt(kDemotionPoints[random_.Below(kDemotionPoints.size())],
                          1 + random_.Below(2));
  if (frozen_ && random_.Below(4) == 0)
    return server_->DieAt(kFrozenPoints[random_.Below(kFrozenPoints.size())], 1 + random_.Below(3));
  const char* point = named ? kServerPoints[random_.Below(kServerPoints.size())] : nullptr;
  server_->DieAt(point, 1 + random_.Below(named ? 3 : 100));
}

// A process that a former server knew has ended: its keeper's watch says so, sooner or later.
void SimWorld::TellOfDeaths() {
  const size_t index = random_.Below(watches_.size());
  const Watch& watch = watches_[index];
  if (watch.blind || Lives(watch.rank.nonce)) return;
  Note("an awaited rank is told to be dead");
  world_->Post(AwaitedRankLost{watch.rank.job, watch.rank.rank, watch.rank.nonce});
  told_.push_back({watch.rank, tick_ + kTicksToHear});
  watches_.erase(watches_.begin() + static_cast<ptrdiff_t>(index));
}

void SimWorld::CheckTold() {
  std::erase_if(told_, [this](const ToldDeath& told) {
    if (tick_ < told.heard_by) return false;
    const Job* job = world_->tables().FindJob(told.rank.job);
    const bool awaited = job != nullptr && job->IsAwaited(told.rank.rank) &&
                         job->NonceOf(told.rank.rank) == told.rank.nonce;
    TP_CHECK(!awaited, "a rank that is told to be dead is not awaited any longer");
    return true;
  });
}

}  // namespace tidepool::memserver
