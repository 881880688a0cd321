// bench_ring: the round trip of one request through the shared-memory rings, spinning and sleeping, beside a Unix socket and beside the
// least that two cores can do (one word to and fro).
//
// Each way has an echo thread on the other side; the rings, the bell and the futex are those of the product.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "bench/row.h"
#include "shm/messages.h"
#include "shm/port.h"

namespace tidepool::bench {
namespace {

constexpr int kWarmUp = 200;
// On a machine whose cores are all taken, a spinning thread waits for whole time slices: then fewer round trips have to do.
constexpr int64_t kTimeMaxNs = 5 * kNsPerSecond;

constexpr const char* kHelp =
    "bench_ring [--json FILE]\n"
    "Round trip of one 64-byte request: shared-memory rings (spinning, sleeping), a Unix socket, and one shared word.\n";

// Microseconds of up to `count` round trips; `round_trip` does one.
template <typename RoundTrip>
std::vector<double> Time(int count, RoundTrip round_trip) {
  const SteadyClock clock;
  std::vector<double> micros;
  const int64_t limit = clock.NowNs() + kTimeMaxNs;
  for (int i = -kWarmUp; i < count; ++i) {
    const int64_t start = clock.NowNs();
    if (start > limit && !micros.empty()) break;
    round_trip();
    const int64_t end = clock.NowNs();
    if (i >= 0) micros.push_back(static_cast<double>(end - start) / 1e3);
  }
  return micros;
}

// The rings of one session with both ends in this process.
struct Session {
  std::unique_ptr<shm::ServerPort> server;
  std::unique_ptr<shm::ClientPort> client;
};

Session OpenSession() {
  auto server = shm::ServerPort::Create(1);
  if (!server.ok()) Die(server.status().Format());
  const auto copy = [](int fd) { return UniqueFd(dup(fd)); };
  auto client = shm::ClientPort::Map(copy((*server)->submission_fd()), copy((*server)->completion_fd()), copy((*server)->doorbell_fd()));
  if (!client.ok()) Die(client.status().Format());
  return {std::move(*server), std::move(*client)};
}

// Answers requests until one with op 0 comes. `sleeps`: waits on the doorbell, else looks without end.
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

std::vector<double> TimeRing(int count, bool sleeps) {
  Session session = OpenSession();
  std::thread echo(EchoRing, session.server.get(), sleeps);
  uint64_t counter = 0;
  const int64_t spin_ns = sleeps ? 0 : kNsPerSecond;
  const auto send = [&](uint32_t op) {
    shm::Request request{};
    request.counter = ++counter;
    request.op = op;
    if (!session.client->Push(request)) Die("the submission ring is full");
  };
  std::vector<double> micros = Time(count, [&] {
    send(1);
    shm::Completion completion{};
    while (!session.client->Pop(&completion)) session.client->WaitForCompletion(kNsPerSecond, spin_ns);
    if (completion.counter != counter) Die("an answer to another request");
  });
  send(0);
  echo.join();
  return micros;
}

std::vector<double> TimeSocket(int count) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) Die("no socket pair");
  const UniqueFd mine(ends[0]);
  UniqueFd other(ends[1]);
  std::thread echo([&] {
    std::array<char, sizeof(shm::Request)> message{};
    while (read(other.get(), message.data(), message.size()) > 0) {
      if (write(other.get(), message.data(), message.size()) < 0) return;
    }
  });
  std::array<char, sizeof(shm::Request)> message{};
  std::vector<double> micros = Time(count, [&] {
    const bool sent = write(mine.get(), message.data(), message.size()) > 0;
    if (!sent || read(mine.get(), message.data(), message.size()) <= 0) Die("the socket broke");
  });
  shutdown(mine.get(), SHUT_RDWR);
  echo.join();
  return micros;
}

std::vector<double> TimeWord(int count) {
  struct alignas(64) Word {
    std::atomic<uint64_t> value{0};
  };
  Word ping, pong;
  constexpr uint64_t kEnd = UINT64_MAX;
  std::thread echo([&] {
    for (uint64_t next = 1;; ++next) {
      uint64_t seen = 0;
      while ((seen = ping.value.load(std::memory_order_acquire)) < next) __builtin_ia32_pause();
      if (seen == kEnd) return;
      pong.value.store(next, std::memory_order_release);
    }
  });
  uint64_t next = 0;
  std::vector<double> micros = Time(count, [&] {
    ping.value.store(++next, std::memory_order_release);
    while (pong.value.load(std::memory_order_acquire) != next) __builtin_ia32_pause();
  });
  ping.value.store(kEnd, std::memory_order_release);
  echo.join();
  return micros;
}

// p50 and p99.9 of one way; the socket's own rows stand alone.
void AddRows(const std::string& name, const std::vector<double>& micros, const std::vector<double>& socket, RowPrinter* printer) {
  const bool is_socket = &micros == &socket;
  for (const auto& [label, share] : {std::pair{" p50", 0.5}, std::pair{" p99.9", 0.999}}) {
    const double value = Percentile(micros, share);
    Row row{.bench = "ring", .row = name + label, .value = value, .unit = "us", .against = "", .ratio = {}, .target = {}};
    if (!is_socket) {
      row.against = std::string("Unix socket") + label;
      row.ratio = Percentile(socket, share) / value;
    }
    printer->Add(row);
  }
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  if (!printer.arguments().empty()) Die("error[TP1001]: bench_ring has no argument '" + printer.arguments()[0] + "'");
  const std::vector<double> socket = TimeSocket(10'000);
  AddRows("Unix socket", socket, socket, &printer);
  AddRows("ring, futex", TimeRing(10'000, true), socket, &printer);
  AddRows("ring, spinning", TimeRing(100'000, false), socket, &printer);
  AddRows("one shared word", TimeWord(100'000), socket, &printer);
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
