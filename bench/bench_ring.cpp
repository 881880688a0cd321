// bench_ring: the round trip of one request through the shared-memory rings, spinning and sleeping,
// compared with a Unix socket and with the minimum for two cores (one word back and forth).
//
// Each way has an echo thread on the other side; the rings, the bell and the futex are the
// product's. Spinning ways run on two fixed CPUs; the scheduler places the others.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "bench/harness/crew.h"
#include "bench/harness/ping_pong.h"
#include "bench/ring_throughput.h"
#include "bench/harness/rounds.h"
#include "bench/harness/row.h"
#include "shm/messages.h"
#include "shm/port.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "bench_ring [--json FILE] [--round-trips N] [--messages N]\n"
    "Round trip of one 64-byte request: shared-memory rings (spinning, sleeping), a Unix socket, "
    "and one shared word; and messages a\n"
    "second through the ring, Boost's queue and a plain index ring.\n";

// The rings of one session, with both ends in this process.
struct Session {
  std::unique_ptr<shm::ServerPort> server;
  std::unique_ptr<shm::ClientPort> client;
};

Session OpenSession() {
  auto server = shm::ServerPort::Create(1);
  if (!server.ok()) Die(server.status().Format());
  const auto copy = [](int fd) { return UniqueFd(dup(fd)); };
  auto client =
      shm::ClientPort::Map(copy((*server)->submission_fd()), copy((*server)->completion_fd()),
                           copy((*server)->doorbell_fd()));
  if (!client.ok()) Die(client.status().Format());
  return {std::move(*server), std::move(*client)};
}

// Answers requests until one with op 0. `sleeps`: waits on the doorbell, else spins.
void EchoRing(shm::ServerPort* server, bool sleeps) {
  shm::Request request{};
  while (true) {
    shm::PopResult popped = server->Pop(&request);

    if (popped == shm::PopResult::kEmpty && sleeps) {
      server->SetSleeping(true);
      popped = server->Pop(&request);
      if (popped == shm::PopResult::kEmpty) {
        pollfd bell{server->doorbell_fd(), POLLIN, 0};
        poll(&bell, 1, 100);
        uint64_t rings = 0;
        [[maybe_unused]] const auto n = read(bell.fd, &rings, sizeof rings);
      }
      server->SetSleeping(false);
    }

    if (popped == shm::PopResult::kViolation) Die("the ring broke");
    if (popped != shm::PopResult::kItem) {
      __builtin_ia32_pause();
      continue;
    }
    if (request.op == 0) return;

    shm::Completion completion{};
    completion.counter = request.counter;
    if (!server->Push(completion)) Die("the completion ring is full");
    server->Wake();
  }
}

std::vector<double> TimeRing(int count, bool sleeps, const TwoCores& cores) {
  Session session = OpenSession();
  std::thread echo([&] {
    if (!sleeps) PinTo({cores.other});
    EchoRing(session.server.get(), sleeps);
  });

  const std::vector<int> before = AllowedCpus();
  if (!sleeps) PinTo({cores.mine});
  uint64_t counter = 0;
  const int64_t spin_ns = sleeps ? 0 : kNsPerSecond;

  const auto send = [&](uint32_t op) {
    shm::Request request{};
    request.counter = ++counter;
    request.op = op;
    if (!session.client->Push(request)) Die("the submission ring is full");
  };

  SteadyClock clock;
  std::vector<double> micros = TimeRoundTrips(count, [&] {
    send(1);
    shm::Completion completion{};
    while (!session.client->Pop(&completion))
      session.client->WaitForCompletion(&clock, kNsPerSecond, spin_ns);
    if (completion.counter != counter) Die("an answer to another request");
  });

  send(0);
  echo.join();
  PinTo(before);
  return micros;
}

std::vector<double> TimeSocket(int count) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    Die("no socket pair");
  const UniqueFd mine(ends[0]);
  UniqueFd other(ends[1]);

  std::thread echo([&] {
    std::array<char, sizeof(shm::Request)> message{};
    while (read(other.get(), message.data(), message.size()) > 0) {
      if (write(other.get(), message.data(), message.size()) < 0) return;
    }
  });

  std::array<char, sizeof(shm::Request)> message{};
  std::vector<double> micros = TimeRoundTrips(count, [&] {
    const bool sent = write(mine.get(), message.data(), message.size()) > 0;
    if (!sent || read(mine.get(), message.data(), message.size()) <= 0) Die("the socket broke");
  });

  shutdown(mine.get(), SHUT_RDWR);
  echo.join();
  return micros;
}

