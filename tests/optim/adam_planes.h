// AdamPlanesOnHost: planes of random and special values for the tests of the GPU's Adam, and their
// comparison.
//
// One thread. All values follow from the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/update_rule.h"
#include "tests/optim/random_arrays.h"

namespace tidepool::optim {

// What the kernel is compiled for.
struct AdamCase {
  OptimizerRule rule;
  DType gradient;
  bool copies;  // a 16-bit copy
  DType copy;
  std::string Name() const {
    return std::string(NameOf(rule)) + ", gradient " + NameOf(gradient) +
           (copies ? std::string(", copy ") + NameOf(copy) : ", no copy");
  }
  StepFactors Factors() const {
    OptimizerSpec spec;
    spec.rule = rule;
    return MakeFactors(spec, {3e-4, 17, 1.0F / 1024}, {1.5, 0.1});
  }
};

inline std::vector<AdamCase> AllAdamCases() {
  std::vector<AdamCase> cases;
  for (const OptimizerRule rule : {OptimizerRule::kAdamW, OptimizerRule::kAdam}) {
    cases.push_back({rule, DType::kF32, false, DType::kBF16});
    for (const DType copy : {DType::kBF16, DType::kF16}) {
      cases.push_back({rule, DType::kF32, true, copy});
      cases.push_back({rule, copy, true, copy});
    }
  }
  return cases;
}

struct AdamPlanesOnHost {
  AdamPlanesOnHost(uint64_t seed, uint64_t elements, const AdamCase& c)
      : which(c), count(elements) {
    master = RandomFloats(seed, count, 0.1F, Values::kSpecial);
    momentum = RandomFloats(seed + 1, count, 0.01F, Values::kSpecial);
    variance = RandomFloats(seed + 2, count, 0.001F, Values::kSpecial);
    gradient = Stored(RandomFloats(seed + 3, count, 30.0F, Values::kSpecial), c.gradient);
    if (c.copies) param16.assign(2 * count, 0xA5);
  }

  UpdateSpan Span() {
    UpdateSpan span;
    span.master = master.data();
    span.momentum = momentum.data();
    span.variance = variance.data();
    span.gradient = gradient.data();
    span.gradient_dtype = which.gradient;
    span.param16 = which.copies ? param16.data() : nullptr;
    span.param16_dtype = which.copy;
    span.count = count;
    return span;
  }

  // Equal bits everywhere; all NaNs count as equal.
  bool SameAs(const AdamPlanesOnHost& other) const {
    return Same(master, other.master) && Same(momentum, other.momentum) &&
           Same(variance, other.variance) && gradient == other.gradient &&
           SameStored(param16, other.param16, which.copy);
  }

  AdamCase which;
  uint64_t count;
  std::vector<float> master, momentum, variance;
  std::vector<uint8_t> gradient, param16;
};

}  // namespace tidepool::optim
