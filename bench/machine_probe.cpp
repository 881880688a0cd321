// machine_probe: what this machine can do right now, measured on the spot, as one JSON object:
// instruction set, memory bandwidth in the pages of a host pool, and the round trip between two
// cores. scripts/bench stores it with every result.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/text/json_writer.h"
#include "base/system/system_memory.h"
#include "bench/harness/crew.h"
#include "bench/loops/memory_loops.h"
#include "bench/harness/ping_pong.h"
#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "memserver/residency/pool/host_pool.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "machine_probe [--mebibytes N] [--rounds N]\n"
    "Bandwidth (all CPUs; bytes that the program reads and writes) and round trip between two "
    "cores, as one JSON object.\n";
constexpr int kRoundTrips = 20'000;
constexpr uint64_t kAhead = 1024;
constexpr uint64_t kAlign = 4096;

struct Way {
  const char* key;
  double bytes;  // counted
  size_t way;
};

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  memserver::HostPoolOptions options;
  options.bytes = printer.Number("--mebibytes", 2048) * kMiB;
  const uint64_t rounds_count = printer.Number("--rounds", 5);
  printer.NoMoreArguments();

  const auto pool = OrDie(memserver::HostPool::Reserve(options, ReadMemoryBudget()));
  std::vector<memserver::Extent> extents;
  const uint64_t bytes = options.bytes, half = bytes / 2 / kAlign * kAlign;
  if (!pool->Take(std::array{bytes}, &extents)) Die("the pool does not hold what it was made for");
  std::byte* const data = extents[0].data;

  const MemoryLoops& loops = SelectLoops();
  Crew crew;
  const auto each = [&](uint64_t all, const auto& task) {
    crew.Run([&](uint32_t i) {
      const auto [begin, end] = crew.Share(i, all, kAlign);
      task(begin, end - begin);
    });
  };

  std::atomic<uint64_t> sum{0};
  Rounds rounds;
  const auto whole = static_cast<double>(bytes), twice = 2 * static_cast<double>(half);

  const Way ways[] = {
      {"read_gb_s", whole, rounds.AddWay([&] {
         each(bytes, [&](uint64_t at, uint64_t n) { sum += loops.read(data + at, n); });
       })},
      {"modify_in_place_gb_s", 2 * whole, rounds.AddWay([&] {
         each(bytes, [&](uint64_t at, uint64_t n) { loops.modify(data + at, n, 0); });
       })},

      {"copy_streaming_gb_s", twice, rounds.AddWay([&] {
         each(half, [&](uint64_t at, uint64_t n) {
           loops.copy_streaming(data + at, data + half + at, n, kAhead);
         });
       })},
      {"copy_memcpy_gb_s", twice, rounds.AddWay([&] {
         each(half, [&](uint64_t at, uint64_t n) { std::memcpy(data + at, data + half + at, n); });
       })}};

  rounds.Run(rounds_count);
  JsonWriter json;
  json.BeginObject().Field("isa", optim::NameOf(optim::BestIsa())).Field("threads", crew.size());
  for (const Way& way : ways) json.Field(way.key, way.bytes / rounds.median(way.way) / 1e9);
  json.Field("spin_round_trip_ns", Median(TimePingPong(kRoundTrips, FindTwoCores())) * 1e3);
  json.Field("pool_huge_page_share", static_cast<double>(pool->facts().huge_page_bytes) /
                                         static_cast<double>(pool->total_bytes()));
  std::puts(json.EndObject().Take().c_str());
  return sum.load() == UINT64_MAX ? 1 : 0;  // used, so that the reads are not optimised away
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
