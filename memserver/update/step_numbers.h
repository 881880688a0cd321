// StepNumbers: what the ranks of a job send about the open step besides its end: numbers of
// parameter groups, parameters that no backward has reached, and facts about the step.
//
// One thread (the serve loop). Pure bookkeeping, reset together with StepTracker: nothing of it is
// in kept memory before the step is sealed, and no request is answered before its rank's end of the
// step, so a rank sends all of it again to the next server. A parameter is left alone if every rank
// of its data-parallel group says that it was not reached; a rank that sends nothing has reached
// all. Costs nothing in a step about which no rank sends anything.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "memserver/residency/kept/step_slots.h"
#include "shm/messages.h"
#include "shm/step_numbers.h"

namespace tidepool::memserver {

class StepNumbers {
 public:
  explicit StepNumbers(const shm::JobSpec* spec) : spec_(spec), of_rank_(spec->world) {}

  // Takes in a request of the rank. Returns null, or what is wrong with it; then nothing changes.
  const char* Take(Rank rank, const shm::Request& request);
  // The rank's requests, to be answered with its end of the step.
  std::span<const shm::Request> waiting(Rank rank) const { return of_rank_[rank].waiting; }
  // True if both ranks send the same numbers for the same groups.
  bool Agree(Rank one, Rank other) const;
  // The facts from the first rank that sends them.
  std::optional<shm::StepFacts> facts() const;
  // The ranks' statements combined. Requires that all of them have ended the step, and agree.
  StepSaid Together() const;
  void Clear();

 private:
  struct OfRank {
    uint64_t groups = 0;
    std::vector<GroupNumbers> numbers;  // empty, or one per group
    std::vector<uint64_t> untouched;    // empty, or a set of all parameters
    std::optional<shm::StepFacts> facts;
    std::vector<shm::Request> waiting;
  };
  std::vector<uint64_t> LeftAlone() const;

  const shm::JobSpec* const spec_;
  std::vector<OfRank> of_rank_;
};

}  // namespace tidepool::memserver
