// StepSlots: what the last sealed steps of a job say of its parameter groups and parameters, in
// kept memory: numbers in place of the job's, and which parameters no gradient has reached.
//
// Serve loop, and a later server that reads them. Two slots behind the encoded JobSpec
// (kept_records.h), that of version v at v % 2:
//   +0    StepSlotHead
//   +32   GroupNumbers    one a parameter group; zero where the step has none of it
//   then  words           uint32 each, one a parameter, in order of ParameterId: the steps that
//                         have left it alone so far, this one included; the highest bit says
//                         that this one did
// A step that is skipped changes nothing, so it leaves no parameter alone and counts nowhere.
// torch counts steps by parameter, and the update does so too: the number of a parameter's step
// is the record's optimizer_step less the steps that have left it alone.
// Invariants:
//  1. a job that never brings anything of this has no slot written: JobRecord::slotted_from is 0.
//     From the first step on that does, each sealed version has its slot;
//  2. the slot of a version is complete before its step record, and the counts in it are those of
//     the slot before, and this step.
// Jobs of layouts before kLayoutStepSlots have no slots: Exist() is false, and their parameters
// without a gradient count as having a zero one.
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
  uint64_t groups;      // bit g: the step has numbers of group g
  uint32_t parameters;  // that have words: none, or all
  uint32_t crc;         // of all above, the numbers, and the words
};
static_assert(sizeof(StepSlotHead) == 32 && shm::kParameterGroupsMax == 64);

inline constexpr uint32_t kLeftAlone = uint32_t{1} << 31;
// Steps that have left the parameter of this word alone.
constexpr uint32_t StepsMissed(uint32_t word) {
  return word & ~kLeftAlone;
}

// What ranks say of a step before it is sealed.
struct StepSaid {
  uint64_t groups = 0;                     // bit g: numbers[g] counts
  std::vector<GroupNumbers> numbers = {};  // empty, or one a group
  // A set of parameters (shm/step_numbers.h); empty: all are reached.
  std::vector<uint64_t> untouched = {};

  // False: the job's numbers count, and every parameter is reached.
  bool any() const { return groups != 0 || !untouched.empty(); }
};

// What a slot says.
struct StepView {
  uint64_t groups = 0;
  std::span<const GroupNumbers> numbers;
  std::span<const uint32_t> words;  // empty: no step has left a parameter alone

  // The numbers of a group; null: the job's count.
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
  // What the step that makes `version`, the sealed one, says; none: nothing was ever said.
  std::optional<StepView> Of(Version version) const;
  // Fills the slot of the step that is about to be sealed, where it needs one. Requires Exist(), or
  // that nothing is said.
  void Write(const StepRecord& step, const StepSaid& said);
  // Null where the slots of a job whose sealed version is this one can be trusted.
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
