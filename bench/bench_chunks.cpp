// bench_chunks: the server's cost of a step when the same bytes are in ten times as many chunks.
//
// Two servers, one job each; steps alternate. Counts the CPU time of the server's threads, with
// requests, copies, scan and update. Compared with the unavoidable part: the same kernels over as
// many pieces without a server, and the smallest possible request.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "bench/gpu/chunk_kernels.h"
#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "bench/harness/served_job.h"
#include "bench/harness/server_process.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "bench_chunks [--json FILE] [--chunks N] [--elements N] [--rounds N]\n"
    "CPU time of the server for a step of N chunks (default 100000) of N elements (default 4000) "
    "against a tenth of the chunks with ten\n"
    "times the elements. Needs about 43 bytes an element, 16 GiB.\n";
constexpr uint32_t kFold = 10;
// The kernels alone use this fraction of the chunks: the servers need the memory.
constexpr uint32_t kKernelShare = 10;
constexpr double kRequestsOfAChunk = 2;
constexpr uint64_t kSmallestElements = 16;

// A server, its job, and the cost of its last step.
class Side {
 public:
  explicit Side(const JobShape& shape)
      : server_(OrDie(ServerProcess::Start({"--pool", PoolFlagOf(shape), "--rcache-limit",
                                            std::to_string(2 * shape.rcache_bytes), "--keeper",
                                            "none", "--log-level", "warn"}))),
        job_(shape, server_.socket_dir()) {}

  double StepSeconds() {
    const double before = server_.CpuSeconds();
    const double loop_before = server_.CpuSeconds(kLoopThread);
    job_.Step();
    loop_seconds_ = server_.CpuSeconds(kLoopThread) - loop_before;
    return server_.CpuSeconds() - before;
  }
  // CPU seconds of only the serve loop in the last step.
  double loop_seconds() const { return loop_seconds_; }
  // CPU time for the smallest request to each chunk.
  double SmallestSeconds() {
    const double before = server_.CpuSeconds();
    job_.FetchFirst(kSmallestElements);
    return server_.CpuSeconds() - before;
  }
  void Detach() { job_.Detach(); }

 private:
  ServerProcess server_;
  ServedJob job_;
  double loop_seconds_ = 0;
};

struct Times {
  std::vector<double> many, few, loop, smallest;  // the servers' CPU seconds, by round
  std::vector<double> many_kernels, few_kernels;  // of the kernels alone, for all chunks
};

std::vector<double> Ratios(const std::vector<double>& over, const std::vector<double>& under) {
  std::vector<double> ratios;
  for (size_t i = 0; i < over.size(); ++i) ratios.push_back(over[i] / under[i]);
  return ratios;
}

// Adds the rows of a benchmark with `chunks` chunks and a tenth of them.
void AddRows(const Times& times, uint64_t chunks, RowPrinter* printer) {
  const uint64_t few = chunks / kFold;
  const std::string many_text = std::to_string(chunks),
                    few_text = "the same bytes in " + std::to_string(few) + " chunks";

  const auto add = [&](const std::string& row, double value, const std::string& against,
                       const std::vector<double>& ratios, const std::optional<double>& target) {
    AddComparison({.bench = "chunks",
                   .row = row,
                   .value = value,
                   .unit = "s of CPU",
                   .against = against,
                   .ratios = ratios,
                   .target = target},
                  printer);
  };

  add("server time of a step of " + many_text + " chunks", Median(times.many), few_text,
      Ratios(times.few, times.many), 1 / 1.1);
  // The least cost of the step: the kernels' time for as many pieces, plus two of the smallest
  // requests per chunk. And the cost of the few chunks, plus the same difference.
  std::vector<double> least, bound;
  for (size_t i = 0; i < times.many.size(); ++i) {
    const double request = kRequestsOfAChunk * times.smallest[i];  // for all chunks
    least.push_back(times.many_kernels[i] + request);
    bound.push_back(times.few[i] + times.many_kernels[i] - times.few_kernels[i] +
                    request * static_cast<double>(chunks - few) / static_cast<double>(chunks));
  }

  add("server time of a step of " + many_text + " chunks", Median(times.many),
      "the least: its kernels alone, and the smallest request twice a chunk",
      Ratios(least, times.many), std::nullopt);
  add("a step of " + std::to_string(few) +
          " chunks, and what more pieces and smallest requests cost alone",
      Median(bound), few_text, Ratios(times.few, bound), std::nullopt);
  add("kernels alone, without a server: copies, scan and update of " + many_text + " chunks",
      Median(times.many_kernels), few_text, Ratios(times.few_kernels, times.many_kernels),
      std::nullopt);

  const auto single = [printer](const std::string& row, double value, const char* unit) {
    printer->Add({.bench = "chunks",
                  .row = row,
                  .value = value,
                  .unit = unit,
                  .against = "",
                  .ratio = {},
                  .target = {}});
  };

  single("serve loop's part of a step of " + many_text + " chunks, its waiting included",
         Median(times.loop), "s of CPU");
  single("server time of the smallest request, a fetch of 64 bytes",
         Median(times.smallest) / static_cast<double>(chunks) * 1e9, "ns of CPU");

  const double per_request = (Median(times.many) - Median(times.few)) /
                             (kRequestsOfAChunk * static_cast<double>(chunks - few));
  single("server time of one more request", per_request * 1e9, "ns of CPU");
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t chunks = printer.Number("--chunks", 100'000),
                 elements = printer.Number("--elements", 4000);
  const uint64_t rounds = printer.Number("--rounds", 7);
  printer.NoMoreArguments();

  if (chunks % (kFold * kKernelShare) != 0 || elements % 16 != 0)
    Die("error[TP1001]: --chunks is a multiple of 100, --elements of 16");

  JobShape many{
      .name = "bench-many", .chunks = static_cast<uint32_t>(chunks), .chunk_elements = elements};
  many.rcache_bytes = RoundUp(kFold * elements * sizeof(float), kPageBytes);
  JobShape few = many;
  few.name = "bench-few";
  few.chunks /= kFold;
  few.chunk_elements *= kFold;
  Side many_side(many), few_side(few);

  Crew crew;
  ChunkKernels many_kernels(chunks / kKernelShare, elements, &crew),
      few_kernels(chunks / kFold / kKernelShare, kFold * elements, &crew);

  Times times;
  for (uint64_t round = 0; round <= rounds; ++round) {
    const double of_few = few_side.StepSeconds(), of_many = many_side.StepSeconds(),
                 smallest = many_side.SmallestSeconds();
    const double few_alone = few_kernels.StepSeconds(), many_alone = many_kernels.StepSeconds();
    if (round == 0) continue;

    times.few.push_back(of_few);
    times.many.push_back(of_many);
    times.loop.push_back(many_side.loop_seconds());
    times.smallest.push_back(smallest);
    times.few_kernels.push_back(few_alone * kKernelShare);
    times.many_kernels.push_back(many_alone * kKernelShare);
  }

  AddRows(times, chunks, &printer);
  many_side.Detach();
  few_side.Detach();
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
