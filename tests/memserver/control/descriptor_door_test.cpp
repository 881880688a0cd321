// The door that descriptors of clients come through, and the control thread behind it, with files
// that never close.
#include "memserver/control/descriptors/descriptor_door.h"
#include "tests/fakes/real_clock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/silent_files.h"
#include "tests/not_run.h"

namespace tidepool::memserver {
namespace descriptor_door_test {

using testing::SilentFiles;

constexpr int64_t kLimit = 20 * kNsPerSecond;
constexpr uint32_t kUser = 1000, kOther = 1001;

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

class DescriptorDoorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = DescriptorDoor::Open(RealClock());
    ASSERT_TRUE(opened.ok()) << opened.status().Format();
    door_ = std::move(opened).value();
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    client_ = UniqueFd(ends[0]);
    own_ = UniqueFd(ends[1]);
  }
  static UniqueFd Memory() {
    UniqueFd fd(memfd_create("door", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_TRUE(fd.valid());
    return fd;
  }
  void Send(const std::vector<int>& fds, size_t bytes = 40) {
    ASSERT_EQ(shm::SendPacket(client_.get(), std::vector<std::byte>(bytes, std::byte{7}), fds),
              shm::SocketResult::kDone);
  }
  Status Ask(uint32_t uid, LaneTask task = LaneTask::kTakeMemory, uint32_t fds_max = 2) {
    return door_->Take({++asked_, uid, own_.get(), task, fds_max});
  }
  // What comes next; of connection 0 when nothing comes.
  DescriptorDoor::Taken Next() {
    while (taken_.empty()) {
      pollfd entry{door_->event_fd(), POLLIN, 0};
      if (poll(&entry, 1, static_cast<int>(kLimit / kNsPerMs)) <= 0) return {};
      taken_ = door_->TakeAll();
    }
    DescriptorDoor::Taken next = std::move(taken_.front());
    taken_.erase(taken_.begin());
    return next;
  }
  DescriptorDoor::Taken SendAndTake(const std::vector<int>& fds,
                                    LaneTask task = LaneTask::kTakeMemory) {
    Send(fds);
    EXPECT_TRUE(Ask(kUser, task).ok());
    auto taken = Next();
    EXPECT_EQ(taken.connection, asked_);
    return taken;
  }

  std::unique_ptr<DescriptorDoor> door_;
  UniqueFd client_, own_;
  ConnectionId asked_ = 0;
  std::vector<DescriptorDoor::Taken> taken_;
};

TEST_F(DescriptorDoorTest, MemoryComesThroughWithItsPacket) {
  const UniqueFd memory = Memory();
  auto taken = SendAndTake({memory.get(), memory.get()});
  EXPECT_EQ(taken.result, shm::SocketResult::kDone);
  EXPECT_EQ(taken.packet.bytes, std::vector<std::byte>(40, std::byte{7}));
  ASSERT_EQ(taken.packet.fds.size(), 2U);
  EXPECT_EQ(write(taken.packet.fds[1].get(), "x", 1), 1);
  char letter = 0;
  EXPECT_EQ(pread(memory.get(), &letter, 1, 0), 1) << "the same memory";
  EXPECT_EQ(letter, 'x');
  EXPECT_NE(fcntl(taken.packet.fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(DescriptorDoorTest, OfPlacesOnlyDirectoriesThatCannotBeReadByThemselvesComeThrough) {
  const UniqueFd place(open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC)),
      opened(open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_EQ(SendAndTake({place.get()}, LaneTask::kTakeDirectory).packet.fds.size(), 1U);
  EXPECT_FALSE(SendAndTake({opened.get()}, LaneTask::kTakeDirectory).refused.ok());
  EXPECT_FALSE(SendAndTake({place.get()}).refused.ok()) << "it is no memory";
  EXPECT_EQ(SendAndTake({place.get()}, LaneTask::kTakeDirectory).packet.fds.size(), 1U)
      << "the lane goes on";
}

TEST_F(DescriptorDoorTest, WhatAPeerCouldStretchIsRefusedAndNoDescriptorOfItIsLeft) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]),
      file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), memory = Memory();
  SendAndTake({memory.get()});  // makes the lane
  // Another lane serves while one closes what it has refused.
  const size_t before = OpenDescriptors() - door_->lanes();
  for (const int fd : {writer.get(), file.get(), client_.get()}) {
    const auto taken = SendAndTake({memory.get(), fd});
    EXPECT_EQ(taken.refused.id(), ErrorId::kHandshakeBad);
    EXPECT_TRUE(taken.packet.fds.empty());
  }
  EXPECT_EQ(OpenDescriptors() - door_->lanes(), before);
}

TEST_F(DescriptorDoorTest, PacketsThatAreTooLargeOrBringTooManyAreMalformed) {
  const UniqueFd memory = Memory();
  EXPECT_EQ(SendAndTake({memory.get(), memory.get(), memory.get()}).result,
            shm::SocketResult::kMalformed);
  Send({memory.get()}, kLanePacketMax + 1);
  ASSERT_TRUE(Ask(kUser).ok());
  EXPECT_EQ(Next().result, shm::SocketResult::kMalformed);
  ASSERT_TRUE(Ask(kUser).ok());
  EXPECT_EQ(Next().result, shm::SocketResult::kWouldBlock) << "nothing is there";
  client_.Reset();
  ASSERT_TRUE(Ask(kUser).ok());
  EXPECT_EQ(Next().result, shm::SocketResult::kClosed);
}

TEST_F(DescriptorDoorTest, ALaneEndsWithTheUsersLastConnectionAndAnotherOneIsMadeForTheNext) {
  const UniqueFd memory = Memory();
  SendAndTake({memory.get()});
  EXPECT_EQ(door_->lanes(), 1U);
  door_->Leave(kOther);
  EXPECT_EQ(door_->lanes(), 1U);
  door_->Leave(kUser);
  EXPECT_EQ(door_->lanes(), 0U);
  EXPECT_EQ(SendAndTake({memory.get()}).packet.fds.size(), 1U);
}

// A process that has a silent file open, and sends it; it waits until it is killed.
class SilentDoorTest : public DescriptorDoorTest {
 protected:
  void TearDown() override {
    for (const pid_t pid : senders_) kill(pid, SIGKILL);
    files_.reset();  // only now can those end that wait in a close
    for (const pid_t pid : senders_) waitpid(pid, nullptr, 0);
  }
  bool Mount() {
    files_ = std::make_unique<SilentFiles>();
    if (files_->missing().empty()) return true;
    testing::NotRun(files_->missing());
    return false;
  }
  void SendSilent() {
    const std::string path = files_->file();
    const pid_t pid = fork();
    if (pid == 0) {
      close(files_->connection());
      const std::array<int, 1> fds{open(path.c_str(), O_RDWR | O_CLOEXEC)};
      const std::array<std::byte, 8> bytes{};
      if (fds[0] >= 0) shm::SendPacket(client_.get(), bytes, fds);
      for (;;) pause();
    }
    senders_.push_back(pid);
    ASSERT_TRUE(shm::WaitForSocket(own_.get(), POLLIN, kLimit)) << "the file could not be opened";
  }

