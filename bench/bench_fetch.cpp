// bench_fetch: bytes per second of chunk fetches through a real memserver, compared with plain
// memcpy of the same bytes.
//
// Fetches and copies alternate within one run, so that disturbances affect both; the ratio is the
// median over pairs. Sources are four chunks of 64 MiB each, more than any cache, on either side;
// --chunk-mebibytes makes smaller ones, which prove nothing.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/harness/row.h"
#include "bench/harness/served_job.h"
#include "bench/harness/server_process.h"
#include "client/mem_client.h"

namespace tidepool::bench {
namespace {

using client::MemClient;
using client::Range;

constexpr uint64_t kChunkMebibytes = 64;
constexpr uint32_t kChunks = 4;
constexpr uint32_t kBlocks = 2;
constexpr uint64_t kWarmUps = 2;  // pairs

constexpr const char* kHelp =
    "bench_fetch [--json FILE] [--chunk-mebibytes N] [--pairs N] [FLAGS OF memserver...]\n"
    "Bytes a second of fetches of a chunk (default 64 MiB), of an eighth and of a 64th of it "
    "through memserver, beside plain memcpy of\n"
    "the same bytes: medians of N pairs (default 41), 5 N and 20 N.\n"
    "Needs about 1.8 GiB of memory. Example: bench_fetch --copy-threads 1\n";

JobShape ShapeOf(uint64_t chunk_bytes) {
  return {.name = "bench-fetch",
          .chunks = kChunks,
          .chunk_elements = chunk_bytes / sizeof(float),
          .rcache_bytes = kBlocks * chunk_bytes};
}

// "64 MiB", "128 KiB": whole numbers, as used in the rows' names.
std::string NameOfSize(uint64_t bytes) {
  return bytes % kMiB == 0 ? std::to_string(bytes / kMiB) + " MiB"
                           : std::to_string(bytes / kKiB) + " KiB";
}

// One measured size: number of fetches, bytes, and the target.
struct Size {
  uint64_t bytes;
  uint64_t pairs;
  std::optional<double> target;
};

class FetchBench {
 public:
  FetchBench(const std::string& socket_dir, uint64_t chunk_bytes)
      : chunk_bytes_(chunk_bytes),
        client_(OrDie(MemClient::Connect(
            {.clock = &clock_, .socket_dir = socket_dir, .connect_timeout_ns = 120 * kNsPerSecond},
            SpecOf(ShapeOf(chunk_bytes)), 0))) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      local_.emplace_back(chunk_bytes / sizeof(float), static_cast<float>(chunk + 1));
      PutWeights(chunk);
    }
  }

  Row Measure(const Size& size) {
    std::vector<double> fetch_rates, ratios;
    for (uint64_t pair = 0; pair < size.pairs + kWarmUps; ++pair) {
      const uint32_t chunk = next_++ % kChunks;
      const uint64_t begin =
          static_cast<uint64_t>(next_) * size.bytes % chunk_bytes_ / size.bytes * size.bytes;
      const double fetch = Fetch(chunk, begin, size.bytes);
      const double copy = Copy((chunk + 2) % kChunks, begin, size.bytes);
      if (pair < kWarmUps) continue;
      fetch_rates.push_back(static_cast<double>(size.bytes) / fetch);
      ratios.push_back(copy / fetch);
    }

    return {.bench = "fetch",
            .row = NameOfSize(size.bytes),
            .value = Median(fetch_rates) / 1e9,
            .unit = "GB/s",
            .against = "memcpy of the same bytes",
            .ratio = Median(ratios),
            .target = size.target};
  }

  void Detach() {
    const Status status = client_->Detach();
    if (!status.ok()) Die(status.Format());
  }

 private:
  std::byte* Block(uint32_t block) const {
    return client_->attachment().rcache + block * chunk_bytes_;
  }

  client::Outcome Await(Result<client::Ticket> ticket) {
    return OrDie(client_->Wait(OrDie(std::move(ticket))));
  }

  void PutWeights(uint32_t chunk) {
    std::memcpy(Block(0), local_[chunk].data(), chunk_bytes_);
    Await(client_->StartPutWeights({.chunk = chunk,
                                    .element_begin = 0,
                                    .element_count = local_[chunk].size(),
                                    .rcache_offset = 0}));
  }

  // Seconds of one fetch into block 0, from request to answer.
  double Fetch(uint32_t chunk, uint64_t begin, uint64_t bytes) {
    std::memset(Block(0), 0, sizeof(float));
    const Range range = {.chunk = chunk,
                         .element_begin = begin / sizeof(float),
                         .element_count = bytes / sizeof(float),
                         .rcache_offset = 0};

    const int64_t start = clock_.NowNs();
    const client::Outcome outcome = Await(client_->StartFetch(range, 0));
    const int64_t end = clock_.NowNs();

    const bool right =
        outcome.bytes == bytes &&
        std::memcmp(Block(0), local_[chunk].data() + range.element_begin, bytes) == 0;
    if (!right) Die("a fetch delivered other bytes than were put");
    return static_cast<double>(end - start) / kNsPerSecond;
  }

  // Seconds of one plain copy of the same size into block 1.
  double Copy(uint32_t chunk, uint64_t begin, uint64_t bytes) {
    const auto* source = reinterpret_cast<const std::byte*>(local_[chunk].data()) + begin;
    const int64_t start = clock_.NowNs();
    std::memcpy(Block(1), source, bytes);
    const int64_t end = clock_.NowNs();
    if (std::memcmp(Block(1), source, bytes) != 0) Die("memcpy failed");
    return static_cast<double>(end - start) / kNsPerSecond;
  }

  const uint64_t chunk_bytes_;
  SteadyClock clock_;
  const std::unique_ptr<MemClient> client_;
  std::vector<std::vector<float>> local_;  // the weights put, and the source of plain copies
  uint32_t next_ = 0;
};

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const uint64_t mebibytes = printer.Number("--chunk-mebibytes", kChunkMebibytes),
                 pairs = printer.Number("--pairs", 41);
  const uint64_t chunk = mebibytes * kMiB;
  // Weights, moments and gradients of the job, and some more.
  std::vector<std::string> flags = {"--pool",         std::to_string(18 * mebibytes) + "MiB",
                                    "--rcache-limit", std::to_string(3 * mebibytes) + "MiB",
                                    "--log-level",    "warn"};
  flags.insert(flags.end(), printer.arguments().begin(), printer.arguments().end());
  const ServerProcess server = OrDie(ServerProcess::Start(flags));
  FetchBench bench(server.socket_dir(), chunk);
  printer.Add(bench.Measure({.bytes = chunk, .pairs = pairs, .target = 0.9}));
  printer.Add(bench.Measure({.bytes = chunk / 8, .pairs = 5 * pairs, .target = std::nullopt}));
  printer.Add(bench.Measure({.bytes = chunk / 64, .pairs = 20 * pairs, .target = std::nullopt}));
  bench.Detach();
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
