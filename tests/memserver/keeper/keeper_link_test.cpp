#include "memserver/keeper/keeper_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <csignal>

#include "base/point.h"
#include "memserver/keeper/kept_holder.h"
#include "memserver/keeper/session_spawn.h"
#include "tests/fakes/real_clock.h"
#include "tests/memserver/keeper/keeper_fixture.h"

namespace tidepool::memserver {
namespace keeper_link_test {

using testing::ContentsOf;
using testing::Eventually;
using testing::FileText;
using testing::InChild;
using testing::kLongLeaseMs;
using testing::MakeMemory;

// The program in this test's build folder. (As a definition, its path would differ from build to
// build, and ccache could share nothing of the folder's tests.)
std::string MemserverProgram() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
         "bin/memserver";
}

// The real program as the keeper: started by the link, not by the fixture.
class Linking : public testing::KeeperTest {
 protected:
  KeeperStart Plan() const {
    KeeperStart start;
    start.clock = RealClock();
    start.socket_path = socket_path_;
    start.argv = {"/bin/true"};
    start.no_respawn = true;
    start.lease_ms = kLongLeaseMs;
    start.program = MemserverProgram();
    return start;
  }
  static bool Readable(int fd, int64_t timeout_ns) {
    return shm::WaitForSocket(fd, POLLIN, timeout_ns);
  }
  static bool Lives(pid_t pid) { return kill(pid, 0) == 0; }
  static std::string NameOf(pid_t pid) {
    return FileText("/proc/" + std::to_string(pid) + "/comm");
  }
};

TEST_F(Linking, NobodyListeningIsNoServer) {
  EXPECT_EQ(KeeperLink::Connect(RealClock(), socket_path_).status().id(), ErrorId::kNoServer);
  std::ofstream(socket_path_) << "a stale file";
  EXPECT_EQ(KeeperLink::Connect(RealClock(), socket_path_).status().id(), ErrorId::kNoServer);
}

TEST_F(Linking, StartsAKeeperInASessionOfItsOwnInPlaceOfAStaleSocket) {
  std::ofstream(socket_path_) << "a stale file";
  const auto link = KeeperLink::Start(Plan());
  ASSERT_TRUE(link.ok()) << link.status().Format();
  const pid_t keeper = link.value()->keeper_pid();
  EXPECT_EQ(getsid(keeper), keeper);
  EXPECT_EQ(NameOf(keeper), "tp-keeper\n");
  struct stat about {};
  ASSERT_EQ(stat(socket_path_.c_str(), &about), 0);
  EXPECT_TRUE(S_ISSOCK(about.st_mode));
  EXPECT_EQ(about.st_mode & 0777U, 0600U);
  EXPECT_FALSE(Readable(link.value()->watch_fd(), 0));
  EXPECT_TRUE(link.value()->End().ok());
  EXPECT_FALSE(SocketIsThere());
}

TEST_F(Linking, CtrlCTakesMemserverButNotTheKeeper) {
  const int end = InChild([&] {
    setpgid(0, 0);
    auto link = KeeperLink::Start(Plan());
    const UniqueFd memory = MakeMemory("kept");
    if (!link.ok() || !link.value()->Hold({0, memory.get(), 4}).ok()) return 1;
    std::signal(SIGINT, SIG_DFL);
    kill(0, SIGINT);  // to the whole group, as the terminal does
    return 2;
  });
  ASSERT_EQ(end, 1000 + SIGINT);
  const auto link = Connect();
  ASSERT_TRUE(link);
  auto taken = link->Take();
  ASSERT_EQ(taken.value().size(), 1U);
  EXPECT_EQ(ContentsOf(taken.value()[0].fd.get()), "kept");
  EXPECT_TRUE(link->End().ok());
}

TEST_F(Linking, AProgramThatIsNoKeeperIsAnErrorAndLeavesNoSocket) {
  KeeperStart plan = Plan();
  plan.program = "/bin/false";
  EXPECT_EQ(KeeperLink::Start(plan).status().id(), ErrorId::kKeeperFailed);
  plan.program = File("no-such-program");
  const Status refused = KeeperLink::Start(plan).status();
  EXPECT_EQ(refused.id(), ErrorId::kKeeperFailed);
  EXPECT_NE(refused.Format().find("error[TP2005]: cannot start a program"), std::string::npos)
      << refused.Format();
  EXPECT_FALSE(SocketIsThere());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child was left behind";
}

TEST_F(Linking, AKeeperThatStopsAnsweringIsAnErrorAfterAWhile) {
  KeeperStart plan = Plan();
  plan.wait_ns = 1500 * kNsPerMs;
  auto link = KeeperLink::Start(plan);
  ASSERT_TRUE(link.ok());
  const pid_t keeper = link.value()->keeper_pid();
  kill(keeper, SIGSTOP);
  SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  EXPECT_EQ(link.value()->Take().status().id(), ErrorId::kKeeperFailed);
  EXPECT_GE(clock.NowNs() - begin_ns, plan.wait_ns);
  EXPECT_LT(clock.NowNs() - begin_ns, 2 * kKeeperWaitNs);
  kill(keeper, SIGKILL);
  EXPECT_TRUE(Readable(link.value()->watch_fd(), 5 * kNsPerSecond));
}

// The failure sweep found it on a machine that stood still for six seconds: memserver's wait was
// over before its keeper had run at all.
TEST_F(Linking, AMachineThatStandsStillForLongerThanTheWaitLosesNoKeeper) {
  const std::string program = File("late-keeper");
  std::ofstream(program) << "#!/bin/sh\nkill -STOP $PPID\nsleep 1.6\nkill -CONT $PPID\nexec "
                         << MemserverProgram() << " \"$@\"\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const int end = InChild([&] {
    KeeperStart plan = Plan();
    plan.program = program;
    plan.wait_ns = 1500 * kNsPerMs;
    auto link = KeeperLink::Start(plan);
    return link.ok() && link.value()->End().ok() ? 0 : 1;
  });
  EXPECT_EQ(end, 0);
  EXPECT_FALSE(SocketIsThere());
}

