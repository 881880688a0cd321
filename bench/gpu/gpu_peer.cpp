#include "bench/gpu/gpu_peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/harness/ping_pong.h"
#include "shm/fd_socket.h"

namespace tidepool::bench {
namespace {

using device::Flag;

constexpr int64_t kPatienceNs = 120 * kNsPerSecond;
constexpr uint64_t kFlagBytes = kPageBytes;

enum Work : uint64_t { kImport = 1, kFlagsByCpu = 2, kFlagsByStream = 3 };

// Words in the flags' page; each has its own cache line.
struct Words {
  explicit Words(std::byte* page) : ready(At(page, 0)), done(At(page, 1)), seen(At(page, 2)) {}
  static Flag* At(std::byte* page, uint64_t line) {
    return reinterpret_cast<Flag*>(page + 64 * line);
  }
  Flag* const ready;  // this process requests
  Flag* const done;   // the peer's stream answers
  Flag* const seen;   // this process's stream has seen the answer
};

// Spins; ends the program after two minutes without a change.
void SpinUntil(const Flag* flag, uint64_t value) {
  const SteadyClock clock;
  const int64_t end = clock.NowNs() + kPatienceNs;
  for (uint64_t turn = 1; static_cast<int64_t>(flag->load(std::memory_order_acquire) - value) < 0;
       ++turn) {
    __builtin_ia32_pause();
    if (turn % 1'000'000 == 0 && clock.NowNs() > end)
      Die("bench_gpu: the other process never answered through its flag");
  }
}

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

shm::Packet Receive(int socket, uint32_t fds) {
  shm::Packet packet;
  if (!shm::WaitForSocket(socket, POLLIN, kPatienceNs) ||
      shm::ReceivePacket(socket, fds, &packet) != shm::SocketResult::kDone)
    return {};
  return packet;
}

}  // namespace

struct GpuPeer::Order {
  uint64_t work = 0, bytes = 0, count = 0;
};

namespace {

void ServeImports(device::CudaDevice* device, const UniqueFd& exported, uint64_t bytes,
                  uint64_t count, int socket) {
  const SteadyClock clock;
  std::vector<double> import, release;

  for (uint64_t i = 0; i < count; ++i) {
    const int64_t begin = clock.NowNs();
    auto memory = OrDie(device->Import(exported, bytes));
    const int64_t imported = clock.NowNs();
    memory.reset();
    release.push_back(static_cast<double>(clock.NowNs() - imported) / 1e9);
    import.push_back(static_cast<double>(imported - begin) / 1e9);
  }

  const std::array<double, 2> times = {Median(import), Median(release)};
  (void)shm::SendPacket(socket, BytesOf(times));
}

// Serves both ways of waiting: by the stream itself (`by_stream`), or by this CPU, which then lets
// the stream answer, as in a memserver.
void ServeFlags(device::CudaDevice* device, UniqueFd page, bool by_stream, uint64_t count,
                int socket) {
  const auto segment =
      OrDie(shm::Segment::Map(std::move(page), kFlagBytes, shm::PeerAccess::kReadWrite));
  const auto registration = OrDie(device->Register(segment->data(), kFlagBytes));
  const auto stream = OrDie(device->OpenStream());
  const Words words(segment->data());
  const std::array<double, 2> ready = {};
  (void)shm::SendPacket(socket, BytesOf(ready));
  for (uint64_t i = 1; i <= count; ++i) {
    by_stream ? stream->WaitFlag(words.ready, i) : SpinUntil(words.ready, i);
    stream->WriteFlag(words.done, i);
    // At most as far ahead as a ring of requests.
    if (by_stream && i % 64 == 0) stream->Synchronize(stream->Record());
  }
  stream->Synchronize(stream->Record());
  OrDie(stream->status());
  (void)shm::SendPacket(socket, BytesOf(ready));
}

}  // namespace

void GpuPeer::Serve(int socket, int ordinal) {
  std::unique_ptr<device::CudaDevice> device;
  while (true) {
    shm::Packet packet = Receive(socket, 1);
    if (packet.bytes.size() != sizeof(Order)) return;
    Order order;
    std::memcpy(&order, packet.bytes.data(), sizeof order);

    if (!device) device = OrDie(device::CudaDevice::Open({.ordinal = ordinal}));
    if (packet.fds.empty()) Die("bench_gpu: an order without its descriptor");
    if (order.work == kImport) {
      ServeImports(device.get(), packet.fds[0], order.bytes, order.count, socket);
    } else {
      ServeFlags(device.get(), std::move(packet.fds[0]), order.work == kFlagsByStream, order.count,
                 socket);
    }
  }
}

GpuPeer::GpuPeer(int ordinal) : ordinal_(ordinal) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    Die("bench_gpu: no socket pair");
  socket_ = UniqueFd(ends[0]);
  UniqueFd other(ends[1]);

