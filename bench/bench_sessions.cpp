// bench_sessions: requests per second and tail latency of one serve loop with 64 active ranks,
// compared with one rank.
//
// Two servers, one job each; bursts alternate. Every rank keeps the same number of small fetches in
// flight, all driven by one thread.
#include <deque>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "bench/harness/served_job.h"
#include "bench/harness/server_process.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "bench_sessions [--json FILE] [--milliseconds N] [--rounds N]\n"
    "Small fetches a second of 64 ranks through one serve loop against one rank; bursts of N ms "
    "(default 500).\n";
constexpr uint32_t kRanks = 64;
constexpr uint32_t kInFlight = 8;  // per rank

struct Asked {
  client::Ticket ticket;
  int64_t at_ns;
};

class Side {
 public:
  explicit Side(uint32_t world)
      : server_(OrDie(ServerProcess::Start({"--pool", PoolFlagOf(Shape(world)), "--rcache-limit",
                                            "64MiB", "--keeper", "none", "--log-level", "warn"}))),
        job_(Shape(world), server_.socket_dir()),
        asked_(world) {}

  // Fetches for this time, and until the last answer; returns requests per second, and appends each
  // request's time to `micros`.
  double Burst(int64_t burst_ns, std::vector<double>* micros) {
    const int64_t start = clock_.NowNs();
    uint64_t answered = 0;
    while (clock_.NowNs() - start < burst_ns || answered == 0) {
      for (uint32_t rank = 0; rank < job_.world(); ++rank) answered += Turn(rank, micros);
    }
    const double seconds = static_cast<double>(clock_.NowNs() - start) / kNsPerSecond;
    for (uint32_t rank = 0; rank < job_.world(); ++rank) {
      while (!asked_[rank].empty()) Take(rank, micros);
    }
    return static_cast<double>(answered) / seconds;
  }
  void Detach() { job_.Detach(); }

 private:
  static JobShape Shape(uint32_t world) {
    return {.name = "bench-sessions",
            .chunks = 1,
            .chunk_elements = 1024,
            .world = world,
            .rcache_bytes = 64 * 1024};
  }

  uint64_t Turn(uint32_t rank, std::vector<double>* micros) {
    uint64_t answered = 0;
    std::deque<Asked>& asked = asked_[rank];
    for (; !asked.empty() && job_.rank(rank).Test(asked.front().ticket); ++answered)
      Take(rank, micros);
    while (asked.size() < kInFlight) {
      const client::Range range = {
          .chunk = 0, .element_begin = 0, .element_count = 16, .rcache_offset = 64 * asked.size()};
      asked.push_back({OrDie(job_.rank(rank).StartFetch(range, job_.version())), clock_.NowNs()});
    }
    return answered;
  }

  void Take(uint32_t rank, std::vector<double>* micros) {
    const Asked asked = asked_[rank].front();
    asked_[rank].pop_front();
    OrDie(job_.rank(rank).Wait(asked.ticket).status());
    micros->push_back(static_cast<double>(clock_.NowNs() - asked.at_ns) / 1e3);
  }

  ServerProcess server_;
  ServedJob job_;
  SteadyClock clock_;
  std::vector<std::deque<Asked>> asked_;
};

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const auto burst_ns = static_cast<int64_t>(printer.Number("--milliseconds", 500)) * kNsPerMs;
  const uint64_t rounds = printer.Number("--rounds", 7);
  printer.NoMoreArguments();

  Side one(1), many(kRanks);
  std::vector<double> many_rates, one_rates, ratios, one_micros, many_micros;
  for (uint64_t round = 0; round <= rounds; ++round) {
    if (round == 1) one_micros.clear(), many_micros.clear();
    const double of_one = one.Burst(burst_ns, &one_micros),
                 of_many = many.Burst(burst_ns, &many_micros);
    if (round == 0) continue;
    one_rates.push_back(of_one);
    many_rates.push_back(of_many);
    ratios.push_back(of_many / of_one);
  }

  AddComparison({.bench = "sessions",
                 .row = "requests of 64 ranks",
                 .value = Median(many_rates) / 1e6,
                 .unit = "M requests/s",
                 .against = "of one rank",
                 .ratios = ratios,
                 .target = 1.0},
                &printer);

  const auto add = [&](const char* row, double value, const char* unit) {
    printer.Add({.bench = "sessions",
                 .row = row,
                 .value = value,
                 .unit = unit,
                 .against = "",
                 .ratio = {},
                 .target = {}});
  };

  add("requests of one rank", Median(one_rates) / 1e6, "M requests/s");
  add("p99 of a request, 64 ranks with 8 in flight each", Percentile(many_micros, 0.99), "us");
  add("p99 of a request, one rank with 8 in flight", Percentile(one_micros, 0.99), "us");
  one.Detach();
  many.Detach();
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