TEST_F(Linking, TheOwnCommandNamesThisProgram) {
  const auto command = OwnCommand();
  ASSERT_FALSE(command.empty());
  EXPECT_EQ(command.front(), std::filesystem::read_symlink("/proc/self/exe"));
}

TEST_F(Linking, AHolderRenewsAKeeperThatWasKilled) {
  KeptHolder holder(KeeperChoice::kProcess, Plan());
  EXPECT_TRUE(holder.Take().value().empty());
  EXPECT_EQ(holder.watch_fd(), -1);
  const UniqueFd index = MakeMemory("index"), pool = MakeMemory("pool");
  const std::array<MemoryToHold, 2> all{MemoryToHold{0, index.get(), 5},
                                        MemoryToHold{1, pool.get(), 4}};
  for (const MemoryToHold& memory : all) ASSERT_TRUE(holder.Hold(memory).ok());
  for (int death = 0; death < 5; ++death) {
    const pid_t keeper = holder.keeper_pid();
    EXPECT_FALSE(Readable(holder.watch_fd(), 0));
    kill(keeper, SIGKILL);
    ASSERT_TRUE(Readable(holder.watch_fd(), 5 * kNsPerSecond));
    const Status renewed = holder.Renew(all);
    ASSERT_TRUE(renewed.ok()) << renewed.Format();
    EXPECT_NE(holder.keeper_pid(), keeper);
    EXPECT_FALSE(Lives(keeper)) << "a zombie";
  }
  // Nobody hears of the last death before the hand-over.
  kill(holder.keeper_pid(), SIGKILL);
  ASSERT_TRUE(Readable(holder.watch_fd(), 5 * kNsPerSecond));
  const Status parted = holder.Part(kLongLeaseMs, all);
  ASSERT_TRUE(parted.ok()) << parted.Format();
  KeptHolder successor(KeeperChoice::kProcess, Plan());
  auto taken = successor.Take();
  ASSERT_TRUE(taken.ok()) << taken.status().Format();
  ASSERT_EQ(taken.value().size(), 2U);
  EXPECT_EQ(ContentsOf(taken.value()[1].fd.get()), "pool");
  successor.End();
  EXPECT_FALSE(SocketIsThere());
}

