#include "bench/pipeline/paced_ranks.h"

#include <algorithm>
#include <barrier>
#include <map>
#include <thread>
#include <utility>

#include "bench/harness/median.h"

namespace tidepool::bench {
namespace {

constexpr double kFast = 12 / 13.1;  // the paper's threshold in figure 7, over its measured rate

// Merges spans that overlap or touch.
std::vector<Computed> Joined(std::vector<Computed> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const Computed& a, const Computed& b) { return a.start_ns < b.start_ns; });

  std::vector<Computed> joined;
  for (const Computed& span : spans) {
    if (!joined.empty() && span.start_ns <= joined.back().end_ns) {
      joined.back().end_ns = std::max(joined.back().end_ns, span.end_ns);
    } else {
      joined.push_back(span);
    }
  }
  return joined;
}

int64_t LengthOf(const std::vector<Computed>& spans) {
  int64_t length = 0;
  for (const Computed& span : spans) length += span.end_ns - span.start_ns;
  return length;
}

// The time in `copied` that is not in `computed`. Requires merged spans.
int64_t Outside(const std::vector<Computed>& copied, const std::vector<Computed>& computed) {
  std::vector<Computed> both = copied;
  both.insert(both.end(), computed.begin(), computed.end());
  return LengthOf(Joined(std::move(both))) - LengthOf(computed);
}

// Bytes copied at more than kFast of the link's rate, and all bytes.
std::pair<double, double> FastBytes(std::vector<CopyRecord> copies,
                                    const std::vector<double>& rates) {
  std::sort(copies.begin(), copies.end(),
            [](const CopyRecord& a, const CopyRecord& b) { return a.start_ns < b.start_ns; });
  std::map<std::pair<uint32_t, bool>, int64_t> before;  // end of the GPU's last copy, by direction
  double fast = 0, all = 0;

  for (const CopyRecord& copy : copies) {
    int64_t& end_ns = before[{copy.gpu, copy.up}];
    const auto took = static_cast<double>(copy.end_ns - std::max(copy.asked_ns, end_ns));
    const auto bytes = static_cast<double>(copy.bytes);
    if (bytes > kFast * rates[copy.complex] * took) fast += bytes;
    all += bytes;
    end_ns = copy.end_ns;
  }
  return {fast, all};
}

}  // namespace

PacedRanks::PacedRanks(const PacedMachine* machine, Clock* clock)
    : machine_(*machine), clock_(clock), links_(machine->rates(), clock) {}

PacedResult PacedRanks::Run(const std::vector<std::unique_ptr<RankCache>>& caches, uint32_t steps,
                            const std::function<void(uint32_t gpu, uint64_t step)>& step) {
  const auto gpus = static_cast<std::ptrdiff_t>(caches.size());
  std::barrier together(gpus);
  std::vector<int64_t> begins(caches.size()), ends(caches.size());
  std::vector<double> step_ns;

  const auto rank = [&](uint32_t gpu) {
    for (uint64_t number = 0; number <= steps; ++number) {
      together.arrive_and_wait();
      if (gpu == 0) links_.TakeRecords();
      together.arrive_and_wait();

      begins[gpu] = clock_->NowNs();
      caches[gpu]->BeginStep(number);
      step(gpu, number);
      caches[gpu]->EndStep();
      ends[gpu] = clock_->NowNs();

      together.arrive_and_wait();
      if (gpu == 0 && number > 0) {
        step_ns.push_back(static_cast<double>(*std::max_element(ends.begin(), ends.end()) -
                                              *std::min_element(begins.begin(), begins.end())));
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t gpu = 0; gpu < caches.size(); ++gpu) threads.emplace_back(rank, gpu);
  for (std::thread& thread : threads) thread.join();
  return Measured(caches, std::move(step_ns), links_.TakeRecords());
}

PacedResult PacedRanks::Measured(const std::vector<std::unique_ptr<RankCache>>& caches,
                                 std::vector<double> step_ns,
                                 const std::vector<CopyRecord>& copies) const {
  const std::vector<double> rates = machine_.rates();
  std::vector<std::vector<Computed>> copied(caches.size());
  std::map<std::pair<uint32_t, bool>, uint64_t> of_link;
  PacedResult result;
  const double last_ns = step_ns.back();
  result.step_ns = Median(std::move(step_ns));

  for (const CopyRecord& copy : copies) {
    (copy.up ? result.bytes_up : result.bytes_down) += copy.bytes;
    of_link[{copy.complex, copy.up}] += copy.bytes;
    copied[copy.gpu].push_back({copy.start_ns, copy.end_ns});
  }
  for (uint32_t complex = 0; complex < rates.size(); ++complex) {
    const uint64_t up = of_link[{complex, true}], down = of_link[{complex, false}];
    const auto busier = static_cast<double>(std::max(up, down));
    result.link_ns = std::max(result.link_ns, busier / rates[complex]);
    result.bytes_of_complex_max = std::max(result.bytes_of_complex_max, up + down);
  }

  for (uint32_t gpu = 0; gpu < caches.size(); ++gpu) {
    const std::vector<Computed> computed = Joined(caches[gpu]->computed());
    result.compute_ns = std::max(result.compute_ns, static_cast<double>(LengthOf(computed)));
    result.exposed += static_cast<double>(Outside(Joined(copied[gpu]), computed)) / last_ns /
                      static_cast<double>(caches.size());
  }
  const auto [fast, all] = FastBytes(copies, rates);
  result.fast = fast / all;
  return result;
}

}  // namespace tidepool::bench
