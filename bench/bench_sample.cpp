// bench_sample: tokens per second of `trainer sample`, compared with the model's forward of one
// token after another, with nothing chosen and nothing printed.
//
// Models with random weights, fp32, in this process; the threads are those that the command picks.
// The first row has the forward with the same cache of keys and values as its peer, so the rest is
// the choice of a token and its text. The second one has the matrices alone: each weight matrix by
// one vector, which no forward can do without. The third compares the threads that were picked with
// all others that were tried.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/types.h>

#include "base/clock.h"
#include "base/text/plural.h"
#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "trainer/model/generate.h"
#include "trainer/model/gpt_init.h"
#include "trainer/threads/compute_threads.h"
#include "trainer/threads/cpu_watch.h"

namespace tidepool::bench {
namespace {

using namespace trainer;  // NOLINT: the program has nothing else

// Two numbers of threads that are equally fast differ by chance, and more so beside other work.
constexpr double kTarget = 0.8, kThreadsTarget = 0.8;
constexpr const char* kHelp =
    "usage: bench_sample [--json FILE] [--preset NAME] [--tokens N] [--rounds N]\n"
    "Continues a text by N tokens (default 50), as `trainer sample` does, with a model of this "
    "form\n(default: quickstart, then gpt2-124m).\n";

class Sampling {
 public:
  Sampling(const GptShape& shape, uint64_t tokens)
      : model_(shape, torch::TensorOptions().dtype(torch::kFloat32)) {
    InitGpt(&model_, 1);
    options_.tokens = tokens;
    for (const auto& item : model_.named_parameters()) {
      const at::Tensor& parameter = item.value();
      if (parameter.dim() != 2 || item.key().find("wpe") != std::string::npos) continue;
      matrices_.push_back(parameter);
      vectors_.push_back(torch::ones({1, parameter.size(1)}));
    }
  }

  // What the command does with a prompt, down to the write of each token.
  void Sample() {
    const auto show = [](int64_t token) {
      return std::fputc(static_cast<char>(token), null_) != EOF;
    };
    const auto made = Generate(&model_, prompt_, options_, show);
    OrDie(made.status());
  }

  void Forward() {
    KvCache cache;
    at::Tensor token = torch::zeros({1, 1}, torch::kInt64);
    for (uint64_t i = 0; i < options_.tokens; ++i) model_.NextLogits(token, &cache);
  }

  // What the command tries threads with.
  void Token() {
    KvCache cache;
    model_.NextLogits(torch::zeros({1, 1}, torch::kInt64), &cache);
  }

  void Matrices() {
    const torch::NoGradGuard no_grad;
    for (uint64_t i = 0; i < options_.tokens; ++i) {
      for (size_t m = 0; m < matrices_.size(); ++m) at::linear(vectors_[m], matrices_[m]);
    }
  }

 private:
  static inline std::FILE* const null_ = std::fopen("/dev/null", "w");
  Gpt model_;
  GenerateOptions options_;
  const std::vector<int64_t> prompt_{1};
  std::vector<at::Tensor> matrices_, vectors_;
};

// Measures one model.
void Measure(const std::string& preset, uint64_t asked, uint64_t count, RowPrinter* printer) {
  const GptShape shape = OrDie(FindGptPreset(preset));
  const uint64_t tokens = std::min<uint64_t>(asked, static_cast<uint64_t>(shape.context) - 1);
  Sampling sampling(shape, tokens);
  const SteadyClock clock;
  const uint32_t picked = UseFastestThreads([&] { sampling.Token(); }, &clock);
  const auto cpus = CpuWatch::Start(picked, &clock);

  Rounds rounds;
  const size_t sample = rounds.AddWay([&] { sampling.Sample(); });
  const size_t forward = rounds.AddWay([&] { sampling.Forward(); });
  const size_t matrices = rounds.AddWay([&] { sampling.Matrices(); });

  std::vector<size_t> others;
  const auto use = [](uint32_t threads) { at::set_num_threads(static_cast<int>(threads)); };
  const uint32_t most = std::max(1U, std::thread::hardware_concurrency());
  for (uint32_t threads = most; threads > 0; threads /= 2) {
    if (threads == picked) continue;
    others.push_back(rounds.AddWay(
        [&sampling, use, picked] {
          sampling.Sample();
          use(picked);
        },
        [use, threads] { use(threads); }));
  }

  rounds.Run(count);

  const auto add = [&](const std::string& row, const std::string& against, size_t peer,
                       std::optional<double> target) {
    const double per_second = static_cast<double>(tokens) / rounds.median(sample);

    AddComparison({.bench = "sample",
                   .row = row + ", " + preset,
                   .value = per_second,
                   .unit = "tokens/s",
                   .against = against,
                   .ratios = rounds.Faster(sample, peer),
                   .dropped = rounds.dropped(),
                   .target = target},
                  printer);
  };

  add("a token", "the forward alone", forward, kTarget);
  add("a token beside its matrices", "its matrices alone", matrices, std::nullopt);
  if (!others.empty()) {
    add("a token with " + Counted(picked, "thread") + ", as picked",
        "the best other number of threads", rounds.FastestOf(others), kThreadsTarget);
  }
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const std::string preset = printer.Word("--preset", "");
  const uint64_t asked = printer.Number("--tokens", 50), count = printer.Number("--rounds", 5);
  printer.NoMoreArguments();

  if (!preset.empty()) {
    Measure(preset, asked, count, &printer);
  } else {
    for (const char* each : {"quickstart", "gpt2-124m"}) Measure(each, asked, count, &printer);
  }
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
