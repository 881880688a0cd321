// bench_hook: what the operator hook costs an operator that LibTorch dispatches, beside a callback
// of LibTorch's own kind (RecordFunction, with inputs) that does nothing.
//
// Operators of 64 elements, whose own work is little. The cost is the time of a loop of operators
// with the hook, or the callback, less that of the same loop without.
#include <algorithm>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "tests/fakes/memory_chunk_service.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/hooks/operator_hook.h"
#include "trainer/hooks/storage_binding.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::bench {
namespace {

using namespace trainer;  // NOLINT: the program has nothing else

constexpr int64_t kWidth = 8;
constexpr int kOperators = 20'000;
constexpr double kMost = 3;  // times the empty callback
constexpr const char* kHelp =
    "usage: bench_hook [--rounds N] [--json FILE]\n"
    "Measures the cost of the operator hook beside an empty callback of LibTorch's.\n";

std::unique_ptr<at::ObserverContext> Nothing(const at::RecordFunction&) {
  return nullptr;
}
void NothingBehind(const at::RecordFunction&, at::ObserverContext*) {}

// Three parameters of a chunk each, all of which have a block.
class Loop {
 public:
  Loop() {
    LayoutOptions options;
    options.chunk_bytes = kWidth * kWidth * sizeof(float);
    std::vector<ParameterNote> notes;
    std::vector<BoundParameter> places;
    for (ChunkId i = 0; i < 3; ++i) {
      notes.push_back({"w" + std::to_string(i), {kWidth, kWidth}, 0, 0, false});
      weights_.push_back(at::zeros({kWidth, kWidth}));
      places.push_back({.chunk = i, .element_begin = 0});
    }
    layout_ = BuildLayout(notes, options).value();

    server_ = std::make_unique<tidepool::testing::MemoryServer>(&layout_);
    service_ = std::make_unique<tidepool::testing::MemoryChunkService>(
        server_.get(), 0, layout_.RcacheBytes(0, 3), 1, 0);
    CacheSetup setup;
    setup.layout = &layout_;
    setup.service = service_.get();
    setup.groups = {nullptr};
    setup.clock = &clock_;
    cache_ = std::move(ParameterCache::Create(std::move(setup))).value();

    const std::vector<uint64_t> bytes(3, options.chunk_bytes);
    binding_ = std::move(StorageBinding::Bind(bytes, weights_, places)).value();
    hook_ = std::make_unique<OperatorHook>(cache_.get(), binding_.get());
    // The parameters stay where they are, so that operators can do without the hook.
    hook_->Install();
    Require(cache_->BeginPass(PassKind::kEvaluation, 0));
    for (const at::Tensor& weight : weights_) at::add_out(sum_, sum_, weight);
    hook_->Remove();
  }

  void Plain() {
    for (int i = 0; i < kOperators; ++i) at::add_out(sum_, sum_, other_);
  }
  void Reading() {
    for (int i = 0; i < kOperators; ++i) at::add_out(sum_, sum_, weights_[0]);
  }

  OperatorHook* hook() { return hook_.get(); }

 private:
  static void Require(const Status& status) {
    if (!status.ok()) Die(status.Format());
  }

  SteadyClock clock_;
  ChunkLayout layout_;
  std::vector<at::Tensor> weights_;
  at::Tensor sum_ = at::zeros({kWidth, kWidth}), other_ = at::zeros({kWidth, kWidth});
  std::unique_ptr<tidepool::testing::MemoryServer> server_;
  std::unique_ptr<tidepool::testing::MemoryChunkService> service_;
  std::unique_ptr<ParameterCache> cache_;
  std::unique_ptr<StorageBinding> binding_;
  std::unique_ptr<OperatorHook> hook_;
};

// The time that `way` takes longer than `plain`, by round, for one operator.
std::vector<double> CostsOf(const Rounds& rounds, size_t way, size_t plain) {
  std::vector<double> costs;
  for (size_t i = 0; i < rounds.seconds(way).size(); ++i) {
    const double more = rounds.seconds(way)[i] - rounds.seconds(plain)[i];
    costs.push_back(std::max(more, 0.0) / kOperators);
  }
  return costs;
}

// A row about the hook, whose costs by round stand beside those of the empty callback.
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
