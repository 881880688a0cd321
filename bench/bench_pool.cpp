// bench_pool: start time of a host pool, which touches every page before the first job, compared
// with one thread that touches as many pages of the same kind; and the page sizes that the system
// provided.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "base/system/system_memory.h"
#include "base/unique_fd.h"
#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "memserver/residency/pool/host_pool.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "bench_pool [--json FILE] [--mebibytes N] [--rounds N]\n"
    "Start of a host pool of N MiB (default 2048) against one thread touching as much.\n";

// Maps a memfd, like the pool, and touches its pages from one thread.
void TouchAlone(uint64_t bytes) {
  const UniqueFd file(memfd_create("tidepool-bench", MFD_CLOEXEC));
  if (!file.valid() || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) Die("no memory file");
  void* const mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) Die("no mapping");
  madvise(mapping, bytes, MADV_HUGEPAGE);
  for (uint64_t at = 0; at < bytes; at += kPageBytes) static_cast<volatile char*>(mapping)[at] = 1;
  munmap(mapping, bytes);
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t bytes = printer.Number("--mebibytes", 2048) * kMiB;
  const uint64_t rounds_count = printer.Number("--rounds", 5);
  printer.NoMoreArguments();

  double huge_share = 0;
  std::unique_ptr<memserver::HostPool> pool;
  Rounds rounds;
  const size_t product = rounds.AddWay(
      [&] {
        memserver::HostPoolOptions options;
        options.bytes = bytes;
        pool = OrDie(memserver::HostPool::Reserve(options, ReadMemoryBudget()));
        huge_share = static_cast<double>(pool->facts().huge_page_bytes) /
                     static_cast<double>(pool->total_bytes());
      },
      [&] { pool.reset(); });

  const size_t alone = rounds.AddWay([&] { TouchAlone(bytes); }, [&] { pool.reset(); });
  rounds.Run(rounds_count);

  AddComparison(
      {.bench = "pool",
       .row = "start of a pool, every page touched",
       .value = rounds.median(product) * static_cast<double>(kGiB) / static_cast<double>(bytes),
       .unit = "s/GiB",
       .against = "one thread touching as much",
       .ratios = rounds.Faster(product, alone),
       .dropped = rounds.dropped(),
       .target = {}},
      &printer);

  printer.Add({.bench = "pool",
               .row = "pages of 2 MiB really got",
               .value = huge_share,
               .unit = "share",
               .against = "",
               .ratio = {},
               .target = {}});
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
