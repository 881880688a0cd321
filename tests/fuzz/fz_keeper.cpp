// Fuzz target: what memserver and its keeper send each other, and the names under which systemd's
// store hands descriptors back.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "memserver/keeper/fd_store.h"
#include "memserver/keeper/keeper_link.h"
#include "memserver/keeper/keeper_messages.h"
#include "tests/fakes/real_clock.h"
#include "tests/fuzz/descriptor_watch.h"
#include "tests/fuzz/fuzz_input.h"

namespace tidepool::memserver {
namespace {

using fuzz::FuzzInput;

bool BringsMemory(KeeperOp op) {
  return op == KeeperOp::kHold || op == KeeperOp::kGiven;
}

UniqueFd MadeDescriptor() {
  return UniqueFd(memfd_create("fuzz", MFD_CLOEXEC));
}

KeeperMessage MessageFrom(FuzzInput* input) {
  constexpr std::array<KeeperOp, 4> kLikely{KeeperOp::kGiven, KeeperOp::kGiven, KeeperOp::kGivenAll,
                                            KeeperOp::kHello};
  KeeperMessage message;
  message.op = input->OneIn(4) ? static_cast<KeeperOp>(OddNumber(input, 16))
                               : kLikely[input->Choice(kLikely.size())];
  message.slot =
      input->OneIn(4) ? static_cast<uint32_t>(OddNumber(input, kKeptSlotsMax)) : input->Choice(4);
  message.value = input->OneIn(4) ? OddNumber(input, 2) : input->Choice(4);
  return message;
}

void FuzzMessage(FuzzInput* input) {
  shm::Packet packet;
  for (uint32_t fds = input->Choice(3); fds > 0; --fds) packet.fds.push_back(MadeDescriptor());
  const auto bytes = input->Rest();
  packet.bytes.assign(bytes.begin(), bytes.end());
  const auto message = MessageOf(packet);
  if (!message) return;
  TP_CHECK(
      message->slot < kKeptSlotsMax && packet.fds.size() == (BringsMemory(message->op) ? 1 : 0),
      "a message keeps its limits");
}

struct PreparedPacket {
  std::vector<std::byte> bytes;
  bool with_descriptor = false;
};

std::vector<PreparedPacket> PacketsFrom(FuzzInput* input) {
  std::vector<PreparedPacket> packets;
  while (input->Left() > 0 && packets.size() < 8) {
    const KeeperMessage message = MessageFrom(input);
    const auto bytes = std::as_bytes(std::span(&message, 1));
    PreparedPacket packet{{bytes.begin(), bytes.end()},
                          BringsMemory(message.op) != input->OneIn(16)};
    if (input->OneIn(16)) packet.bytes.resize(1 + input->Byte());
    packets.push_back(std::move(packet));
  }
  return packets;
}

// Where a played keeper listens.
struct Meeting {
  Meeting() : folder("/tmp/tidepool-fuzz-" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder);
    auto made = shm::ListenSocket(path());
    TP_CHECK(made.ok(), "a socket to listen on");
    listener = std::move(made).value();
  }
  ~Meeting() { std::filesystem::remove_all(folder); }
  std::string path() const { return folder + "/keeper.sock"; }
  const std::string folder;
  UniqueFd listener;
};

Meeting& TheMeeting() {
  static Meeting meeting;
  return meeting;
}

// A keeper that greets well and then sends whatever the input says.
void PlayKeeper(const std::vector<PreparedPacket>& packets) {
  TP_CHECK(shm::WaitForSocket(TheMeeting().listener.get(), POLLIN, kKeeperWaitNs),
           "memserver connects");
  const UniqueFd socket(
      accept4(TheMeeting().listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  SendMessage(socket.get(), {KeeperOp::kHello, kKeeperProtocol, static_cast<uint64_t>(getpid())},
              -1, 0);
  for (const PreparedPacket& packet : packets) {
    const UniqueFd fd = MadeDescriptor();
    const std::array fds{fd.get()};
    shm::SendPacket(socket.get(), packet.bytes,
                    std::span(fds).first(packet.with_descriptor ? 1 : 0));
  }
}

void FuzzLink(FuzzInput* input) {
  const std::vector<PreparedPacket> packets = PacketsFrom(input);
  std::thread keeper([&packets] { PlayKeeper(packets); });
  auto link = KeeperLink::Connect(RealClock(), TheMeeting().path());
  keeper.join();
  TP_CHECK(link.ok(), "a keeper that greets well is accepted");
  auto taken = (*link)->Take();
  if (!taken.ok())
    return TP_CHECK(taken.status().id() == ErrorId::kKeeperFailed, "the documented error");
  for (const HeldMemory& held : *taken)
    TP_CHECK(held.slot < kKeptSlotsMax && held.fd.valid(), "what was taken has a descriptor");
}

void FuzzStoreNames(FuzzInput* input) {
  setenv("NOTIFY_SOCKET", "/nowhere", 1);
  setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
  setenv("LISTEN_FDS", std::to_string(static_cast<int64_t>(OddNumber(input, 2))).c_str(), 1);
  std::string names;
  for (uint32_t i = input->Choice(5); i > 0; --i)
    names += (input->OneIn(3) ? "" : "tidepool-kept-") + input->Text(6) + ":";
  setenv("LISTEN_FDNAMES", names.c_str(), 1);
  FdStoreOffered();
  for (const char* variable : {"NOTIFY_SOCKET", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"})
    unsetenv(variable);
}

void RunOne(FuzzInput* input) {
  switch (input->Choice(4)) {
    case 0: return FuzzMessage(input);
    case 1: return FuzzStoreNames(input);
    default: return FuzzLink(input);
  }
}

}  // namespace
}  // namespace tidepool::memserver

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::memserver::TheMeeting();
  tidepool::fuzz::FuzzInput input(data, size);
  const tidepool::fuzz::DescriptorWatch watch;
  tidepool::memserver::RunOne(&input);
  watch.CheckSame();
  return 0;
}
