// memserver below a service manager that keeps its descriptors: killed and started again, it finds
// its memory there, and the job goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <csignal>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "shm/fd_socket.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace descriptor_store_test {

// What systemd does with a unit that has FileDescriptorStoreMax=: takes descriptors by name, and
// passes them to the next process from descriptor 3 on. A shell puts them there, and names itself
// in LISTEN_PID before it becomes memserver.
class DescriptorStore : public DurableDaemon {
 protected:
  void SetUp() override {
    socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = NotifyPath();
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    ASSERT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }

  Process Start() {
    std::string words, names;
    std::vector<int> fds;
    for (const auto& [name, fd] : store_) {
      words += std::to_string(3 + fds.size()) + "<&" + std::to_string(fd.get()) + " ";
      names += (names.empty() ? "" : ":") + name;
      fds.push_back(fd.get());
    }
    std::vector<std::string> command{
        "/bin/bash", "-c",
        (words.empty() ? "" : "exec " + words + "; ") + "LISTEN_PID=$$ exec \"$@\"", "bash"};
    const auto run = MemserverCommand(directory_.path(),
                                      {"--keeper", "auto", "--lease", "20s", "--pool", "8MiB"});
    command.insert(command.end(), run.begin(), run.end());
    auto server = std::make_unique<ChildProcess>(
        command,
        std::vector<std::string>{"NOTIFY_SOCKET=" + NotifyPath(), "FDSTORE=16",
                                 "LISTEN_FDS=" + std::to_string(fds.size()),
                                 "LISTEN_FDNAMES=" + names, "WATCHDOG_USEC=30000"},
        fds);
    const SteadyClock clock;
    for (const int64_t end = clock.NowNs() + kLimit; !ready_ && clock.NowNs() < end;)
      TakeMessages(10 * kNsPerMs);
    EXPECT_TRUE(std::exchange(ready_, false)) << server->Output();
    EXPECT_TRUE(server->WaitForOutput("\"keeper\":\"systemd\"", kLimit)) << server->Output();
    return server;
  }

  void TakeMessages(int64_t wait_ns) {
    shm::Packet packet;
    while (shm::WaitForSocket(socket_.get(), POLLIN, wait_ns) &&
           shm::ReceivePacket(socket_.get(), 1, &packet) == shm::SocketResult::kDone) {
      const std::string text(reinterpret_cast<const char*>(packet.bytes.data()),
                             packet.bytes.size());
      const size_t at = text.find("FDNAME=");
      const std::string name =
          at == std::string::npos ? "" : text.substr(at + 7, text.find('\n', at) - at - 7);
      ready_ |= text.find("READY=1") != std::string::npos;
      heard_ += text == "WATCHDOG=1" ? 1 : 0;
      if (text.find("FDSTOREREMOVE=1") != std::string::npos) {
        store_.erase(name);
      } else if (text.find("FDSTORE=1") != std::string::npos) {
        ASSERT_EQ(packet.fds.size(), 1U) << text;
        // Far from 3, so that no number is both a source and a place.
        store_[name] = UniqueFd(fcntl(packet.fds.front().get(), F_DUPFD_CLOEXEC, 100));
      }
      wait_ns = 0;
    }
  }

  std::map<std::string, UniqueFd> store_;
  int heard_ = 0;  // of the watchdog

 private:
  std::string NotifyPath() const { return manager_directory_.path() + "/notify"; }

  const TemporaryDirectory manager_directory_;
  UniqueFd socket_;
  bool ready_ = false;
};

TEST_F(DescriptorStore, AServerThatIsKilledFindsItsMemoryInTheStoreAndTheTrainerGoesOn) {
  const std::string expected = UndisturbedHash();
  Process server = Start();
  EXPECT_EQ(store_.size(), 2U) << "the index, and the pool's one piece";
  const Process trainer = Train({"--norms"});
  for (const char* step : {"norm 5 ", "norm 25 ", "norm 45 "}) {
    ASSERT_TRUE(trainer->WaitForOutput(step, kLimit)) << trainer->Output();
    server->Signal(SIGKILL);
    ASSERT_TRUE(server->Wait(kLimit).has_value());
    server = Start();
    EXPECT_TRUE(server->WaitForOutput("job found in kept memory", kLimit)) << server->Output();
  }
  EXPECT_EQ(FindKeeper(directory_.path()), 0) << "the manager is the keeper";
  ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
  EXPECT_EQ(HashIn(trainer->Output()), expected);
  server->Signal(SIGINT);
  // The queue is full of what the watchdog was told: what is said at the end waits until it is
  // heard.
  const SteadyClock clock;
  for (const int64_t end = clock.NowNs() + kLimit; !server->Wait(0) && clock.NowNs() < end;)
    TakeMessages(10 * kNsPerMs);
  EXPECT_EQ(server->Wait(kLimit)->exit_code, 0) << server->Output();
  TakeMessages(0);
  EXPECT_GT(heard_, 0) << "the manager hears that it lives";
  EXPECT_TRUE(store_.empty()) << "an orderly end takes everything out of the store";
  EXPECT_TRUE(WaitForFilesToGo());
}

}  // namespace descriptor_store_test
}  // namespace tidepool::testing
