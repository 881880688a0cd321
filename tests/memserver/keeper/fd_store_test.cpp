#include "memserver/keeper/fd_store.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "memserver/keeper/kept_holder.h"
#include "memserver/keeper/sd_notify.h"
#include "tests/fakes/real_clock.h"
#include "tests/memserver/keeper/keeper_fixture.h"

namespace tidepool::memserver {
namespace fd_store_test {

using testing::ContentsOf;
using testing::InChild;
using testing::MakeMemory;

// A service manager: receives the messages of a service, and hands descriptors to the next process
// as the system's does.
class FdStore : public testing::KeeperTest {
 protected:
  void SetUp() override {
    KeeperTest::SetUp();
    const std::string path = File("notify");
    manager_ = UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    ASSERT_EQ(bind(manager_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
    setenv("FDSTORE", "16", 1);
  }
  void TearDown() override {
    for (const char* name :
         {"NOTIFY_SOCKET", "FDSTORE", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"})
      unsetenv(name);
    KeeperTest::TearDown();
  }
  // The next message as text; its descriptor in *fd.
  std::string Receive(UniqueFd* fd = nullptr) {
    shm::Packet packet;
    if (!shm::WaitForSocket(manager_.get(), POLLIN, kNsPerSecond)) return "nothing";
    if (shm::ReceivePacket(manager_.get(), 1, &packet) != shm::SocketResult::kDone)
      return "malformed";
    if (fd != nullptr && packet.fds.size() == 1) *fd = std::move(packet.fds[0]);
    return {reinterpret_cast<const char*>(packet.bytes.data()), packet.bytes.size()};
  }
  // In a child: descriptors 3, 4, ... are these, under these names.
  static void PassOn(const std::vector<int>& fds, const std::string& names) {
    constexpr int kAside = 200;
    for (size_t i = 0; i < fds.size(); ++i) dup2(fds[i], kAside + static_cast<int>(i));
    for (size_t i = 0; i < fds.size(); ++i)
      dup2(kAside + static_cast<int>(i), 3 + static_cast<int>(i));
    setenv("LISTEN_FDS", std::to_string(fds.size()).c_str(), 1);
    setenv("LISTEN_FDNAMES", names.c_str(), 1);
    setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
  }
  UniqueFd manager_;
};

TEST_F(FdStore, IsOfferedOnlyByAManagerThatSaysSo) {
  EXPECT_TRUE(FdStoreOffered());
  setenv("FDSTORE", "0", 1);
  EXPECT_FALSE(FdStoreOffered());
  unsetenv("FDSTORE");
  EXPECT_FALSE(FdStoreOffered());
  setenv("FDSTORE", "16", 1);
  unsetenv("NOTIFY_SOCKET");
  EXPECT_FALSE(FdStoreOffered());
}

TEST_F(FdStore, AStoredDescriptorArrivesWithItsName) {
  const UniqueFd memory = MakeMemory("piece 7");
  ASSERT_TRUE(Store(7, memory.get()).ok());
  UniqueFd stored;
  EXPECT_EQ(Receive(&stored), "FDSTORE=1\nFDNAME=tidepool-kept-7\nFDPOLL=0");
  EXPECT_EQ(ContentsOf(stored.get()), "piece 7");
  RemoveStored(7);
  EXPECT_EQ(Receive(), "FDSTOREREMOVE=1\nFDNAME=tidepool-kept-7");
}

// A watchdog that is fed often, and a manager that is busy: only what the next one makes up for is
// left out.
TEST_F(FdStore, WhatIsTakenOutIsToldAlsoWhereTheQueueIsFull) {
  while (NotifyIfRoom("WATCHDOG=1")) {
  }
  const pid_t reader = fork();
  if (reader == 0) {
    SteadyClock().SleepNs(50 * kNsPerMs);
    for (std::string text = Receive(); text != "nothing"; text = Receive()) {
      if (text == "FDSTOREREMOVE=1\nFDNAME=tidepool-kept-7") _exit(0);
    }
    _exit(1);
  }
  RemoveStored(7);
  int status = -1;
  ASSERT_EQ(waitpid(reader, &status, 0), reader);
  EXPECT_EQ(status, 0);
}

TEST_F(FdStore, AManagerThatIsGoneIsAnError) {
  const UniqueFd memory = MakeMemory("x");
  manager_.Reset();
  EXPECT_EQ(Store(1, memory.get()).id(), ErrorId::kKeeperFailed);
  EXPECT_FALSE(NotifyServiceManager("READY=1"));
}

TEST_F(FdStore, TheWatchdogIsFedOnlyWhereItIsMeantForThisProcess) {
  EXPECT_EQ(WatchdogNs(), 0);
  setenv("WATCHDOG_USEC", "30000000", 1);
  EXPECT_EQ(WatchdogNs(), 30 * kNsPerSecond);
  setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
  EXPECT_EQ(WatchdogNs(), 30 * kNsPerSecond);
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(WatchdogNs(), 0);
  unsetenv("WATCHDOG_PID");
  setenv("WATCHDOG_USEC", "soon", 1);
  EXPECT_EQ(WatchdogNs(), 0);
  unsetenv("WATCHDOG_USEC");
}

TEST_F(FdStore, WhatAnEarlierProcessStoredIsTakenOnce) {
  const UniqueFd index = MakeMemory("index"), pool = MakeMemory("pool!"),
                 foreign = MakeMemory("http");
  unsetenv("FDSTORE");
  const int end = InChild([&] {
    PassOn({pool.get(), foreign.get(), index.get()}, "tidepool-kept-1:web:tidepool-kept-0");
    if (!FdStoreOffered()) return 1;
    const auto taken = TakeStored();
    if (taken.size() != 2 || taken[0].slot != 0 || taken[1].slot != 1) return 2;
    if (ContentsOf(taken[0].fd.get()) != "index" || ContentsOf(taken[1].fd.get()) != "pool!" ||
        taken[1].bytes != 5)
      return 3;
    for (int fd = 3; fd < 6; ++fd) {
      if (fcntl(fd, F_GETFD) != FD_CLOEXEC) return 4;
    }
    if (std::getenv("LISTEN_FDS") != nullptr || std::getenv("LISTEN_PID") != nullptr) return 5;
    return TakeStored().empty() && !FdStoreOffered() ? 0 : 6;
  });
  EXPECT_EQ(end, 0);
}

TEST_F(FdStore, WhatIsMeantForAnotherProcessOrNotOursIsLeftAlone) {
  const UniqueFd memory = MakeMemory("x");
  unsetenv("FDSTORE");
  EXPECT_EQ(InChild([&] {
              PassOn({memory.get()}, "tidepool-kept-1");
              setenv("LISTEN_PID", std::to_string(getpid() + 1).c_str(), 1);
              return !FdStoreOffered() && TakeStored().empty() ? 0 : 1;
            }),
            0);
  for (const char* name : {"tidepool-kept-", "tidepool-kept-x", "tidepool-kept-1x",
                           "tidepool-kept--1", "tidepool-kept-128", "kept-1", ""}) {
    EXPECT_EQ(InChild([&] {
                PassOn({memory.get()}, name);
                return !FdStoreOffered() && TakeStored().empty() ? 0 : 1;
              }),
              0)
        << name;
  }
}

TEST_F(FdStore, NumbersThatDoNotFitTheNamesDoNoHarm) {
  const UniqueFd memory = MakeMemory("x");
  for (const char* count : {"2", "999999", "-1", "junk", "0"}) {
    EXPECT_EQ(InChild([&] {
                PassOn({memory.get()}, "tidepool-kept-1:tidepool-kept-2");
                close(4);
                setenv("LISTEN_FDS", count, 1);
                return TakeStored().size() <= 1 ? 0 : 1;
              }),
              0)
        << count;
  }
}

TEST_F(FdStore, AHolderUsesItInPlaceOfAKeeperProcess) {
  const UniqueFd index = MakeMemory("index"), newer = MakeMemory("newer");
  KeptHolder holder(KeeperChoice::kAuto,
                    KeeperStart{.clock = RealClock(), .socket_path = socket_path_, .argv = {}});
  EXPECT_STREQ(holder.Name(), "systemd");
  EXPECT_TRUE(holder.Take().value().empty());
  ASSERT_TRUE(holder.Hold({0, index.get(), 5}).ok());
  EXPECT_EQ(Receive(), "FDSTORE=1\nFDNAME=tidepool-kept-0\nFDPOLL=0");
  ASSERT_TRUE(holder.Hold({0, newer.get(), 5}).ok());
  EXPECT_EQ(Receive(), "FDSTOREREMOVE=1\nFDNAME=tidepool-kept-0");
  UniqueFd stored;
  EXPECT_EQ(Receive(&stored), "FDSTORE=1\nFDNAME=tidepool-kept-0\nFDPOLL=0");
  EXPECT_EQ(ContentsOf(stored.get()), "newer");
  EXPECT_EQ(holder.watch_fd(), -1);
  EXPECT_TRUE(holder.Part(1000, {}).ok());
  EXPECT_FALSE(shm::WaitForSocket(manager_.get(), POLLIN, 0));  // the unit says how long
  holder.End();
  EXPECT_EQ(Receive(), "FDSTOREREMOVE=1\nFDNAME=tidepool-kept-0");
  EXPECT_FALSE(SocketIsThere());
}

TEST_F(FdStore, AHolderGivesUpWhatItTook) {
  const UniqueFd pool = MakeMemory("pool");
  const int end = InChild([&] {
    PassOn({pool.get()}, "tidepool-kept-1");
    KeptHolder holder(KeeperChoice::kAuto,
                      KeeperStart{.clock = RealClock(), .socket_path = socket_path_, .argv = {}});
    if (holder.Take().value().size() != 1) return 1;
    return holder.Forget().ok() ? 0 : 2;
  });
  EXPECT_EQ(end, 0);
  EXPECT_EQ(Receive(), "FDSTOREREMOVE=1\nFDNAME=tidepool-kept-1");
}

TEST_F(FdStore, OneNotificationIsOneMessageAndNoneGoesWithoutAManager) {
  EXPECT_TRUE(NotifyServiceManager("READY=1\nSTATUS=serving"));
  EXPECT_EQ(Receive(), "READY=1\nSTATUS=serving");
  setenv("NOTIFY_SOCKET", "relative", 1);
  EXPECT_FALSE(NotifyServiceManager("READY=1"));
  unsetenv("NOTIFY_SOCKET");
  EXPECT_FALSE(NotifyServiceManager("READY=1"));
}

}  // namespace fd_store_test
}  // namespace tidepool::memserver
