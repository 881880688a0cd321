// Patience: how long a rank that waits for others goes on waiting. The limit counts from the last
// sign of life of a rank that is missing, not from when the waiting began.
//
// One thread. Nothing is waited for here, and time is handed in. A rank that is known to be on its
// way (`standing`) is waited for without end, and the user is told of it once a minute; one that is
// known to have ended for good ends the wait at once; of every other one a sign of life has to come
// within the limit. Decision 038 has the reasons.
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
    uint32_t world = 1;    // ranks
    int64_t limit_ns = 0;  // without a sign of life
    std::string doing{};   // how the error begins: "meeting the other ranks failed on rank 0 of 2"
    // Asked at every Wait for each rank that is missing; null: nothing is known of any.
    std::function<RankStanding(uint32_t rank)> standing = nullptr;
    std::function<void(const std::string& line)> say = nullptr;  // null: nobody is told
  };
  enum class Telling { kYes, kNo };

  Patience(Terms terms, int64_t now_ns);

  // `rank` is here, or something of it was heard.
  void Heard(uint32_t rank, int64_t now_ns);
  // These have not come. ok: they are waited for. Errors: kRanksMissing, naming those for whose
  // sake the wait is over, and why.
  Status Wait(const std::vector<uint32_t>& missing, int64_t now_ns,
              Telling telling = Telling::kYes);

 private:
  struct Known {
    int64_t heard_ns;  // at the meeting; at first the begin of the wait
    int64_t sign_ns;   // there, or by where it stands
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