// Kills memserver when it has started the new keeper, before any of the keeper runs.
TEST_F(Linking, MemoryIsPassedOnBeforeTheNewKeeperRuns) {
  const std::string program = File("keeper-of-a-dead-server");
  std::ofstream(program) << "#!/bin/sh\nkill -KILL $PPID\nexec " << MemserverProgram()
                         << " \"$@\"\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const int end = InChild([&] {
    KeeperStart plan = Plan();
    plan.program = program;
    const UniqueFd index = MakeMemory("index"), pool = MakeMemory("pool");
    const std::array<MemoryToHold, 2> all{MemoryToHold{0, index.get(), 5},
                                          MemoryToHold{1, pool.get(), 4}};
    plan.hold = all;
    return KeeperLink::Start(plan).ok() ? 1 : 2;
  });
  ASSERT_EQ(end, 1000 + SIGKILL);
  const auto link = Connect();
  ASSERT_TRUE(link);
  auto taken = link->Take();
  ASSERT_TRUE(taken.ok()) << taken.status().Format();
  ASSERT_EQ(taken.value().size(), 2U);
  EXPECT_EQ(ContentsOf(taken.value()[1].fd.get()), "pool");
  EXPECT_TRUE(link->End().ok());
}

TEST_F(Linking, AKeeperKilledAtAPointIsRenewedWithoutThePoint) {
  setenv("TIDEPOOL_KILL_AT", "keeper.held", 1);
  KeptHolder holder(KeeperChoice::kProcess, Plan());
  const UniqueFd index = MakeMemory("index");
  const MemoryToHold memory{0, index.get(), 5};
  ASSERT_TRUE(holder.Hold(memory).ok());
  ASSERT_TRUE(Readable(holder.watch_fd(), 5 * kNsPerSecond));
  ASSERT_TRUE(holder.Renew(std::array{memory}).ok());
  EXPECT_FALSE(Readable(holder.watch_fd(), 200 * kNsPerMs));
  unsetenv("TIDEPOOL_KILL_AT");
  holder.End();
}

TEST_F(Linking, AnEndOfMemserverBetweenHoldingAndServingIsACrash) {
  KeeperStart plan = Plan();
  plan.no_respawn = false;
  plan.argv = {"/bin/sh", "-c", "echo $$ >> " + File("pids") + "; exec sleep 1000"};
  const int end = InChild([&] {
    setenv("TIDEPOOL_KILL_AT", "link.hold_sent", 1);
    ArmPointsFromEnvironment();
    KeptHolder holder(KeeperChoice::kProcess, plan);
    const UniqueFd memory = MakeMemory("kept");
    return holder.Hold({1, memory.get(), 4}).ok() ? 1 : 2;
  });
  EXPECT_EQ(end, 1000 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return testing::LinesIn(File("pids")) == 1; }));
  KeptHolder successor(KeeperChoice::kProcess, plan);
  EXPECT_EQ(successor.Take().value().size(), 1U);
  successor.End();
}

// The held memory is new: no job was ever in it.
TEST_F(Linking, AStartThatFailsWithNewMemoryEndsItsKeeper) {
  {
    KeptHolder holder(KeeperChoice::kProcess, Plan());
    const UniqueFd memory = MakeMemory("new");
    ASSERT_TRUE(holder.Hold({1, memory.get(), 3}).ok());
    EXPECT_TRUE(SocketIsThere());
  }
  EXPECT_FALSE(SocketIsThere());
  EXPECT_EQ(KeeperLink::Connect(RealClock(), socket_path_).status().id(), ErrorId::kNoServer);
}

TEST_F(Linking, AStartThatFailsWithMemoryOfAnotherServerIsTriedAgainByTheKeeper) {
  KeeperStart plan = Plan();
  plan.no_respawn = false;
  plan.lease_ms = 50;
  plan.argv = {"/bin/sh", "-c", "echo $$ >> " + File("pids") + "; exec sleep 1000"};
  {
    KeptHolder holder(KeeperChoice::kProcess, plan);
    const UniqueFd memory = MakeMemory("kept");
    ASSERT_TRUE(holder.Hold({1, memory.get(), 4}).ok());
    ASSERT_TRUE(holder.Part(kLongLeaseMs, {}).ok());
  }
  {
    KeptHolder failing(KeeperChoice::kProcess, plan);
    ASSERT_EQ(failing.Take().value().size(), 1U);
  }
  EXPECT_TRUE(Eventually([&] { return testing::LinesIn(File("pids")) == 1; }))
      << "the keeper tries by itself";
  KeptHolder next(KeeperChoice::kProcess, plan);
  const auto taken = next.Take();
  ASSERT_EQ(taken.status().Line(), Status().Line());
  EXPECT_EQ(ContentsOf(taken.value()[0].fd.get()), "kept");
  ASSERT_TRUE(next.Forget().ok());
  EXPECT_TRUE(next.Part(kLongLeaseMs, {}).ok());  // holding nothing, it ends
  EXPECT_TRUE(Eventually([&] { return !SocketIsThere(); }));
}

