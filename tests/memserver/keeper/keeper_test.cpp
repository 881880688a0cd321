#include "memserver/keeper/keeper.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <span>

#include "memserver/keeper/keeper_messages.h"
#include "tests/fakes/real_clock.h"
#include "tests/memserver/keeper/keeper_fixture.h"

namespace tidepool::memserver {
namespace keeper_test {

using testing::ContentsOf;
using testing::Eventually;
using testing::FileText;
using testing::InChild;
using testing::kLongLeaseMs;
using testing::LinesIn;
using testing::MakeMemory;

class Keeping : public testing::KeeperTest {
 protected:
  static KeeperOptions Holding(uint64_t lease_ms = kLongLeaseMs) {
    return {-1, lease_ms, true, {}};
  }
  // Executes the text with a shell in place of memserver.
  KeeperOptions Starting(const std::string& script, uint64_t lease_ms = kLongLeaseMs) const {
    return {-1, lease_ms, false, {"/bin/sh", "-c", "echo $$ >> " + File("pids") + "; " + script}};
  }
  // A memserver that holds one piece of memory in slot 1 and then dies.
  void CrashAfterHolding(const std::string& contents) {
    const int end = InChild([&] {
      auto link = KeeperLink::Connect(RealClock(), socket_path_);
      const UniqueFd memory = MakeMemory(contents);
      if (!link.ok() || !link.value()->Hold({1, memory.get(), contents.size()}).ok()) return 1;
      return kill(getpid(), SIGKILL);
    });
    ASSERT_EQ(end, 1000 + SIGKILL);
  }
  std::string TakeFromSlot1() {
    const auto link = Connect();
    if (!link) return "no keeper";
    auto taken = link->Take();
    if (!taken.ok()) return taken.status().Format();
    if (taken.value().size() != 1 || taken.value()[0].slot != 1) return "other memory";
    const std::string contents = ContentsOf(taken.value()[0].fd.get());
    return taken.value()[0].bytes == contents.size() ? contents : "another size";
  }
};

TEST_F(Keeping, WhatASlotHoldsIsGivenBackAndAGiftIsNotTheLast) {
  StartKeeper(Holding());
  const auto link = Connect();
  ASSERT_TRUE(link);
  EXPECT_EQ(link->keeper_pid(), keeper_);
  EXPECT_TRUE(link->Take().value().empty());
  const UniqueFd index = MakeMemory("index"), piece = MakeMemory("piece"),
                 newer = MakeMemory("newer piece");
  ASSERT_TRUE(link->Hold({2, piece.get(), 5}).ok());
  ASSERT_TRUE(link->Hold({0, index.get(), 5}).ok());
  ASSERT_TRUE(link->Hold({2, newer.get(), 11}).ok());
  for (int i = 0; i < 2; ++i) {
    auto taken = link->Take();
    ASSERT_TRUE(taken.ok()) << taken.status().Format();
    ASSERT_EQ(taken.value().size(), 2U);
    EXPECT_EQ(taken.value()[0].slot, 0U);
    EXPECT_EQ(ContentsOf(taken.value()[0].fd.get()), "index");
    EXPECT_EQ(taken.value()[1].slot, 2U);
    EXPECT_EQ(taken.value()[1].bytes, 11U);
    EXPECT_EQ(ContentsOf(taken.value()[1].fd.get()), "newer piece");
    EXPECT_EQ(fcntl(taken.value()[1].fd.get(), F_GETFD), FD_CLOEXEC);
  }
  ASSERT_TRUE(link->Forget().ok());
  EXPECT_TRUE(link->Take().value().empty());
}

TEST_F(Keeping, EverySlotFitsIntoOneAnswer) {
  StartKeeper(Holding());
  const auto link = Connect();
  ASSERT_TRUE(link);
  const UniqueFd memory = MakeMemory("x");
  for (uint32_t slot = 0; slot < kKeptSlotsMax; ++slot)
    ASSERT_TRUE(link->Hold({slot, memory.get(), slot}).ok());
  const auto taken = link->Take();
  ASSERT_TRUE(taken.ok()) << taken.status().Format();
  ASSERT_EQ(taken.value().size(), kKeptSlotsMax);
  for (uint32_t slot = 0; slot < kKeptSlotsMax; ++slot) EXPECT_EQ(taken.value()[slot].bytes, slot);
}

TEST_F(Keeping, ASuccessorGetsTheSameMemoryAfterACrash) {
  StartKeeper(Holding());
  CrashAfterHolding("step 41");
  // Each of them closes without a farewell, too.
  for (int successor = 0; successor < 3; ++successor) {
    ASSERT_EQ(TakeFromSlot1(), "step 41");
    EXPECT_TRUE(KeeperLives());
  }
}

TEST_F(Keeping, WhatWasInFlightAtTheCrashIsHeld) {
  StartKeeper(Holding());
  const auto link = Connect();
  ASSERT_TRUE(link);
  kill(keeper_, SIGSTOP);  // so that the message is read only after the sender's death
  const int end = InChild([&] {
    const UniqueFd memory = MakeMemory("late");
    return link->Hold({1, memory.get(), 4}).ok() ? 0 : 1;
  });
  ASSERT_EQ(end, 0);
  kill(keeper_, SIGCONT);
  auto taken = link->Take();
  ASSERT_EQ(taken.value().size(), 1U);
  EXPECT_EQ(ContentsOf(taken.value()[0].fd.get()), "late");
}

TEST_F(Keeping, AfterAFarewellMemoryIsHeldForTheLeaseAndNothingIsStarted) {
  StartKeeper(Starting("true", 0));
  {
    const auto link = Connect();
    ASSERT_TRUE(link);
    const UniqueFd memory = MakeMemory("kept");
    ASSERT_TRUE(link->Hold({1, memory.get(), 4}).ok());
    EXPECT_TRUE(link->Part(kLongLeaseMs).ok());
  }
  EXPECT_TRUE(Eventually([&] { return Logged("holding memory"); }));
  {
    const auto link = Connect();
    ASSERT_EQ(link->Take().value().size(), 1U);
    EXPECT_TRUE(link->Part(300).ok());
  }
  SteadyClock clock;
  const int64_t parted_ns = clock.NowNs();
  EXPECT_EQ(KeeperEnd(20 * kNsPerSecond), kExitOk);
  EXPECT_GE(clock.NowNs() - parted_ns, 250 * kNsPerMs);
  EXPECT_FALSE(SocketIsThere());
  EXPECT_EQ(LinesIn(File("pids")), 0U);
}

TEST_F(Keeping, AFarewellCoversItsOwnServerOnly) {
  StartKeeper(Starting("exec sleep 1000"));
  {
    const auto link = Connect();
    ASSERT_TRUE(link);
    const UniqueFd memory = MakeMemory("kept");
    ASSERT_TRUE(link->Hold({1, memory.get(), 4}).ok());
    EXPECT_TRUE(link->Part(kLongLeaseMs).ok());
  }
  EXPECT_TRUE(Eventually([&] { return Logged("holding memory"); }));
  CrashAfterHolding("kept");
  EXPECT_TRUE(Eventually([&] { return LinesIn(File("pids")) == 1; }, 5 * kNsPerSecond))
      << "the next server's crash is one";
}

TEST_F(Keeping, AfterAFarewellWithNothingHeldItEnds) {
  StartKeeper(Holding());
  auto link = Connect();
  EXPECT_TRUE(link->Part(kLongLeaseMs).ok());
  link.reset();
  EXPECT_EQ(KeeperEnd(5 * kNsPerSecond), kExitOk);
}

TEST_F(Keeping, AnOrderlyEndEndsItAtOnce) {
  StartKeeper(Starting("true"));
  const auto link = Connect();
  ASSERT_TRUE(link);
  const UniqueFd memory = MakeMemory("x");
  ASSERT_TRUE(link->Hold({1, memory.get(), 1}).ok());
  EXPECT_TRUE(link->End().ok());
  EXPECT_FALSE(SocketIsThere());  // already when End returns
  EXPECT_EQ(KeeperEnd(5 * kNsPerSecond), kExitOk);
  EXPECT_EQ(LinesIn(File("pids")), 0U);
}

TEST_F(Keeping, ASecondMemserverIsRefusedWhileTheFirstLives) {
  StartKeeper(Holding());
  auto first = Connect();
  const UniqueFd memory = MakeMemory("of the first");
  ASSERT_TRUE(first->Hold({1, memory.get(), 12}).ok());
  ASSERT_EQ(first->Take().value().size(), 1U);
  const Status refused = KeeperLink::Connect(RealClock(), socket_path_).status();
  EXPECT_EQ(refused.id(), ErrorId::kKeeperFailed) << refused.Format();
  EXPECT_EQ(first->Take().value().size(), 1U);
  first.reset();
  EXPECT_EQ(TakeFromSlot1(), "of the first");
}

TEST_F(Keeping, AStrangerThatSaysNothingStandsInNobodysWay) {
  StartKeeper(Holding());
  CrashAfterHolding("waiting");
  const UniqueFd stranger = RawConnection();
  EXPECT_EQ(TakeFromSlot1(), "waiting");
}

TEST_F(Keeping, MemserverIsStartedAgainAtOnceWithCleanDescriptorsAndSignals) {
  const std::string seen = File("seen");
  StartKeeper(Starting("{ ls -l /proc/self/fd; grep -E 'Sig(Ign|Blk)' /proc/self/status; } > " +
                       seen + ".new; mv " + seen + ".new " + seen + "; exec sleep 1000"));
  SteadyClock clock;
  const int64_t before_ns = clock.NowNs();
  CrashAfterHolding("kept");
  ASSERT_TRUE(Eventually([&] { return !FileText(seen).empty(); })) << FileText(File("log"));
  EXPECT_LT(clock.NowNs() - before_ns, 5 * kNsPerSecond);
  const std::string text = FileText(seen);
  EXPECT_EQ(text.find("memfd"), std::string::npos) << text;
  EXPECT_EQ(text.find("socket:"), std::string::npos) << text;
  EXPECT_EQ(text.find("signalfd"), std::string::npos) << text;
  EXPECT_NE(text.find("SigBlk:\t0000000000000000"), std::string::npos) << text;
  // The C library keeps signals from 32 on for itself.
  EXPECT_EQ(std::strtoull(text.c_str() + text.find("SigIgn:") + 7, nullptr, 16) & 0x7fffffffU, 0U)
      << text;
  EXPECT_EQ(TakeFromSlot1(), "kept");
}

// The lease, which is shorter than the first pauses, does not run meanwhile.
TEST_F(Keeping, ACommandThatFailsIsTriedWithGrowingPausesForAsLongAsMemoryIsHeld) {
  constexpr size_t kStarts = kStartsMax + 1;
  StartKeeper(Starting("date +%s%N >> " + File("times") + "; exit 3", 50));
  CrashAfterHolding("kept");
  ASSERT_TRUE(Eventually([&] { return LinesIn(File("times")) >= kStarts || !KeeperLives(); },
                         60 * kNsPerSecond));
  ASSERT_TRUE(KeeperLives()) << FileText(File("log"));
  std::ifstream lines(File("times"));
  std::vector<int64_t> times;
  for (int64_t time = 0; lines >> time;) times.push_back(time);
  for (size_t i = 1; i < times.size(); ++i) {
    // Half of the pause between two starts of a shell that themselves take a while.
    EXPECT_GE(times[i] - times[i - 1], (100 * kNsPerMs << (i - 1)) / 2) << i;
  }
  EXPECT_TRUE(Logged("memserver goes on failing"));
  EXPECT_TRUE(Logged("exit_code"));
  EXPECT_EQ(TakeFromSlot1(), "kept");
}

TEST_F(Keeping, ACommandThatFailsWithNothingToHoldIsTriedFiveTimes) {
  StartKeeper(Starting("exit 3"));
  ASSERT_EQ(InChild([&] {
              auto link = KeeperLink::Connect(RealClock(), socket_path_);
              return link.ok() && link.value()->Forget().ok() ? kill(getpid(), SIGKILL) : 1;
            }),
            1000 + SIGKILL);
  EXPECT_EQ(KeeperEnd(30 * kNsPerSecond), kExitOk);
  EXPECT_TRUE(Logged("crashed too often"));
  EXPECT_EQ(LinesIn(File("pids")), kStartsMax);
  EXPECT_FALSE(SocketIsThere());
}

TEST_F(Keeping, AServerThatComesByHandBetweenTwoTriesFindsTheMemory) {
  StartKeeper(Starting("exit 1"));
  CrashAfterHolding("kept");
  ASSERT_TRUE(Eventually([&] { return LinesIn(File("pids")) >= 3; }));
  EXPECT_EQ(TakeFromSlot1(), "kept");
}

TEST_F(Keeping, AProgramThatDoesNotExistCountsAsAFailedStart) {
  KeeperOptions options = Starting("true", 50);
  options.command = {File("no-such-program")};
  StartKeeper(options);
  CrashAfterHolding("kept");
  ASSERT_TRUE(Eventually([&] { return Logged("no-such-program"); })) << FileText(File("log"));
  EXPECT_EQ(TakeFromSlot1(), "kept");
}

// Whoever comes to its path would never find it.
TEST_F(Keeping, AKeeperWhoseSocketIsGoneEndsWithTheLease) {
  StartKeeper(Starting("true", 200));
  const UniqueFd memory = MakeMemory("lost");
  auto link = Connect();
  ASSERT_TRUE(link->Hold({1, memory.get(), 4}).ok());
  ASSERT_TRUE(link->Take().ok());
  unlink(socket_path_.c_str());
  link.reset();
  EXPECT_EQ(KeeperEnd(30 * kNsPerSecond), kExitOk);
  EXPECT_EQ(LinesIn(File("pids")), 0U);
}

TEST_F(Keeping, AKillPointIsNotInheritedByTheNextMemserverUnlessAsked) {
  for (const bool again : {false, true}) {
    setenv("TIDEPOOL_KILL_AT", "some.point:2", 1);
    setenv("TIDEPOOL_KILL_AGAIN", again ? "1" : "0", 1);
    const std::string seen = File(again ? "again" : "once");
    StartKeeper(
        Starting("env > " + seen + ".new; mv " + seen + ".new " + seen + "; exec sleep 1000"));
    CrashAfterHolding("x");
    ASSERT_TRUE(Eventually([&] { return !FileText(seen).empty(); }));
    EXPECT_EQ(FileText(seen).find("TIDEPOOL_KILL_AT=some.point:2") != std::string::npos, again);
    EXPECT_NE(FileText(seen).find("TIDEPOOL_KILL_AGAIN="), std::string::npos);
    EXPECT_TRUE(Connect()->End().ok());
    EXPECT_EQ(KeeperEnd(5 * kNsPerSecond), kExitOk);
  }
  unsetenv("TIDEPOOL_KILL_AT");
  unsetenv("TIDEPOOL_KILL_AGAIN");
}

TEST_F(Keeping, SignalsOfTheTerminalAreIgnoredAndSigtermEndsItOnlyWhenNobodyIsConnected) {
  StartKeeper(Holding());
  auto link = Connect();
  ASSERT_TRUE(link->Take().ok());
  const UniqueFd memory = MakeMemory("x");
  ASSERT_TRUE(link->Hold({1, memory.get(), 1}).ok());
  for (const int signal : {SIGINT, SIGHUP, SIGTERM}) kill(keeper_, signal);
  EXPECT_TRUE(Eventually([&] { return Logged("SIGTERM ignored"); }));
  EXPECT_EQ(link->Take().value().size(), 1U);
  link.reset();
  ASSERT_TRUE(Eventually([&] { return Logged("holding memory"); }));
  kill(keeper_, SIGTERM);
  EXPECT_EQ(KeeperEnd(5 * kNsPerSecond), kExitOk);
  EXPECT_FALSE(SocketIsThere());
}

TEST_F(Keeping, ASocketThatIsNotItsOwnStaysAtTheEnd) {
  StartKeeper(Holding());
  const auto link = Connect();
  ASSERT_TRUE(link->Take().ok());
  unlink(socket_path_.c_str());
  const auto other = shm::ListenSocket(socket_path_);
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(link->End().ok());
  EXPECT_EQ(KeeperEnd(5 * kNsPerSecond), kExitOk);
  EXPECT_TRUE(SocketIsThere());
}

struct BadPacket {
  const char* what;
  KeeperMessage message;
  size_t bytes;
  size_t fds;
};

constexpr std::array kBadPackets{
    BadPacket{"too short", {KeeperOp::kTake, 0, 0}, 15, 0},
    BadPacket{"one byte", {KeeperOp::kTake, 0, 0}, 1, 0},
    BadPacket{"too long", {KeeperOp::kTake, 0, 0}, 17, 0},
    BadPacket{"very long", {KeeperOp::kHold, 1, 8}, 60'000, 1},
    BadPacket{"an unknown operation", {static_cast<KeeperOp>(6), 0, 0}, 16, 0},
    BadPacket{
        "an unknown operation with a descriptor", {static_cast<KeeperOp>(0xffffffff), 0, 0}, 16, 1},
    BadPacket{"an operation of the keeper", {KeeperOp::kGiven, 1, 8}, 16, 1},
    BadPacket{"hold without a descriptor", {KeeperOp::kHold, 1, 8}, 16, 0},
    BadPacket{"hold with two", {KeeperOp::kHold, 1, 8}, 16, 2},
    BadPacket{"hold with four", {KeeperOp::kHold, 1, 8}, 16, 4},
    BadPacket{"take with a descriptor", {KeeperOp::kTake, 0, 0}, 16, 1},
    BadPacket{"end with a descriptor", {KeeperOp::kEnd, 0, 0}, 16, 1},
    BadPacket{"a slot beyond the last", {KeeperOp::kHold, kKeptSlotsMax, 8}, 16, 1},
};

TEST_F(Keeping, AThousandMalformedMessagesWithDescriptorsChangeNothing) {
  constexpr rlim_t kFilesMax = 16;  // what leaks would soon use up
  StartKeeper(Starting("exec sleep 1000"), kFilesMax);
  CrashAfterHolding("kept");
  ASSERT_TRUE(Eventually([&] { return LinesIn(File("pids")) == 1; }));
  const UniqueFd memory = MakeMemory("not to be held");
  const std::array<int, 4> fds{memory.get(), memory.get(), memory.get(), memory.get()};
  for (size_t i = 0; i < 1000; ++i) {
    const BadPacket& bad = kBadPackets[i % kBadPackets.size()];
    const UniqueFd socket = RawConnection();
    std::vector<std::byte> bytes(bad.bytes);
    std::memcpy(bytes.data(), &bad.message, std::min(sizeof bad.message, bytes.size()));
    ASSERT_EQ(shm::SendPacket(socket.get(), bytes, std::span(fds).first(bad.fds)),
              shm::SocketResult::kDone)
        << bad.what;
    shm::Packet answer;
    ASSERT_TRUE(shm::WaitForSocket(socket.get(), POLLIN, 5 * kNsPerSecond)) << bad.what;
    ASSERT_EQ(shm::ReceivePacket(socket.get(), 1, &answer), shm::SocketResult::kClosed) << bad.what;
  }
  ASSERT_TRUE(KeeperLives());
  EXPECT_EQ(LinesIn(File("pids")), 1U) << "a connection that was refused is not taken for a crash";
  EXPECT_EQ(TakeFromSlot1(), "kept");
}

TEST_F(Keeping, AMemserverThatSendsNonsenseIsNotReplacedAndMayConnectAgain) {
  StartKeeper(Starting("exec sleep 1000"));
  auto link = Connect();
  const UniqueFd memory = MakeMemory("kept");
  ASSERT_TRUE(link->Hold({1, memory.get(), 4}).ok());
  ASSERT_EQ(link->Take().value().size(), 1U);
  link.reset();
  ASSERT_TRUE(Eventually([&] { return LinesIn(File("pids")) == 1; }));
  const UniqueFd socket = RawConnection();
  const KeeperMessage take, nonsense{static_cast<KeeperOp>(77)};
  ASSERT_EQ(shm::SendPacket(socket.get(), std::as_bytes(std::span(&take, 1))),
            shm::SocketResult::kDone);
  ASSERT_EQ(shm::SendPacket(socket.get(), std::as_bytes(std::span(&nonsense, 1))),
            shm::SocketResult::kDone);
  ASSERT_TRUE(Eventually([&] { return Logged("sent a malformed message"); }))
      << FileText(File("log"));
  EXPECT_EQ(LinesIn(File("pids")), 1U);
  EXPECT_EQ(TakeFromSlot1(), "kept");
}

// Two ends of a stream, of which one is a keeper's stderr, full of what nobody has read.
struct FullStream {
  explicit FullStream(bool is_socket) {
    std::array<int, 2> ends{};
    EXPECT_EQ(is_socket ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data())
                        : pipe2(ends.data(), O_CLOEXEC),
              0);
    reader = UniqueFd(ends[0]);
    writer = UniqueFd(ends[1]);
    fcntl(writer.get(), F_SETFL, O_WRONLY | O_NONBLOCK);
    const std::string junk(4096, 'x');
    while (write(writer.get(), junk.data(), junk.size()) > 0) {
    }
    while (write(writer.get(), junk.data(), 1) > 0) {
    }
    fcntl(writer.get(), F_SETFL, O_WRONLY);  // whoever writes now waits
  }
  // All that was written, without the junk; false when nothing came for a while.
  bool Read(std::string* text) const {
    std::array<char, 4096> bytes{};
    if (!shm::WaitForSocket(reader.get(), POLLIN, 20 * kNsPerSecond)) return false;
    const ssize_t count = read(reader.get(), bytes.data(), bytes.size());
    for (ssize_t i = 0; i < count; ++i) {
      if (bytes[static_cast<size_t>(i)] != 'x') *text += bytes[static_cast<size_t>(i)];
    }
    return count > 0;
  }
  UniqueFd reader, writer;
};

TEST_F(Keeping, ALogThatNobodyReadsKeepsNoKeeperFromStartingMemserver) {
  for (const bool is_socket : {false, true}) {
    FullStream log(is_socket);
    const std::string started = File(is_socket ? "started-socket" : "started-pipe");
    StartKeeper(Starting("echo > " + started + "; exec sleep 1000"), 0, log.writer.get());
    CrashAfterHolding("kept");
    ASSERT_TRUE(Eventually([&] { return !FileText(started).empty(); })) << "it waits for its log";
    EXPECT_EQ(TakeFromSlot1(), "kept");
    EXPECT_EQ(fcntl(log.writer.get(), F_GETFL) & O_NONBLOCK, 0) << "for others it is as it was";

    // When somebody reads again, the next line says what is missing.
    log.writer.Reset();
    std::string text;
    while (shm::WaitForSocket(log.reader.get(), POLLIN, 0) && log.Read(&text)) {
    }
    const auto link = Connect();
    ASSERT_TRUE(link);
    while (text.find("lines of the log were dropped") == std::string::npos)
      ASSERT_TRUE(log.Read(&text)) << text;
    EXPECT_TRUE(link->End().ok());
    EXPECT_EQ(KeeperEnd(5 * kNsPerSecond), kExitOk);
  }
}

TEST_F(Keeping, WithoutAListeningSocketItEndsWithAUsageError) {
  const int end = InChild([&] {
    const int file = open(File("file").c_str(), O_RDWR | O_CREAT, 0600);
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    KeeperOptions options = Holding();
    options.listen_fd = file;
    return RunKeeper(options);
  });
  EXPECT_EQ(end, kExitUsage);
}

}  // namespace keeper_test
}  // namespace tidepool::memserver
