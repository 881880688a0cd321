// Patience: how long a rank waits for missing ranks. The limit counts from a missing rank's last
// sign of life, not from the start of the wait.
//
// One thread. Does not block; callers pass the time. A rank known to be on its way (`standing`) is
// waited for without limit, and the user is told once a minute; a rank known to have ended for good
// ends the wait at once; any other rank must show a sign of life within the limit. Decision 038 has
// the reasons.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/comm/rank_standing.h"

namespace tidepool::trainer {

// "rank 1, 3".
std::string NamesOfRanks(const std::vector<uint32_t>& ranks);

class Patience {
 public:
  struct Terms {
    uint32_t world = 1;    // number of ranks
    int64_t limit_ns = 0;  // limit without a sign of life
    std::string doing{};   // how the error begins: "meeting the other ranks failed on rank 0 of 2"
    // Called in every Wait for each missing rank; null: nothing is known of any.
    std::function<RankStanding(uint32_t rank)> standing = nullptr;
    std::function<void(const std::string& line)> say = nullptr;  // null: nobody is told
  };
  enum class Telling { kYes, kNo };

  Patience(Terms terms, int64_t now_ns);

  // `rank` has come, or has shown a sign of life.
  void Heard(uint32_t rank, int64_t now_ns);
  // `missing` have not come. ok: go on waiting. Errors: kRanksMissing, naming the ranks that end
  // the wait, and why.
  Status Wait(const std::vector<uint32_t>& missing, int64_t now_ns,
              Telling telling = Telling::kYes);

 private:
  struct Known {
    int64_t heard_ns;  // last sign at the meeting; at first the start of the wait
    int64_t sign_ns;   // last sign there or through `standing`
    RankStanding standing;
  };
  // Names the ranks that have been missing for a while.
  void Tell(std::vector<uint32_t> missing, int64_t now_ns);

  const Terms terms_;
  const int64_t begin_ns_;
  const int64_t tell_after_ns_;
  int64_t tell_at_ns_;
  std::vector<Known> ranks_;
};

}  // namespace tidepool::trainer
