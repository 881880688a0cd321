// Converts what a rank sends about a step besides its end to and from ring requests: numbers of
// parameter groups, and the parameters that no backward has reached.
//
// Pure functions, any thread. Requests come from a peer: Read... checks every number. Both sides
// hold a set of parameters as bits: parameter p is bit p % 64 of word p / 64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/formats/optimizer.h"
#include "base/ids.h"
#include "shm/messages.h"
#include "shm/spec/job_spec.h"

namespace tidepool::shm {

// Parameters whose bits one request holds.
inline constexpr uint32_t kUntouchedBits = 192;
// Most requests of this kind that a rank may send in one step: enough for numbers of all groups,
// and any set of 49,152 parameters (of more, sets with runs of neighbours).
inline constexpr uint32_t kUntouchedRequestsMax = 256;
// Those, and one with the facts of the step.
inline constexpr uint32_t kNumbersRequestsMax = kParameterGroupsMax + kUntouchedRequestsMax + 1;

// Facts about a step, for monitoring; in no kept memory.
struct StepFacts {
  float loss = 0;            // mean over ranks and micro-batches; may be NaN
  uint64_t tokens = 0;       // of all ranks
  bool cpus_shared = false;  // threads of the rank shared CPUs with others
};
inline constexpr uint64_t kStepTokensMax = uint64_t{1} << 48;

// Words of a set over this many parameters.
constexpr size_t WordsOfSet(uint64_t parameters) {
  return static_cast<size_t>((parameters + 63) / 64);
}

// The request with these numbers; only op, version and contents are filled in.
Request GroupNumbersRequestOf(uint32_t group, const GroupNumbers& numbers, Version version);
// The requests for a set; none for an empty set. May be more than kUntouchedRequestsMax.
std::vector<Request> UntouchedRequestsOf(std::span<const uint64_t> untouched, uint64_t parameters,
                                         Version version);
Request StepFactsRequestOf(const StepFacts& facts, Version version);

// Reads a request. Returns null, or what no honest rank sends.
const char* ReadGroupNumbers(const Request& request, const JobSpec& spec, GroupNumbers* numbers);
// The same; `untouched` has WordsOfSet of the job's parameters.
const char* ReadUntouched(const Request& request, const JobSpec& spec,
                          std::span<uint64_t> untouched);
const char* ReadStepFacts(const Request& request, StepFacts* facts);
// The group of a kGroupNumbers.
inline uint32_t GroupOf(const Request& request) {
  return std::bit_cast<GroupNumbersRequest>(request).group;
}

}  // namespace tidepool::shm
