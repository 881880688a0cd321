// StepFigures: statistics of a job's sealed steps since this memserver has it: how long they took,
// how many were skipped, and what a rank reported about the last one.
//
// One thread (the serve loop). Not in kept memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "memserver/residency/step_times.h"
#include "shm/step_numbers.h"

namespace tidepool::memserver {

class StepFigures {
 public:
  // Counts a step that was sealed now.
  void Sealed(int64_t now_ns, bool skipped, const std::optional<shm::StepFacts>& facts);
  // Notes that the job had no ranks for a while, which is part of no step.
  void Interrupt() { last_seal_ns_ = 0; }

  // Time between the last two seals; 0: not known yet.
  double last_seconds() const { return last_seconds_; }
  uint64_t skipped() const { return skipped_; }
  // What a rank reported about the last step, if one did.
  const std::optional<shm::StepFacts>& facts() const { return facts_; }
  // Tokens of all reported steps.
  uint64_t tokens() const { return tokens_; }
  // Percentiles of step times. Sorts the recent ones: for the snapshot, not for every turn.
  StepTimes Times() const;

 private:
  static constexpr size_t kRecent = 128;  // steps that the percentiles cover

  int64_t last_seal_ns_ = 0;
  double last_seconds_ = 0;
  uint64_t skipped_ = 0, tokens_ = 0;
  std::optional<shm::StepFacts> facts_;
  StepTimes times_;
  std::array<float, kRecent> recent_{};  // seconds; a ring, filled from the front
};

}  // namespace tidepool::memserver
