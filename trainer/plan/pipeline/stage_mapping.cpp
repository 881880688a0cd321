#include "trainer/plan/pipeline/stage_mapping.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/planted.h"

namespace tidepool::trainer {
namespace {

// Tolerance for equal terms summed in another order.
constexpr double kEqual = 1e-9;

// Searches orders of complexes by position, lowest GPU first; keeps the first of equal sums.
class MappingSearch {
 public:
  MappingSearch(const GpuTopology& topology, uint32_t stages)
      : topology_(topology),
        gpus_(topology.gpus()),
        nearness_(static_cast<size_t>(gpus_) * gpus_),
        best_(SequentialMapping(topology, stages)) {
    for (uint32_t i = 0; i < stages; ++i) {
      for (uint32_t j = i + 1; j < stages; ++j) {
        const auto [a, b] = std::minmax({i % gpus_, j % gpus_});
        nearness_[a * gpus_ + b] += 1.0 / (j - i);
      }
    }

    for (const RootComplex& complex : topology.complexes) left_.push_back(complex.gpus);
  }

  StageMapping Run() {
    Place(0);
    return best_;
  }

 private:
  // `sum_` covers all pairs of positions so far; further ones only add to it.
  void Place(uint32_t place) {
    if (place == gpus_) {
      best_.contention = sum_;
      best_.order = OrderOf(complexes_);
      return;
    }

    for (uint32_t complex = 0; complex < left_.size(); ++complex) {
      if (left_[complex] == 0 || IsTwin(complex)) continue;
      const double before = sum_;
      complexes_.push_back(complex);
      for (uint32_t other = 0; other <= place; ++other) {
        if (complexes_[other] == complex)
          sum_ += topology_.complexes[complex].gpus * nearness_[other * gpus_ + place];
      }

      --left_[complex];
      if (sum_ < best_.contention - kEqual) Place(place + 1);
      ++left_[complex];
      complexes_.pop_back();
      sum_ = before;
    }
  }

  // An untouched complex equal to an earlier untouched one gives the same sums.
  bool IsTwin(uint32_t complex) const {
    const uint32_t gpus = topology_.complexes[complex].gpus;
    if (left_[complex] != gpus) return false;
    for (uint32_t earlier = 0; earlier < complex; ++earlier) {
      const uint32_t others = topology_.complexes[earlier].gpus;
      const bool alike = others == gpus || TP_PLANTED("pipeline.twins_that_differ");
      if (alike && left_[earlier] == others) return true;
    }
    return false;
  }

  std::vector<uint32_t> OrderOf(const std::vector<uint32_t>& complexes) const {
    std::vector<uint32_t> next(left_.size(), 0), order;
    for (uint32_t complex = 1; complex < next.size(); ++complex)
      next[complex] = next[complex - 1] + topology_.complexes[complex - 1].gpus;
    for (const uint32_t complex : complexes) order.push_back(next[complex]++);
    return order;
  }

  const GpuTopology& topology_;
  const uint32_t gpus_;
  std::vector<double> nearness_;  // of positions a <= b: the sum of 1 / |i - j| over their stages
  StageMapping best_;
  // State of the search.
  std::vector<uint32_t> left_;       // GPUs of each complex
  std::vector<uint32_t> complexes_;  // by position
  double sum_ = 0;
};

}  // namespace

double ContentionOf(const GpuTopology& topology, std::span<const uint32_t> order, uint32_t stages) {
  const auto gpus = static_cast<uint32_t>(order.size());
  double sum = 0;
  for (uint32_t i = 0; i < stages; ++i) {
    const uint32_t complex = topology.ComplexOf(order[i % gpus]);
    for (uint32_t j = i + 1; j < stages; ++j) {
      if (topology.ComplexOf(order[j % gpus]) == complex)
        sum += static_cast<double>(topology.complexes[complex].gpus) / (j - i);
    }
  }
  return sum;
}

StageMapping CrossMapping(const GpuTopology& topology, uint32_t stages) {
  TP_CHECK(topology.gpus() > 0 && topology.gpus() <= kMappedGpusMax, "so many GPUs are not mapped");
  return MappingSearch(topology, stages).Run();
}

StageMapping SequentialMapping(const GpuTopology& topology, uint32_t stages) {
  StageMapping mapping;
  mapping.order.resize(topology.gpus());
  std::iota(mapping.order.begin(), mapping.order.end(), 0U);
  mapping.contention = ContentionOf(topology, mapping.order, stages);
  return mapping;
}

}  // namespace tidepool::trainer
