// bench_chunks: what a step costs the server when the same bytes lie in ten times as many chunks.
//
// Two servers, one job each; steps alternate. Counted is the CPU time of the server's threads, requests, copies, scan and update included.
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "bench/rounds.h"
#include "bench/row.h"
#include "bench/served_job.h"
#include "bench/server_process.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "bench_chunks [--json FILE] [--chunks N] [--elements N] [--rounds N]\n"
    "CPU time of the server for a step of N chunks (default 100000) of N elements (default 4000) against a tenth of the chunks with ten\n"
    "times the elements. Needs about 40 bytes an element, 15 GiB.\n";
constexpr uint32_t kFold = 10;

// A server, its job, and what its last step cost.
class Side {
 public:
  explicit Side(const JobShape& shape)
      : server_(OrDie(ServerProcess::Start({"--pool", PoolFlagOf(shape), "--rcache-limit", std::to_string(2 * shape.rcache_bytes),
                                            "--keeper", "none", "--log-level", "warn"}))),
        job_(shape, server_.socket_dir()) {}

  double StepSeconds() {
    const double before = server_.CpuSeconds();
    job_.Step();
    return server_.CpuSeconds() - before;
  }
  void Detach() { job_.Detach(); }

 private:
  ServerProcess server_;
  ServedJob job_;
};

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t chunks = printer.Number("--chunks", 100'000), elements = printer.Number("--elements", 4000);
  const uint64_t rounds = printer.Number("--rounds", 7);
  printer.NoMoreArguments();
  if (chunks % kFold != 0 || elements % 16 != 0) Die("error[TP1001]: --chunks is a multiple of 10, --elements of 16");
  JobShape many{.name = "bench-many", .chunks = static_cast<uint32_t>(chunks), .chunk_elements = elements};
  many.rcache_bytes = RoundUp(kFold * elements * sizeof(float), kPageBytes);
  JobShape few = many;
  few.name = "bench-few";
  few.chunks /= kFold;
  few.chunk_elements *= kFold;
  Side many_side(many), few_side(few);
  std::vector<double> many_seconds, few_seconds, ratios;
  for (uint64_t round = 0; round <= rounds; ++round) {
    const double of_few = few_side.StepSeconds(), of_many = many_side.StepSeconds();
    if (round == 0) continue;
    few_seconds.push_back(of_few);
    many_seconds.push_back(of_many);
    ratios.push_back(of_few / of_many);
  }
  AddComparison({.bench = "chunks",
                 .row = "server time of a step of " + std::to_string(chunks) + " chunks",
                 .value = Median(many_seconds),
                 .unit = "s of CPU",
                 .against = "the same bytes in " + std::to_string(few.chunks) + " chunks",
                 .ratios = ratios,
                 .target = 1 / 1.1},
                &printer);
  const double per_request = (Median(many_seconds) - Median(few_seconds)) / (2.0 * static_cast<double>(chunks - few.chunks));
  printer.Add({.bench = "chunks",
               .row = "server time of one more request",
               .value = per_request * 1e9,
               .unit = "ns of CPU",
               .against = "",
               .ratio = {},
               .target = {}});
  many_side.Detach();
  few_side.Detach();
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
