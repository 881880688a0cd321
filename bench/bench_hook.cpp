// bench_hook: the cost of the operator hook for a dispatched LibTorch operator, compared with an
// empty callback of LibTorch's own kind (RecordFunction, with inputs).
//
// Operators of 64 elements, which do little work of their own. The cost is the time of a loop of
// operators with the hook, or the callback, minus that of the same loop without.
#include <algorithm>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "tests/fakes/hooked_chunks.h"
#include "trainer/hooks/operator_hook.h"

namespace tidepool::bench {
namespace {

using namespace trainer;  // NOLINT: the program has nothing else

constexpr int kOperators = 20'000;
constexpr double kMost = 3;  // multiple of the empty callback
constexpr const char* kHelp =
    "usage: bench_hook [--rounds N] [--json FILE]\n"
    "Measures the cost of the operator hook beside an empty callback of LibTorch's.\n";

std::unique_ptr<at::ObserverContext> Nothing(const at::RecordFunction&) {
  return nullptr;
}
void NothingBehind(const at::RecordFunction&, at::ObserverContext*) {}

// Loops of operators on parameters that do not move, so that they also work without the hook.
class Loop {
 public:
  Loop() {
    hook()->Install();
    const Status begun = chunks_.cache->BeginPass(PassKind::kEvaluation, 0);
    if (!begun.ok()) Die(begun.Format());
    for (const at::Tensor& weight : chunks_.weights) at::add_out(sum_, sum_, weight);
    hook()->Remove();
  }

  void Plain() {
    for (int i = 0; i < kOperators; ++i) at::add_out(sum_, sum_, other_);
  }
  void Reading() {
    for (int i = 0; i < kOperators; ++i) at::add_out(sum_, sum_, chunks_.weights[0]);
  }

  OperatorHook* hook() { return chunks_.hook.get(); }

 private:
  static constexpr int64_t kWidth = tidepool::testing::HookedChunks::kWidth;
  tidepool::testing::HookedChunks chunks_;
  at::Tensor sum_ = at::zeros({kWidth, kWidth}), other_ = at::zeros({kWidth, kWidth});
};

// The additional time of `way` over `plain` per operator, by round.
std::vector<double> CostsOf(const Rounds& rounds, size_t way, size_t plain) {
  std::vector<double> costs;
  for (size_t i = 0; i < rounds.seconds(way).size(); ++i) {
    const double more = rounds.seconds(way)[i] - rounds.seconds(plain)[i];
    costs.push_back(std::max(more, 0.0) / kOperators);
  }
  return costs;
}

// A row about the hook: its costs by round, compared with those of the empty callback.
Comparison Compare(const Rounds& rounds, const char* row, const std::vector<double>& costs,
                   const std::vector<double>& empty) {
  Comparison made{.bench = "hook",
                  .row = row,
                  .value = Median(costs) * 1e9,
                  .unit = "ns",
                  .against = "an empty callback with inputs",
                  .ratios = {},
                  .dropped = rounds.dropped(),
                  .target = std::nullopt};

  for (size_t i = 0; i < costs.size(); ++i) made.ratios.push_back(empty[i] / costs[i]);
  return made;
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t count = printer.Number("--rounds", 15);
  printer.NoMoreArguments();
  at::set_num_threads(1);
  Loop loop;

  Rounds rounds;
  const size_t plain = rounds.AddWay([&] { loop.Plain(); });
  const size_t empty = rounds.AddWay([&] {
    const at::CallbackHandle idle =
        at::addThreadLocalCallback(at::RecordFunctionCallback(&Nothing, &NothingBehind)
                                       .needsInputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
    loop.Plain();
    at::removeCallback(idle);
  });

  const size_t hooked = rounds.AddWay([&] {
    loop.hook()->Install();
    loop.Plain();
    loop.hook()->Remove();
  });
  const size_t reading = rounds.AddWay([&] {
    loop.hook()->Install();
    loop.Reading();
    loop.hook()->Remove();
  });
  rounds.Run(count);

  const std::vector<double> costs = CostsOf(rounds, empty, plain);
  Comparison plain_row =
      Compare(rounds, "an operator without parameters", CostsOf(rounds, hooked, plain), costs);
  plain_row.target = 1 / kMost;
  AddComparison(plain_row, &printer);
  AddComparison(Compare(rounds, "an operator that reads a parameter that is there",
                        CostsOf(rounds, reading, plain), costs),
                &printer);
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
