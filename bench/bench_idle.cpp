// bench_idle: what an idle server takes from the machine, and what the first request after a pause pays for its sleep.
//
// The peer is a bare futex: a thread that sleeps on a word, is woken, and answers by another word. Both sides of either way are left to the
// system's scheduler; both clients spin for the answer, so that each round trip has one wake-up.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "bench/row.h"
#include "bench/served_job.h"
#include "bench/server_process.h"
#include "shm/futex.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "bench_idle [--json FILE] [--seconds N] [--requests N]\n"
    "CPU share of a server with one attached rank that asks for nothing, over N seconds (default 5), and the first request after a pause\n"
    "against a futex.\n";
constexpr double kShareMax = 0.005;
constexpr int64_t kPauseNs = 5 * kNsPerMs;  // the server sleeps long before it ends

// A thread asleep on a word, which answers each change of it.
class FutexEcho {
 public:
  FutexEcho() : thread_([this] { Echo(); }) {}
  ~FutexEcho() {
    stopping_.store(true);
    Ring();
    thread_.join();
  }
  FutexEcho(const FutexEcho&) = delete;
  FutexEcho& operator=(const FutexEcho&) = delete;

  void RoundTrip() {
    Ring();
    while (answer_.load(std::memory_order_acquire) != rung_) __builtin_ia32_pause();
  }

 private:
  void Ring() {
    word_.store(++rung_);
    shm::WakeWord(&word_);
  }
  void Echo() {
    uint32_t seen = 0;
    while (!stopping_.load()) {
      shm::WaitOnWord(&word_, seen, kNsPerSecond);
      seen = word_.load(std::memory_order_acquire);
      answer_.store(seen, std::memory_order_release);
    }
  }

  uint32_t rung_ = 0;
  alignas(64) std::atomic<uint32_t> word_{0};
  alignas(64) std::atomic<uint32_t> answer_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// The same with an eventfd and epoll, by which one thread can be woken for many reasons, as the serve loop.
class EventEcho {
 public:
  EventEcho() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    epoll_event all{};
    all.events = EPOLLIN | EPOLLET;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &all) != 0) Die("no epoll");
    thread_ = std::thread([this] { Echo(); });
  }
  ~EventEcho() {
    stopping_.store(true);
    Ring();
    thread_.join();
  }
  EventEcho(const EventEcho&) = delete;
  EventEcho& operator=(const EventEcho&) = delete;

  void RoundTrip() {
    Ring();
    while (answer_.load(std::memory_order_acquire) != rung_) __builtin_ia32_pause();
  }

 private:
  void Ring() {
    word_.store(++rung_);
    const uint64_t one = 1;
    if (write(event_.get(), &one, sizeof one) != sizeof one) Die("no eventfd");
  }
  void Echo() {
    while (!stopping_.load()) {
      epoll_event ready{};
      epoll_wait(epoll_.get(), &ready, 1, 1000);
      answer_.store(word_.load(std::memory_order_acquire), std::memory_order_release);
    }
  }

  const UniqueFd event_, epoll_;
  uint32_t rung_ = 0;
  alignas(64) std::atomic<uint32_t> word_{0};
  alignas(64) std::atomic<uint32_t> answer_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

double IdleShare(const ServerProcess& server, double seconds) {
  SteadyClock clock;
  const double before = server.CpuSeconds();
  const int64_t start = clock.NowNs();
  clock.SleepNs(static_cast<int64_t>(seconds * kNsPerSecond));
  return (server.CpuSeconds() - before) / (static_cast<double>(clock.NowNs() - start) / kNsPerSecond);
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const auto seconds = static_cast<double>(printer.Number("--seconds", 5));
  const uint64_t requests = printer.Number("--requests", 400);
  printer.NoMoreArguments();
  const JobShape shape{.name = "bench-idle"};
  const ServerProcess server =
      OrDie(ServerProcess::Start({"--pool", PoolFlagOf(shape), "--rcache-limit", "16MiB", "--keeper", "none", "--log-level", "warn"}));
  ServedJob job(shape, server.socket_dir());
  SteadyClock clock;
  clock.SleepNs(kNsPerSecond / 2);
  const double share = IdleShare(server, seconds);
  printer.Add({.bench = "idle",
               .row = "CPU share of an idle server",
               .value = share,
               .unit = "of a core",
               .against = "0.5 % of a core",
               .ratio = kShareMax / std::max(share, 1e-6),
               .target = 1.0});
  std::vector<double> first, futex, event;
  FutexEcho echo;
  EventEcho event_echo;
  const auto time = [&](const auto& round_trip) {
    clock.SleepNs(kPauseNs);
    const int64_t start = clock.NowNs();
    round_trip();
    return static_cast<double>(clock.NowNs() - start) / 1e3;
  };
  for (uint64_t i = 0; i < requests; ++i) {
    first.push_back(time([&] {
      const client::Range range = {.chunk = 0, .element_begin = 0, .element_count = 16, .rcache_offset = 0};
      OrDie(job.rank(0).Wait(OrDie(job.rank(0).StartFetch(range, 0))).status());
    }));
    futex.push_back(time([&] { echo.RoundTrip(); }));
    event.push_back(time([&] { event_echo.RoundTrip(); }));
  }
  printer.Add({.bench = "idle",
               .row = "first request after a pause, p50",
               .value = Median(first),
               .unit = "us",
               .against = "a bare futex wake, p50",
               .ratio = Median(futex) / Median(first),
               .target = 1 / 1.3});
  printer.Add({.bench = "idle",
               .row = "first request after a pause, p99",
               .value = Percentile(first, 0.99),
               .unit = "us",
               .against = "a bare futex wake, p99",
               .ratio = Percentile(futex, 0.99) / Percentile(first, 0.99),
               .target = {}});
  printer.Add({.bench = "idle",
               .row = "a bare wake by eventfd and epoll, p50",
               .value = Median(event),
               .unit = "us",
               .against = "a bare futex wake, p50",
               .ratio = Median(futex) / Median(event),
               .target = {}});
  job.Detach();
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