  pid_ = fork();
  if (pid_ < 0) Die("bench_gpu: no second process");
  if (pid_ > 0) return;

  socket_.Reset();
  Serve(other.get(), ordinal);
  _exit(0);
}

// The peer exits when its socket ends; one that hangs in the driver is killed.
GpuPeer::~GpuPeer() {
  socket_.Reset();
  SteadyClock clock;
  for (int i = 0; i < 500; ++i) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) return;
    clock.SleepNs(10 * kNsPerMs);
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void GpuPeer::Send(const Order& order, int fd) {
  if (shm::SendPacket(socket_.get(), BytesOf(order), std::array{fd}) != shm::SocketResult::kDone)
    Die("bench_gpu: the second process has ended");
}

GpuPeer::Times GpuPeer::TakeTimes() {
  const shm::Packet packet = Receive(socket_.get(), 0);
  std::array<double, 2> times = {};
  if (packet.bytes.size() != sizeof times)
    Die("bench_gpu: the second process has ended; what it said stands above");
  std::memcpy(times.data(), packet.bytes.data(), sizeof times);
  return {times[0], times[1]};
}

void GpuPeer::AwaitReady() {
  (void)TakeTimes();
}

void GpuPeer::MeasureImport(uint64_t bytes, uint64_t rounds, RowPrinter* printer) {
  for (const auto& [form, name] : {std::pair(device::ExportForm::kVmm, "a VMM allocation"),
                                   std::pair(device::ExportForm::kIpc, "an IPC handle")}) {
    auto device = device::CudaDevice::Open({.ordinal = ordinal_, .form = form});
    if (!device.ok()) {
      std::fprintf(stderr, "bench_gpu: no row of imports by %s: %s\n", name,
                   device.status().Line().c_str());
      continue;
    }

    UniqueFd exported;
    const auto memory = OrDie(device.value()->CreateExportable(bytes, &exported));
    Send({kImport, bytes, rounds}, exported.get());
    const Times times = TakeTimes();
    const std::string of = " of " + std::to_string(bytes / kMiB) + " MiB by " + name;

    printer->Add({.bench = "gpu",
                  .row = "import" + of,
                  .value = times.import * 1e3,
                  .unit = "ms",
                  .against = "",
                  .ratio = {},
                  .target = {}});

    printer->Add({.bench = "gpu",
                  .row = "letting go" + of,
                  .value = times.release * 1e3,
                  .unit = "ms",
                  .against = "",
                  .ratio = {},
                  .target = {}});
  }
}

void GpuPeer::MeasureFlags(device::CudaDevice* device, uint64_t trips, RowPrinter* printer) {
  const auto add = [printer](const std::string& row, const std::vector<double>& micros) {
    printer->Add({.bench = "gpu",
                  .row = row,
                  .value = Median(micros),
                  .unit = "us",
                  .against = "",
                  .ratio = {},
                  .target = {}},
                 SpreadOf(micros));
  };

  for (const Work work : {kFlagsByCpu, kFlagsByStream}) {
    const auto segment =
        OrDie(shm::Segment::Create("bench-flags", kFlagBytes, shm::PeerAccess::kReadWrite));
    const auto registration = OrDie(device->Register(segment->data(), kFlagBytes));
    const auto stream = OrDie(device->OpenStream());
    const Words words(segment->data());
    // Every trip is answered, however few the time limit allows.
    const uint64_t all = trips + kWarmUpTrips;
    const auto count = static_cast<int>(trips);

    Send({work, 0, all}, segment->fd());
    AwaitReady();
    uint64_t next = 0;
    // This process's stream requests, waits and reports; the CPU polls the last word.
    const auto by_stream = [&] {
      stream->WriteFlag(words.ready, ++next);
      stream->WaitFlag(words.done, next);
      stream->WriteFlag(words.seen, next);
      SpinUntil(words.seen, next);
    };

    const auto by_cpu = [&] {
      words.ready->store(++next, std::memory_order_release);
      SpinUntil(words.done, next);
    };

    const std::vector<double> micros =
        work == kFlagsByCpu ? TimeRoundTrips(count, by_stream) : TimeRoundTrips(count, by_cpu);
    words.ready->store(all, std::memory_order_release);  // releases the trips that were cut off
    AwaitReady();

    add(work == kFlagsByCpu
            ? "flags, round trip: stream, processor of the other process, its stream, stream"
            : "flags, round trip: processor, stream of the other process, processor",
        micros);
    OrDie(stream->status());
  }
}

}  // namespace tidepool::bench