// Adds p50 and p99.9 of one way; the socket's rows have no comparison.
void AddRows(const std::string& name, const std::vector<double>& micros,
             const std::vector<double>& socket, RowPrinter* printer) {
  const bool is_socket = &micros == &socket;
  for (const auto& [label, share] : {std::pair{" p50", 0.5}, std::pair{" p99.9", 0.999}}) {
    const double value = Percentile(micros, share);
    Row row{.bench = "ring",
            .row = name + label,
            .value = value,
            .unit = "us",
            .against = "",
            .ratio = {},
            .target = {}};

    if (!is_socket) {
      row.against = std::string("Unix socket") + label;
      row.ratio = Percentile(socket, share) / value;
    }
    printer->Add(row);
  }
}

// The ring compared with the minimum for two cores, alternating, because the virtual cores may be
// elsewhere a second later.
struct LimitRounds {
  std::vector<double> ring, word;                  // microseconds, over all rounds
  std::vector<double> against_limit, against_p50;  // by round
  std::vector<double> word_against_p50;            // the bare word's own tail, by round
};

LimitRounds TimeRingAgainstWord(int count, uint64_t rounds, const TwoCores& cores) {
  LimitRounds times;
  const int each = std::max(count / static_cast<int>(rounds), 1);
  std::vector<double> before = TimePingPong(each, cores);

  for (uint64_t round = 0; round < rounds; ++round) {
    const std::vector<double> ring = TimeRing(each, false, cores);
    const std::vector<double> after = TimePingPong(each, cores);

    const double p50 = Median(ring);
    times.against_limit.push_back((Median(before) + Median(after)) / 2 / p50);
    times.against_p50.push_back(2 * p50 / Percentile(ring, 0.999));
    times.word_against_p50.push_back(2 * Median(after) / Percentile(after, 0.999));
    times.ring.insert(times.ring.end(), ring.begin(), ring.end());
    times.word.insert(times.word.end(), after.begin(), after.end());
    before = after;
  }
  return times;
}

void AddLimitRows(const LimitRounds& times, RowPrinter* printer) {
  AddComparison({.bench = "ring",
                 .row = "ring, spinning p50 against its limit",
                 .value = Median(times.ring),
                 .unit = "us",
                 .against = "one shared word p50, before and after",
                 .ratios = times.against_limit,
                 .target = 1 / 1.15},
                printer);

  AddComparison({.bench = "ring",
                 .row = "ring, spinning p99.9 against its p50",
                 .value = Percentile(times.ring, 0.999),
                 .unit = "us",
                 .against = "twice the p50",
                 .ratios = times.against_p50,
                 .target = 1.0},
                printer);
  // Below 1, the machine itself takes the time between two reads of a word, by any reader.
  AddComparison({.bench = "ring",
                 .row = "one shared word p99.9 against its p50",
                 .value = Percentile(times.word, 0.999),
                 .unit = "us",
                 .against = "twice the p50",
                 .ratios = times.word_against_p50,
                 .target = {}},
                printer);
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  const auto count = static_cast<int>(printer.Number("--round-trips", 100'000));
  ThroughputOptions throughput;
  throughput.messages = printer.Number("--messages", throughput.messages);
  throughput.rounds = printer.Number("--rounds", throughput.rounds);
  printer.NoMoreArguments();

  const TwoCores cores = FindTwoCores();
  const std::vector<double> socket = TimeSocket(count / 10);
  AddRows("Unix socket", socket, socket, &printer);
  AddRows("ring, futex", TimeRing(count / 10, true, cores), socket, &printer);
  const LimitRounds spinning = TimeRingAgainstWord(count, throughput.rounds, cores);
  AddRows("ring, spinning", spinning.ring, socket, &printer);
  AddRows("one shared word", spinning.word, socket, &printer);
  AddLimitRows(spinning, &printer);
  MeasureThroughput(throughput, cores, &printer);
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