TEST_F(Linking, AKeeperThatDiedAtTheEndLeavesNoSocketBehind) {
  KeptHolder holder(KeeperChoice::kProcess, Plan());
  const UniqueFd memory = MakeMemory("kept");
  ASSERT_TRUE(holder.Hold({1, memory.get(), 4}).ok());
  kill(holder.keeper_pid(), SIGKILL);
  ASSERT_TRUE(Eventually([&] { return shm::WaitForSocket(holder.watch_fd(), POLLIN, 0); }));
  EXPECT_TRUE(SocketIsThere());
  holder.End();
  EXPECT_FALSE(SocketIsThere());
}

TEST_F(Linking, AnExternalKeeperIsWaitedForAndNeverMade) {
  KeeperStart plan = Plan();
  plan.external_wait_ns = 1;
  KeptHolder holder(KeeperChoice::kExternal, plan);
  const auto taken = holder.Take();
  EXPECT_EQ(taken.status().id(), ErrorId::kNoServer);
  EXPECT_THAT(taken.status().Format(), ::testing::HasSubstr("memserver keeper"));
  const UniqueFd memory = MakeMemory("kept");
  EXPECT_EQ(holder.Hold({1, memory.get(), 4}).id(), ErrorId::kNoServer);
  EXPECT_FALSE(SocketIsThere());
}

TEST_F(Linking, AKeeperThatStaysOutlivesOrderlyEndsAndHoldsForTheNext) {
  KeeperOptions stays{-1, kLongLeaseMs, true, {}};
  stays.stays = true;
  StartKeeper(stays);
  const UniqueFd memory = MakeMemory("kept");
  // Each ends in order, and the next finds the keeper there, with nothing.
  for (int i = 0; i < 2; ++i) {
    KeptHolder holder(KeeperChoice::kExternal, Plan());
    EXPECT_TRUE(holder.Take().value().empty());
    ASSERT_TRUE(holder.Hold({1, memory.get(), 4}).ok());
    holder.End();
  }

  {
    KeptHolder holder(KeeperChoice::kExternal, Plan());
    EXPECT_TRUE(holder.Take().value().empty());
    ASSERT_TRUE(holder.Hold({1, memory.get(), 4}).ok());
    ASSERT_TRUE(holder.Part(kLongLeaseMs, {}).ok());
  }
  KeptHolder next(KeeperChoice::kExternal, Plan());
  EXPECT_EQ(next.Take().value().size(), 1U);
  kill(keeper_, SIGTERM);  // it ends only after its memserver
  EXPECT_TRUE(Eventually(
      [&] { return FileText(File("log")).find("as soon as memserver has") != std::string::npos; }));
  EXPECT_EQ(next.Take().value().size(), 1U);
  next.End();
  int state = 0;
  ASSERT_EQ(waitpid(std::exchange(keeper_, 0), &state, 0) > 0, true);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == kExitOk) << state;
  EXPECT_FALSE(SocketIsThere());
}

TEST_F(Linking, WithNobodyToHoldEverythingSucceedsAndNothingHappens) {
  KeptHolder holder(KeeperChoice::kNone, Plan());
  const UniqueFd memory = MakeMemory("x");
  EXPECT_TRUE(holder.Take().value().empty());
  EXPECT_TRUE(holder.Hold({0, memory.get(), 1}).ok());
  EXPECT_TRUE(holder.Forget().ok());
  EXPECT_TRUE(holder.Renew({}).ok());
  EXPECT_EQ(holder.watch_fd(), -1);
  EXPECT_TRUE(holder.Part(1, {}).ok());
  holder.End();
  EXPECT_FALSE(SocketIsThere());
}

}  // namespace keeper_link_test
}  // namespace tidepool::memserver
