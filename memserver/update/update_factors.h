// UpdateFactors: the factors of a running update: by parameter group, or by parameter if a step has
// left parameters alone.
//
// One thread (the serve loop) makes them; workers read them until their work is done. A pure
// function of the specification, the step's record and its slot, so that a later server continues
// with the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "memserver/residency/kept/step_slots.h"
#include "optim/update_span.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

// The factors of one chunk's parameters.
struct ChunkFactors {
  const optim::StepFactors* all = nullptr;
  // By parameter of the chunk: index into `all`, or kNone; null: the index is the group.
  const uint32_t* of = nullptr;
  static constexpr uint32_t kNone = ~uint32_t{0};

  // Null for a parameter that the step leaves alone. `index` is the parameter's index in the chunk.
  const optim::StepFactors* Of(uint64_t index, uint32_t group) const {
    const uint32_t which = of == nullptr ? group : of[index];
    return which == kNone ? nullptr : all + which;
  }
};

class UpdateFactors {
 public:
  // Makes the factors for the step of `record`, which is not skipped; `said` is the content of its
  // slot. Nobody may still read the former factors.
  void Make(const shm::JobSpec& spec, const StepRecord& record,
            const std::optional<StepView>& said);
  ChunkFactors OfChunk(ParameterId first_parameter) const {
    return {factors_.data(), of_parameter_.empty() ? nullptr : &of_parameter_[first_parameter]};
  }

 private:
  void MakeByParameter(const shm::JobSpec& spec, const StepRecord& record, const StepView& said);

  std::vector<optim::StepFactors> factors_;
  std::vector<uint32_t> of_parameter_;  // empty: factors are by group
};

}  // namespace tidepool::memserver
