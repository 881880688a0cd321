#include "shm/step_numbers.h"

#include <algorithm>
#include <bit>

#include "base/planted.h"

namespace tidepool::shm {
namespace {

bool IsIn(std::span<const uint64_t> set, uint64_t parameter) {
  return (set[parameter / 64] >> parameter % 64 & 1) != 0;
}

}  // namespace

Request GroupNumbersRequestOf(uint32_t group, const GroupNumbers& numbers, Version version) {
  GroupNumbersRequest request{};
  request.op = static_cast<uint32_t>(Op::kGroupNumbers);
  request.group = group;
  request.version = version;
  request.learning_rate = numbers.learning_rate;
  request.weight_decay = numbers.weight_decay;
  request.beta1 = numbers.beta1;
  request.beta2 = numbers.beta2;
  request.eps = numbers.eps;
  return std::bit_cast<Request>(request);
}

std::vector<Request> UntouchedRequestsOf(std::span<const uint64_t> untouched, uint64_t parameters,
                                         Version version) {
  std::vector<Request> requests;
  uint64_t at = 0;
  for (;;) {
    while (at < parameters && !IsIn(untouched, at)) ++at;
    if (at == parameters) return requests;

    UntouchedRequest request{};
    request.op = static_cast<uint32_t>(Op::kUntouched);
    request.first = static_cast<uint32_t>(at);
    request.version = version;
    while (at < parameters && IsIn(untouched, at)) ++at;
    request.run = static_cast<uint32_t>(at) - request.first;

    for (uint64_t i = 0; i < kUntouchedBits && at < parameters; ++i, ++at)
      request.bits[i / 64] |= uint64_t{IsIn(untouched, at)} << i % 64;
    requests.push_back(std::bit_cast<Request>(request));
  }
}

Request StepFactsRequestOf(const StepFacts& facts, Version version) {
  StepFactsRequest request{};
  request.op = static_cast<uint32_t>(Op::kStepFacts);
  request.loss = facts.loss;
  request.version = version;
  request.tokens = facts.tokens;
  request.cpus_shared = facts.cpus_shared ? 1 : 0;
  return std::bit_cast<Request>(request);
}

const char* ReadStepFacts(const Request& request, StepFacts* facts) {
  const auto own = std::bit_cast<StepFactsRequest>(request);
  if (own.tokens >= kStepTokensMax) return "a step has more tokens than there are";
  if (own.cpus_shared > 1 || own.reserved[0] != 0 || own.reserved[1] != 0)
    return "a reserved field is set";
  *facts = {.loss = own.loss, .tokens = own.tokens, .cpus_shared = own.cpus_shared == 1};
  return nullptr;
}

const char* ReadGroupNumbers(const Request& request, const JobSpec& spec, GroupNumbers* numbers) {
  const auto own = std::bit_cast<GroupNumbersRequest>(request);
  if (own.group >= spec.parameter_groups.size()) return "the job has no such parameter group";
  *numbers = {.beta1 = own.beta1,
              .beta2 = own.beta2,
              .learning_rate = own.learning_rate,
              .weight_decay = own.weight_decay,
              .eps = own.eps};
  return TP_PLANTED("shm.group_numbers_unchecked") ? nullptr
                                                   : WhyBad(spec.optimizer, spec.dtype, *numbers);
}

const char* ReadUntouched(const Request& request, const JobSpec& spec,
                          std::span<uint64_t> untouched) {
  const auto own = std::bit_cast<UntouchedRequest>(request);
  const uint64_t parameters = spec.parameters.size();
  const uint64_t behind = uint64_t{own.first} + own.run;
  if (behind > parameters) return "the job has no such parameter";
  for (uint64_t i = 0; i < kUntouchedBits; ++i) {
    if ((own.bits[i / 64] >> i % 64 & 1) != 0 && behind + i >= parameters)
      return "the job has no such parameter";
  }

  const auto add = [untouched](uint64_t parameter) {
    untouched[parameter / 64] |= uint64_t{1} << parameter % 64;
  };
  for (uint64_t parameter = own.first; parameter < behind; ++parameter) add(parameter);
  for (uint64_t i = 0; i < kUntouchedBits; ++i) {
    if ((own.bits[i / 64] >> i % 64 & 1) != 0) add(behind + i);
  }
  return nullptr;
}

}  // namespace tidepool::shm
