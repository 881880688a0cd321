// bench_copy: the copy used for chunks, compared with glibc's memcpy and with the best plain copy
// kernel that we know.
//
// Buffers of 1 GiB in each direction, so that nothing comes from a cache; successive copies move
// through them. With one thread, and with one on each CPU: the daemon's copy with its helpers,
// chunk by chunk; the baselines with one chunk per thread.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/system/system_memory.h"
#include "bench/harness/crew.h"
#include "bench/loops/memory_loops.h"
#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "device/host/copy_bytes.h"
#include "device/host/copy_team.h"
#include "device/host/copy_tuning.h"
#include "memserver/residency/pool/host_pool.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "bench_copy [--json FILE] [--mebibytes N] [--rounds N]\n"
    "Copies of 4, 16 and 64 MiB between two buffers of N MiB (default 1024) against memcpy and "
    "against streaming copies.\n";

constexpr int64_t kSpinNs = 100'000, kTuneNs = 100 * kNsPerMs;

using CopyFunction = void (*)(std::byte* to, const std::byte* from, uint64_t bytes);

void LibraryCopy(std::byte* to, const std::byte* from, uint64_t bytes) {
  std::memcpy(to, from, bytes);
}
void Streaming(std::byte* to, const std::byte* from, uint64_t bytes) {
  SelectLoops().copy_streaming(to, from, bytes, 0);
}
void StreamingAhead(std::byte* to, const std::byte* from, uint64_t bytes) {
  SelectLoops().copy_streaming(to, from, bytes, 1024);
}
void StreamingFarAhead(std::byte* to, const std::byte* from, uint64_t bytes) {
  SelectLoops().copy_streaming(to, from, bytes, 4096);
}
void RepeatedMove(std::byte* to, const std::byte* from, uint64_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
}

constexpr CopyFunction kKernels[] = {LibraryCopy, Streaming, StreamingAhead, StreamingFarAhead,
                                     RepeatedMove};

struct Setup {
  std::byte *to, *from;
  uint64_t bytes;
  uint64_t rounds;
  device::CopyTeam* team;
};

// Copies `piece` bytes at a time, with all threads of the crew.
void Measure(const Setup& setup, uint64_t piece, Crew* crew, RowPrinter* printer) {
  Rounds rounds;
  // Like the daemon: one thread, or one thread with its helpers.
  rounds.AddWay([&setup, piece, crew] {
    for (uint64_t at = 0; at + piece <= setup.bytes; at += piece) {
      crew->size() == 1 ? device::CopyBytes(setup.to + at, setup.from + at, piece, piece)
                        : setup.team->Copy(setup.to + at, setup.from + at, piece, piece);
    }
  });

  std::vector<size_t> plain;
  for (const CopyFunction copy : kKernels) {
    plain.push_back(rounds.AddWay([&setup, piece, crew, copy] {
      crew->Run([&](uint32_t i) {
        const auto [begin, end] = crew->Share(i, setup.bytes, piece);
        for (uint64_t at = begin; at + piece <= end; at += piece)
          copy(setup.to + at, setup.from + at, piece);
      });
    }));
  }

  rounds.Run(setup.rounds);
  const std::string threads = crew->size() == 1 ? ", one thread" : ", a thread on each CPU";

  Comparison row;
  row.bench = "copy";
  row.row = "chunks of " + std::to_string(piece / kMiB) + " MiB" + threads;
  row.value = static_cast<double>(setup.bytes) / rounds.median(0) / 1e9;
  row.unit = "GB/s copied";
  row.against = "glibc memcpy";
  row.ratios = rounds.Faster(0, 1);
  row.dropped = rounds.dropped();
  // If memcpy itself uses non-temporal stores, nothing is 1.6 times as fast: it then only counts
  // among the best kernels.
  const bool memcpy_streams = Median(rounds.Faster(1, 2)) > 0.8;
  if (!memcpy_streams) row.target = 1.6;
  AddComparison(row, printer);

  const size_t best = rounds.FastestOf(plain);
  row.against = "the best plain copy kernel";
  row.ratios = rounds.Faster(0, best);
  row.target = 0.95;
  AddComparison(row, printer);
  // The best achievable against memcpy.
  row.row += ": the best plain copy kernel";
  row.value = static_cast<double>(setup.bytes) / rounds.median(best) / 1e9;
  row.against = "glibc memcpy";
  row.ratios = rounds.Faster(best, plain.front());
  row.target.reset();
  AddComparison(row, printer);
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t bytes = printer.Number("--mebibytes", 1024) * kMiB;
  const uint64_t rounds = printer.Number("--rounds", 7);
  printer.NoMoreArguments();

  memserver::HostPoolOptions options;
  options.bytes = 2 * bytes;
  const auto pool = OrDie(memserver::HostPool::Reserve(options, ReadMemoryBudget()));
  std::vector<memserver::Extent> extents;
  if (!pool->Take(std::array{bytes, bytes}, &extents))
    Die("the pool does not hold what it was made for");

  Crew one(1), all;
  const SteadyClock clock;
  device::CopyTeam team(&clock, all.size() - 1, kSpinNs);
  // The tuning that the daemon does at its start.
  device::TuneCopies({extents[0].data, bytes}, nullptr, kTuneNs, clock);
  const Setup setup = {extents[0].data, extents[1].data, bytes, rounds, &team};
  for (const uint64_t piece : {4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    if (piece > bytes) continue;
    Measure(setup, piece, &one, &printer);
    if (all.size() > 1 && piece * all.size() <= bytes) Measure(setup, piece, &all, &printer);
  }
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
