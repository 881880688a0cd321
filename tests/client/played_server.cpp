#include "tests/client/played_server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "shm/fd_socket.h"
#include "shm/socket_path.h"

namespace tidepool::testing {

namespace {

constexpr int64_t kLimit = 5 * kNsPerSecond;

template <typename T>
T Only(std::optional<shm::Frame> frame) {
  EXPECT_TRUE(frame && std::holds_alternative<T>(*frame))
      << (frame ? shm::NameOf(*frame) : "nothing came");
  return frame && std::holds_alternative<T>(*frame) ? std::get<T>(*std::move(frame)) : T{};
}

}  // namespace

shm::JobSpec PlayedServer::Spec() {
  shm::JobSpec spec;
  spec.name = "job";
  spec.rcache_bytes = kRcacheBytes;
  spec.parameter_groups = {{1.0F, 0.0F}};
  spec.data_groups = {{0b1}};
  spec.chunks = {{64, 0}};
  spec.parameters = {{"w", {64}, 0, 0, 0, 64}};
  return spec;
}

PlayedServer::PlayedServer() {
  std::string pattern = "/tmp/tp-played-XXXXXX";
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  directory_ = pattern;
  auto listening = shm::ListenSocket(shm::DataSocketPath(directory_));
  EXPECT_TRUE(listening.ok());
  if (listening.ok()) listening_ = std::move(listening).value();
  rcache_ =
      std::move(shm::Segment::Create("rcache", kRcacheBytes, shm::PeerAccess::kReadWrite)).value();
}

PlayedServer::~PlayedServer() {
  std::filesystem::remove_all(directory_);
}

bool PlayedServer::ClientWaits(int64_t timeout_ns) const {
  return shm::WaitForSocket(listening_.get(), POLLIN, timeout_ns);
}

bool PlayedServer::Accept() {
  if (!ClientWaits(kLimit)) return false;
  socket_ = UniqueFd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return socket_.valid();
}

std::optional<shm::Frame> PlayedServer::NextFrame() {
  shm::Packet packet;
  if (!shm::WaitForSocket(socket_.get(), POLLIN, kLimit)) return std::nullopt;
  if (shm::ReceivePacket(socket_.get(), 2, &packet) != shm::SocketResult::kDone)
    return std::nullopt;
  fds = std::move(packet.fds);
  auto frame = shm::DecodeFrame(packet.bytes);
  return frame.ok() ? std::optional(std::move(frame).value()) : std::nullopt;
}

void PlayedServer::Send(const shm::Frame& frame, const std::vector<int>& sent) {
  EXPECT_EQ(shm::SendPacket(socket_.get(), shm::EncodeFrame(frame), sent),
            shm::SocketResult::kDone);
}

shm::HelloFrame PlayedServer::TakeGreeting() {
  EXPECT_TRUE(Accept());
  auto hello = Only<shm::HelloFrame>(NextFrame());
  brought = fds.empty() ? UniqueFd() : std::move(fds.front());
  if (hello.rcache.is_brought()) {
    flags_ = std::move(shm::Segment::Create("flags", shm::kFlagBytes, shm::PeerAccess::kReadWrite))
                 .value();
  }
  Only<shm::SpecPartFrame>(NextFrame());
  return hello;
}

void PlayedServer::Welcome() {
  port_ = std::move(shm::ServerPort::Create(1, protocol)).value();
  shm::WelcomeFrame welcome;
  welcome.protocol = protocol;
  welcome.attempt = attempt;
  welcome.session = 1;
  welcome.rcache_bytes = kRcacheBytes;
  welcome.sealed_version = 12;
  welcome.job_nonce = kJobNonce;
  const int memory = flags_ != nullptr ? flags_->fd() : rcache_->fd();
  Send(welcome, {port_->submission_fd(), port_->completion_fd(), memory, port_->doorbell_fd()});
}

shm::ResumeFrame PlayedServer::TakeResume() {
  EXPECT_TRUE(Accept());
  return Only<shm::ResumeFrame>(NextFrame());
}

void PlayedServer::Resumed(uint32_t session) {
  port_ = std::move(shm::ServerPort::Create(session, protocol)).value();
  Send(shm::ResumedFrame{protocol, session},
       {port_->submission_fd(), port_->completion_fd(), port_->doorbell_fd()});
}

void PlayedServer::RefuseResume(ErrorId id) {
  TakeResume();
  Send(shm::RefusedFrame{Status(id, "the very reason")});
  socket_.Reset();
}

std::optional<shm::Request> PlayedServer::NextRequest() {
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + kLimit;
  shm::Request request{};
  for (;;) {
    const auto popped = port_->Pop(&request);
    if (popped == shm::PopResult::kItem) return request;
    if (popped == shm::PopResult::kViolation || clock.NowNs() > limit) return std::nullopt;
    clock.SleepNs(kNsPerMs / 10);
  }
}

void PlayedServer::Answer(uint64_t counter, Version version, ErrorId error) {
  shm::Completion completion{};
  completion.error = static_cast<uint32_t>(error);
  completion.counter = counter;
  completion.version = version;
  EXPECT_TRUE(port_->Push(completion));
  port_->Wake();
}

void PlayedServer::Die() {
  socket_.Reset();
}

}  // namespace tidepool::testing
