// StepSlots: what the last sealed steps of a job store about its parameter groups and parameters,
// in kept memory: numbers that replace the job's, and which parameters got no gradient.
//
// Serve loop, and a later server that reads them. Two slots behind the encoded JobSpec
// (kept_records.h); version v uses slot v % 2:
//   +0    StepSlotHead
//   +32   GroupNumbers    one per parameter group; zero if the step has none for it
//   then  words           uint32 each, one per parameter, in order of ParameterId: the steps that
//                         have left it alone so far, including this one; the highest bit says
//                         that this one did
// A skipped step changes nothing, so it leaves no parameter alone and is not counted. torch counts
// steps by parameter, and so does the update: the number of a parameter's step is the record's
// optimizer_step less the steps that have left it alone. Invariants:
//  1. a job that never sends such numbers has no slot written: JobRecord::slotted_from is 0. From
//     the first step on that sends some, each sealed version has its slot;
//  2. the slot of a version is complete before its step record, and its counts are those of the
//     slot before, plus this step.
// Jobs of layouts before kLayoutStepSlots have no slots: Exist() is false, and a parameter without
// a gradient is treated as having a zero one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/formats/optimizer.h"
#include "base/ids.h"
#include "memserver/residency/kept/kept_records.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

struct StepSlotHead {
  Version version;
  uint64_t job_nonce;
  uint64_t groups;      // bit g: the step has numbers for group g
  uint32_t parameters;  // number of words: none, or one per parameter
  uint32_t crc;         // of all above, the numbers, and the words
};
static_assert(sizeof(StepSlotHead) == 32 && shm::kParameterGroupsMax == 64);

inline constexpr uint32_t kLeftAlone = uint32_t{1} << 31;
// Steps that have left the parameter of this word alone.
constexpr uint32_t StepsMissed(uint32_t word) {
  return word & ~kLeftAlone;
}

// What ranks send about a step before it is sealed.
struct StepSaid {
  uint64_t groups = 0;                     // bit g: numbers[g] is valid
  std::vector<GroupNumbers> numbers = {};  // empty, or one per group
  // A set of parameters (shm/step_numbers.h); empty: all have gradients.
  std::vector<uint64_t> untouched = {};

  // False: the job's numbers apply, and every parameter has a gradient.
  bool any() const { return groups != 0 || !untouched.empty(); }
};

// The contents of a slot.
struct StepView {
  uint64_t groups = 0;
  std::span<const GroupNumbers> numbers;
  std::span<const uint32_t> words;  // empty: no step has left a parameter alone

  // The numbers of a group; null: the job's apply.
  const GroupNumbers* Of(uint32_t group) const {
    return (groups >> group & 1) != 0 ? &numbers[group] : nullptr;
  }
};

class StepSlots {
 public:
  // A job without slots.
  StepSlots() = default;
  // `spec` and what `record` and `at` point to outlive the object.
  StepSlots(const shm::JobSpec& spec, JobRecord* record, std::byte* at);

  bool Exist() const { return at_ != nullptr; }
  // What the step that made `version`, the sealed one, stored; none: no step ever stored anything.
  std::optional<StepView> Of(Version version) const;
  // Fills the slot of the step that is about to be sealed, if it needs one. Requires Exist(), or
  // that `said` is empty.
  void Write(const StepRecord& step, const StepSaid& said);
  // Why the slots of a job at this sealed version cannot be trusted; null if they can.
  const char* WhyBad(Version sealed) const;

 private:
  struct Slot {
    StepSlotHead* head = nullptr;
    std::span<GroupNumbers> numbers;
    std::span<uint32_t> words;
  };
  Slot SlotOf(Version version) const;
  static uint32_t CrcOf(const Slot& slot);

  const shm::JobSpec* spec_ = nullptr;
  JobRecord* record_ = nullptr;
  std::byte* at_ = nullptr;
};

}  // namespace tidepool::memserver