  // A lane answers before it closes: waits until so many of them are in the close.
  void AwaitStuck(uint32_t lanes) const {
    while (files_->unanswered() < lanes) SteadyClock().SleepNs(kNsPerMs);
  }

  std::unique_ptr<SilentFiles> files_;
  std::vector<pid_t> senders_;
};

TEST_F(SilentDoorTest, AFileThatNeverClosesHoldsUpNobodyAndIsCountedAgainstItsUser) {
  if (!Mount()) return;
  const UniqueFd memory = Memory();
  for (uint32_t stuck = 1; stuck <= DescriptorDoor::kLanesPerUser; ++stuck) {
    SendSilent();
    ASSERT_TRUE(Ask(kUser).ok()) << stuck;
    EXPECT_EQ(Next().refused.id(), ErrorId::kHandshakeBad) << stuck;
    AwaitStuck(stuck);
  }
  Send({memory.get()});
  EXPECT_EQ(Ask(kUser).id(), ErrorId::kTooManySessions);
  door_->Leave(kUser);
  EXPECT_EQ(Ask(kUser).id(), ErrorId::kTooManySessions) << "also for those that come back";
  ASSERT_TRUE(Ask(kOther).ok());
  EXPECT_EQ(Next().packet.fds.size(), 1U) << "another user is served";

  files_.reset();
  // The closes have ended: the lanes of a user without connections go.
  while (door_->lanes() > 1) (void)door_->TakeAll();
  EXPECT_EQ(SendAndTake({memory.get()}).packet.fds.size(), 1U);
}

TEST_F(SilentDoorTest, TheDoorClosesWhileLanesAreStuck) {
  if (!Mount()) return;
  SendSilent();
  ASSERT_TRUE(Ask(kUser).ok());
  Next();
  AwaitStuck(1);
  door_.reset();  // and waits for nothing
  EXPECT_EQ(files_->unanswered(), 1U);
}

}  // namespace descriptor_door_test
}  // namespace tidepool::memserver
