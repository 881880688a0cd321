#include "tests/sim/sim_control.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <variant>

#include "base/check.h"
#include "shm/fd_socket.h"
#include "shm/frames.h"
#include "shm/socket_path.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::memserver {
namespace {

UniqueFd Again(int fd) {
  UniqueFd again(dup(fd));
  TP_CHECK(again.valid(), "a descriptor for the client");
  return again;
}

}  // namespace

SimControl::SimControl(ServeWorld* world, const shm::JobSpec& spec)
    : world_(world), spec_(spec), device_({.clock = RealClock()}) {
  std::string pattern = "/tmp/tp-sim-XXXXXX";
  TP_CHECK(mkdtemp(pattern.data()) != nullptr, "a directory for the socket");
  directory_ = pattern;
  auto listening = shm::ListenSocket(shm::DataSocketPath(directory_));
  TP_CHECK(listening.ok(), "a socket to listen at");
  listening_ = std::move(listening).value();
}

SimControl::~SimControl() {
  std::filesystem::remove_all(directory_);
}

void SimControl::Turn() {
  if (!stands_still_) TakeGreeting();
  world_->loop().Turn();
  if (!attached_) Attach();
}

void SimControl::TakeGreeting() {
  if (!socket_.valid() && listening_.valid())
    socket_ = UniqueFd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  shm::Packet packet;
  while (socket_.valid() && shm::ReceivePacket(socket_.get(), shm::kPacketFdsMax, &packet) ==
                                shm::SocketResult::kDone) {
    const auto frame = shm::DecodeFrame(packet.bytes);
    TP_CHECK(frame.ok(), "a client sends frames");
    if (const auto* hello = std::get_if<shm::HelloFrame>(&frame.value())) {
      spec_bytes_ = hello->spec_bytes;
    } else if (const auto* part = std::get_if<shm::SpecPartFrame>(&frame.value())) {
      spec_bytes_ -= part->bytes.size();
      if (spec_bytes_ == 0) world_->Reserve(spec_, 0);
    }
  }
}

void SimControl::Attach() {
  if (const auto granted = world_->TakeReply<ReserveGranted>()) {
    for (const std::span<std::byte> range : granted->to_zero)
      std::memset(range.data(), 0, range.size());
    auto port = shm::ServerPort::Create(granted->session);
    auto memory = device_.CreateExportable(granted->rcache_bytes, &rcache_);
    TP_CHECK(port.ok() && memory.ok(), "memory for one session");
    session_ = granted->session;
    submission_ = Again((*port)->submission_fd());
    completion_ = Again((*port)->completion_fd());
    doorbell_ = Again((*port)->doorbell_fd());
    world_->Post(
        AttachSession{granted->connection, std::move(port).value(), std::move(memory).value()});
    world_->loop().Turn();
  }
  if (session_ != 0) Welcome();
}

void SimControl::Welcome() {
  const auto attached = world_->TakeReply<Attached>();
  if (!attached) return;
  attached_ = true;
  shm::WelcomeFrame welcome;
  welcome.protocol = shm::kAbiVersion;
  welcome.session = session_;
  welcome.job = attached->job;
  welcome.rcache_bytes = spec_.rcache_bytes;
  welcome.sealed_version = attached->sealed_version;
  welcome.job_nonce = attached->job_nonce;
  welcome.attempt = attached->attempt;
  const std::array<int, 4> fds{submission_.get(), completion_.get(), rcache_.get(),
                               doorbell_.get()};
  TP_CHECK(
      shm::SendPacket(socket_.get(), shm::EncodeFrame(welcome), fds) == shm::SocketResult::kDone,
      "a client takes its welcome");
}

void SimControl::Die() {
  listening_.Reset();
  socket_.Reset();
  std::filesystem::remove(shm::DataSocketPath(directory_));
}

void SimClock::SleepOnDescriptor(int descriptor, int16_t events, int64_t duration_ns) {
  Sleep(duration_ns, [&] {
    pollfd entry{descriptor, events, 0};
    return poll(&entry, 1, 0) != 0;
  });
}

void SimClock::Sleep(int64_t duration_ns, const std::function<bool()>& woken) {
  for (int64_t left = duration_ns; left > 0 && !woken();) {
    control_->Turn();
    const int64_t step = std::min(left, kStepNs);
    world_->clock().Advance(step);
    left -= step;
    while (!events_.empty() && events_.begin()->first <= NowNs()) {
      const auto event = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      event();
    }
  }
}

}  // namespace tidepool::memserver
