#include "trainer/comm/meeting/patience.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/planted.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kTellEveryNs = 60 * kNsPerSecond;
constexpr size_t kToldOfMax = 4;  // ranks named in one line
constexpr int kSignalled = 128;   // exit codes from here: 128 + the signal

std::string HowEnded(uint32_t rank, int exit_code) {
  const bool was_killed = exit_code > kSignalled;
  return "rank " + std::to_string(rank) + " has ended for good, " +
         (was_killed ? "by signal " + std::to_string(exit_code - kSignalled)
                     : "with exit code " + std::to_string(exit_code));
}

}  // namespace

std::string NamesOfRanks(const std::vector<uint32_t>& ranks) {
  std::string names;
  for (const uint32_t rank : ranks)
    names += (names.empty() ? "rank " : ", ") + std::to_string(rank);
  return names;
}

Patience::Patience(Terms terms, int64_t now_ns)
    : terms_(std::move(terms)),
      begin_ns_(now_ns),
      tell_after_ns_(std::min(terms_.limit_ns, kTellEveryNs)),
      tell_at_ns_(now_ns),
      ranks_(terms_.world, Known{now_ns, now_ns, {}}) {}

void Patience::Heard(uint32_t rank, int64_t now_ns) {
  ranks_[rank].heard_ns = ranks_[rank].sign_ns = now_ns;
}

Status Patience::Wait(const std::vector<uint32_t>& missing, int64_t now_ns, Telling telling) {
  std::vector<uint32_t> ended, overdue;
  for (const uint32_t rank : missing) {
    Known& known = ranks_[rank];
    known.standing = terms_.standing ? terms_.standing(rank) : RankStanding();
    if (known.standing.kind == RankStanding::Kind::kEnded) ended.push_back(rank);
    if (known.standing.kind == RankStanding::Kind::kComing) known.sign_ns = now_ns;
    const int64_t from_ns = TP_PLANTED("comm.patience_from_own_start") ? begin_ns_ : known.sign_ns;
    if (now_ns - from_ns > terms_.limit_ns) overdue.push_back(rank);
  }

  const auto missed = [this](const std::vector<uint32_t>& ranks) {
    return Status(ErrorId::kRanksMissing,
                  terms_.doing + ": " + NamesOfRanks(ranks) + " did not come");
  };
  if (!ended.empty())
    return missed(ended).Why(HowEnded(ended.front(), ranks_[ended.front()].standing.exit_code));
  if (!overdue.empty())
    return missed(overdue).Why("not within " + FormatNs(terms_.limit_ns) +
                               " of the last sign of life");
  if (telling == Telling::kYes && terms_.say && now_ns >= tell_at_ns_) Tell(missing, now_ns);
  return {};
}

void Patience::Tell(std::vector<uint32_t> missing, int64_t now_ns) {
  std::erase_if(missing,
                [&](uint32_t rank) { return now_ns - ranks_[rank].heard_ns < tell_after_ns_; });
  if (missing.empty()) return;
  tell_at_ns_ = now_ns + kTellEveryNs;

  std::string line = "waiting";
  bool any_lives = false;

  for (size_t i = 0; i < std::min(missing.size(), kToldOfMax); ++i) {
    const Known& known = ranks_[missing[i]];
    const bool lives = known.standing.kind == RankStanding::Kind::kComing;
    line += (i == 0 ? " for rank " : "; for rank ") + std::to_string(missing[i]);
    if (lives)
      line += " (pid " + std::to_string(known.standing.pid) + "), which lives and is on its way";
    line += ", for " + FormatNs(now_ns - known.heard_ns);
    if (!lives) line += " of " + FormatNs(terms_.limit_ns) + " at most without a sign of life";
    any_lives = any_lives || lives;
  }

  if (missing.size() > kToldOfMax)
    line += "; and for " + std::to_string(missing.size() - kToldOfMax) + " more";
  if (any_lives)
    line +=
        ". A rank that is stuck is waited for too: end it with kill -9 and its pid, or the run "
        "with Ctrl-C";
  terms_.say(line);
}

}  // namespace tidepool::trainer
