// How the ranks of one machine meet: again and again, beside other runs, liars and other users.
#include "trainer/comm/meeting/local_meeting.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "tests/not_run.h"
#include "tests/trainer/comm/local_ranks.h"
#include "trainer/comm/meeting/meeting_host.h"
#include "trainer/comm/meeting/meeting_packet.h"
#include "trainer/comm/meeting/peer_socket.h"

namespace tidepool::trainer {
namespace local_meeting_test {

// Until there is one; the meeting is held by another thread or process.
std::string AwaitListener(const Rendezvous& meet) {
  SteadyClock clock;
  for (;;) {
    const std::vector<std::string> names = FindListening(MeetingPrefix(meet.run));
    if (!names.empty()) return names.front();
    clock.SleepNs(kNsPerMs);
  }
}

UniqueFd Connected(const std::string& name) {
  SteadyClock clock;
  for (;;) {
    UniqueFd fd = ConnectAbstract(name);
    if (fd.valid()) return fd;
    clock.SleepNs(kNsPerMs);
  }
}

MeetingPacket HelloOf(const Rendezvous& meet) {
  return {.kind = MeetingPacket::Kind::kHello,
          .rank = meet.rank,
          .world = meet.world,
          .run = meet.run,
          .subject = meet.spec};
}

void ExpectMeets(LocalMeeting& meeting, const Rendezvous& meet) {
  const Status gathered = meeting.Gather();
  ASSERT_TRUE(gathered.ok()) << gathered.Format();
  auto group = meeting.MakeGroup(WholeRun(meet));
  ASSERT_TRUE(group.ok()) << group.status().Format();
  double sum = 1;
  ASSERT_TRUE(group.value()->SumDoubles(&sum, 1).ok());
  EXPECT_EQ(sum, meet.world);
}

TEST(LocalMeetingTest, OneRankAloneMeetsNobody) {
  const Rendezvous meet = PlaceOf(0, 1, "alone");
  LocalMeeting meeting(meet);
  ExpectMeets(meeting, meet);
}

TEST(LocalMeetingTest, GroupsOfSubsetsWorkBesideTheWholeRun) {
  RunRanks(4, "subsets", [](LocalMeeting& meeting, const Rendezvous& meet) {
    ASSERT_TRUE(meeting.Gather().ok());
    auto all = meeting.MakeGroup(WholeRun(meet));
    ASSERT_TRUE(all.ok()) << all.status().Format();
    const bool even = meet.rank % 2 == 0;
    auto half = meeting.MakeGroup(
        {even ? "even" : "odd", even ? std::vector<uint32_t>{0, 2} : std::vector<uint32_t>{1, 3}});
    ASSERT_TRUE(half.ok()) << half.status().Format();
    auto alone = meeting.MakeGroup({"alone" + std::to_string(meet.rank), {meet.rank}});
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(half.value()->rank(), meet.rank / 2);
    EXPECT_EQ(alone.value()->world(), 1U);
    meeting.Disband();  // groups live on
    double in_half = meet.rank, in_all = meet.rank;
    ASSERT_TRUE(half.value()->SumDoubles(&in_half, 1).ok());
    ASSERT_TRUE(all.value()->SumDoubles(&in_all, 1).ok());
    EXPECT_EQ(in_half, even ? 2 : 4);
    EXPECT_EQ(in_all, 6);
  });
}

TEST(LocalMeetingTest, AsManyRanksMeetAsAMachineMayHave) {
  RunRanks(kRanksOfMachineMax, "many",
           [](LocalMeeting& meeting, const Rendezvous& meet) { ExpectMeets(meeting, meet); });
  LocalMeeting more(PlaceOf(0, kRanksOfMachineMax + 1, "more"));
  EXPECT_EQ(more.Gather().id(), ErrorId::kUsageError);
}

// Each rank leaves in turn, as if it had died, and comes back as another process would; the others
// stay.
TEST(LocalMeetingTest, RanksMeetAgain) {
  RunRanks(3, "again", [](LocalMeeting& first, const Rendezvous& meet) {
    for (uint32_t leaves = 0; leaves < 3; ++leaves) {
      ExpectMeets(first, meet);
      first.Disband();
      LocalMeeting again(meet);
      ExpectMeets(leaves == meet.rank ? again : first, meet);
    }
  });
}

TEST(LocalMeetingTest, ARankThatDiesWhileItWaitsMayComeAgain) {
  std::atomic<bool> has_died{false};
  RunRanks(3, "dies", [&has_died](LocalMeeting& meeting, const Rendezvous& meet) {
    if (meet.rank == 1) {
      UniqueFd dies = Connected(AwaitListener(meet));
      ASSERT_EQ(SendPacket(dies.get(), Encode(HelloOf(meet))), PacketResult::kDone);
      dies.Reset();
      has_died = true;
    }
    SteadyClock clock;
    while (meet.rank == 2 && !has_died) clock.SleepNs(kNsPerMs);
    ExpectMeets(meeting, meet);
  });
}

TEST(LocalMeetingTest, ARankThatNeverJoinsIsNamedByAllOthers) {
  RunRanks(3, "missing", [](LocalMeeting&, Rendezvous meet) {
    if (meet.rank == 2) return;
    // Rank 1 hears of it from rank 0, which leaves first.
    meet.gather_timeout_ms = meet.rank == 0 ? 1'500 : 4'000;
    const Status gathered = LocalMeeting(meet).Gather();
    EXPECT_EQ(gathered.id(), ErrorId::kRanksMissing);
    EXPECT_NE(
        gathered.Format().find(meet.rank == 0 ? "rank 2 did not come" : "it had missed rank 2"),
        std::string::npos)
        << gathered.Format();
  });
  Rendezvous alone = PlaceOf(1, 2, "nobody");
  alone.gather_timeout_ms = 100;
  const Status gathered = LocalMeeting(alone).Gather();
  EXPECT_EQ(gathered.id(), ErrorId::kRanksMissing);
  EXPECT_NE(gathered.what().find("rank 0 did not come"), std::string::npos) << gathered.Format();
}

// Rank 0, and one of the others: whoever waits knows that the late one lives, and tells the user so
// when the limit has passed.
TEST(LocalMeetingTest, ARankThatIsOnItsWayIsWaitedForBeyondTheLimit) {
  for (const uint32_t late : {0u, 1u}) {
    std::atomic<bool> is_told{false};
    RunRanks(3, "on its way", [&is_told, late](LocalMeeting&, Rendezvous meet) {
      SteadyClock clock;
      while (meet.rank == late && !is_told) clock.SleepNs(kNsPerMs);
      meet.gather_timeout_ms = 200;
      meet.standing = [](uint32_t) {
        return RankStanding{.kind = RankStanding::Kind::kComing, .pid = 4711};
      };
      meet.say = [&](const std::string& line) {
        EXPECT_NE(line.find("rank " + std::to_string(late) + " (pid 4711)"), std::string::npos)
            << line;
        is_told = true;
      };
      LocalMeeting meeting(meet);
      ExpectMeets(meeting, meet);
    });
  }
}

TEST(LocalMeetingTest, ARankThatHasEndedForGoodEndsTheWaitAtOnce) {
  for (const uint32_t rank : {0u, 1u}) {
    Rendezvous meet = PlaceOf(rank, 2, "ended");
    meet.standing = [](uint32_t) {
      return RankStanding{.kind = RankStanding::Kind::kEnded, .exit_code = 3};
    };
    const Status gathered = LocalMeeting(meet).Gather();
    EXPECT_EQ(gathered.id(), ErrorId::kRanksMissing);
    const std::string why =
        "rank " + std::to_string(1 - rank) + " has ended for good, with exit code 3";
    EXPECT_NE(gathered.Format().find(why), std::string::npos) << gathered.Format();
  }
}

// Rank 0 lives and says no: that is no reason to wait without end.
TEST(LocalMeetingTest, ARankWhosePlaceIsTakenGivesUpThoughRankZeroLives) {
  std::atomic<bool> is_over{false};
  RunRanks(3, "taken", [&is_over](LocalMeeting&, Rendezvous meet) {
    if (meet.rank == 2) return;
    if (meet.rank == 0) {
      meet.interrupted = [&is_over] {
        return is_over ? Status(ErrorId::kPeerLost, "enough") : Status();
      };
      EXPECT_EQ(LocalMeeting(meet).Gather().id(), ErrorId::kPeerLost);
      return;
    }
    const UniqueFd first = Connected(AwaitListener(meet));
    EXPECT_EQ(SendPacket(first.get(), Encode(HelloOf(meet))), PacketResult::kDone);
    meet.gather_timeout_ms = 200;
    meet.standing = [](uint32_t) {
      return RankStanding{.kind = RankStanding::Kind::kComing, .pid = 4711};
    };
    const Status gathered = LocalMeeting(meet).Gather();
    is_over = true;
    EXPECT_EQ(gathered.id(), ErrorId::kRanksMissing);
    EXPECT_NE(gathered.Format().find("another process is rank 1"), std::string::npos)
        << gathered.Format();
  });
}

// Somebody listens as rank 0 does and names ranks that the run does not have.
TEST(LocalMeetingTest, RanksThatThereAreNotAreNotWaitedFor) {
  Rendezvous meet = PlaceOf(1, 2, "no such ranks");
  const UniqueFd listener = ListenAbstract(MeetingPrefix(meet.run) + "1");
  std::atomic<bool> is_over{false};
  std::thread liar([&] {
    std::vector<UniqueFd> visitors;
    MeetingPacket packet = HelloOf(meet);
    packet.kind = MeetingPacket::Kind::kWaiting;
    packet.missing = ~uint64_t{0};
    for (SteadyClock clock; !is_over; clock.SleepNs(kNsPerMs)) {
      UniqueFd visitor = AcceptPeer(listener.get());
      if (!visitor.valid()) continue;
      static_cast<void>(SendPacket(visitor.get(), Encode(packet)));
      visitors.push_back(std::move(visitor));
    }
  });
  meet.gather_timeout_ms = 200;
  const Status gathered = LocalMeeting(meet).Gather();
  is_over = true;
  liar.join();
  EXPECT_EQ(gathered.id(), ErrorId::kRanksMissing);
  EXPECT_NE(gathered.what().find("rank 0 did not come"), std::string::npos) << gathered.Format();
}

TEST(LocalMeetingTest, AWaitForOtherRanksCanBeInterrupted) {
  for (const uint32_t rank : {0u, 1u}) {
    Rendezvous meet = PlaceOf(rank, 2, "interrupted");
    meet.interrupted = [asked = 0]() mutable {
      return ++asked < 3 ? Status() : Status(ErrorId::kPeerLost, "the other rank is dead");
    };
    EXPECT_EQ(LocalMeeting(meet).Gather().id(), ErrorId::kPeerLost);
  }
}

TEST(LocalMeetingTest, AMemberThatLeavesBeforeItsGroupEndsTheOthersWait) {
  RunRanks(2, "no group", [](LocalMeeting& meeting, const Rendezvous& meet) {
    ASSERT_TRUE(meeting.Gather().ok());
    if (meet.rank == 1) return;
    EXPECT_EQ(meeting.MakeGroup(WholeRun(meet)).status().id(), ErrorId::kCollectiveFailed);
  });
}

// The same launcher, address and number of ranks: only the job tells them apart.
TEST(LocalMeetingTest, TwoRunsSideBySideDoNotMeetEachOther) {
  std::thread other([] {
    RunRanks(2, "job a",
             [](LocalMeeting& meeting, const Rendezvous& meet) { ExpectMeets(meeting, meet); });
  });
  RunRanks(2, "job b", [](LocalMeeting& meeting, const Rendezvous& meet) {
    ExpectMeets(meeting, meet);
    EXPECT_EQ(meeting.refused().total(), 0U);
  });
  other.join();
}

TEST(LocalMeetingTest, ARankOfAnotherRunIsRefusedAndTheRunMeets) {
  RunRanks(2, "asked by others", [](LocalMeeting& meeting, const Rendezvous& meet) {
    if (meet.rank == 1) {
      MeetingPacket hello = HelloOf(meet);
      hello.run = HashOfText("a run of another name, which read ours in /proc");
      const UniqueFd stranger = Connected(AwaitListener(meet));
      ASSERT_EQ(SendPacket(stranger.get(), Encode(hello)), PacketResult::kDone);
      pollfd polled{.fd = stranger.get(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(poll(&polled, 1, 60'000), 1);
      std::array<std::byte, kMeetingPacketBytes> bytes;
      UniqueFd none;
      ASSERT_EQ(ReceivePacket(stranger.get(), bytes, &none), PacketResult::kDone);
      const auto answer = DecodeMeetingPacket(bytes);
      ASSERT_TRUE(answer.has_value());
      EXPECT_EQ(answer->kind, MeetingPacket::Kind::kRefused);
      EXPECT_EQ(answer->verdict, MeetingPacket::Verdict::kOtherRun);
    }
    ExpectMeets(meeting, meet);
    EXPECT_EQ(meeting.refused().of_other_runs, meet.rank == 0 ? 1U : 0U);
  });
}

TEST(LocalMeetingTest, ARankWithAnotherSpecificationIsToldSoAndTheRunMeets) {
  RunRanks(2, "specification", [](LocalMeeting& meeting, const Rendezvous& meet) {
    if (meet.rank == 1) {
      Rendezvous other = meet;
      other.spec = HashOfText("--batch 16");
      const Status refused = LocalMeeting(other).Gather();
      EXPECT_EQ(refused.id(), ErrorId::kJobMismatch) << refused.Format();
    }
    ExpectMeets(meeting, meet);
  });
}

TEST(LocalMeetingTest, ASecondProcessOfOneRankIsRefusedAndTheRunMeets) {
  RunRanks(3, "twice", [](LocalMeeting& meeting, const Rendezvous& meet) {
    if (meet.rank == 2) {
      // As rank 1, until that has come by itself.
      Rendezvous twice = meet;
      twice.rank = 1;
      const std::string name = AwaitListener(meet);
      for (bool is_taken = false; !is_taken;) {
        SteadyClock().SleepNs(kNsPerMs);
        const UniqueFd second = Connected(name);
        ASSERT_EQ(SendPacket(second.get(), Encode(HelloOf(twice))), PacketResult::kDone);
        pollfd polled{.fd = second.get(), .events = POLLIN, .revents = 0};
        // No answer: it was before rank 1, is taken for it, and leaves the place again.
        if (poll(&polled, 1, 20) == 0) continue;
        std::array<std::byte, kMeetingPacketBytes> bytes;
        UniqueFd none;
        ASSERT_EQ(ReceivePacket(second.get(), bytes, &none), PacketResult::kDone);
        is_taken = DecodeMeetingPacket(bytes)->verdict == MeetingPacket::Verdict::kRankTaken;
      }
    }
    ExpectMeets(meeting, meet);
  });
}

// Liars of the same user: what they say is cut, long, random, comes with descriptors, or does not
// come at all.
TEST(LocalMeetingTest, LiarsAreRefusedAndTheRunMeets) {
  RunRanks(2, "liars", [](LocalMeeting& meeting, const Rendezvous& meet) {
    std::vector<UniqueFd> silent;
    if (meet.rank == 1) {
      const std::string name = AwaitListener(meet);
      SplitMix64 random(7);
      for (int lie = 0; lie < 400; ++lie) {
        UniqueFd liar = Connected(name);
        auto bytes = Encode(HelloOf(meet));
        // Never the truth: this rank is still to come. Some bytes of a hello mean nothing.
        for (uint64_t flips = 1 + random.Below(6); flips > 0; --flips)
          bytes[random.Below(bytes.size())] ^= static_cast<std::byte>(1 + random.Below(255));
        const auto lie_told = DecodeMeetingPacket(bytes);
        if (lie_told && JudgeHello(HelloOf(meet), *lie_told) == MeetingPacket::Verdict::kWelcome)
          continue;
        std::vector<std::byte> said(bytes.begin(), bytes.end());
        if (random.Below(3) == 0) said.resize(1 + random.Below(300));
        if (random.Below(16) == 0) {
          silent.push_back(std::move(liar));
        } else {
          static_cast<void>(SendPacket(liar.get(), said, random.Below(4) == 0 ? STDIN_FILENO : -1));
        }
      }
    }
    ExpectMeets(meeting, meet);
    EXPECT_GE(meeting.refused().total(), meet.rank == 0 ? 200U : 0U);
  });
}

// --- another user ---

constexpr uid_t kNobody = 65534;

// What a process of another user has managed to do.
struct Loot {
  uint32_t connected = 0;  // the kernel let it in; nothing else may come of it
  uint32_t packets = 0;    // that were said to it
};

// Connects to every meeting it sees, says the right words, and listens where ranks look.
void Attack(const Rendezvous& meet, int stop, Loot* loot) {
  std::vector<UniqueFd> connections, listeners;
  for (uint32_t decoy = 0; decoy < 8; ++decoy)
    listeners.push_back(ListenAbstract(MeetingPrefix(meet.run) + std::to_string(decoy)));
  pollfd stopped{.fd = stop, .events = POLLIN, .revents = 0};
  const auto listen_to = [loot](int socket) {
    std::array<std::byte, kMeetingPacketBytes> bytes;
    UniqueFd fd;
    const PacketResult heard = ReceivePacket(socket, bytes, &fd);
    if (heard == PacketResult::kDone || heard == PacketResult::kMalformed || fd.valid())
      ++loot->packets;
  };
  while (poll(&stopped, 1, 0) == 0) {
    for (const std::string& name : FindListening(MeetingPrefix(meet.run))) {
      const bool is_decoy = name.size() == MeetingPrefix(meet.run).size() + 1;
      if (is_decoy) continue;
      UniqueFd made = ConnectAbstract(name);
      if (!made.valid()) continue;
      ++loot->connected;
      static_cast<void>(SendPacket(made.get(), Encode(HelloOf(meet))));
      connections.push_back(std::move(made));
    }
    for (const UniqueFd& listener : listeners) {
      UniqueFd visitor = AcceptPeer(listener.get());
      if (visitor.valid()) connections.push_back(std::move(visitor));
    }
    for (const UniqueFd& connection : connections) listen_to(connection.get());
    if (connections.size() > 500) connections.erase(connections.begin(), connections.begin() + 250);
  }
}

// A process of another user that attacks as long as it lives.
class OtherUser {
 public:
  explicit OtherUser(const Rendezvous& meet) {
    std::array<int, 2> stop{}, result{};
    if (pipe2(stop.data(), O_CLOEXEC) != 0 || pipe2(result.data(), O_CLOEXEC) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      close(stop[1]);
      Loot loot;
      if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(1);
      Attack(meet, stop[0], &loot);
      const bool told = write(result[1], &loot, sizeof loot) == sizeof loot;
      _exit(told ? 0 : 1);
    }
    close(stop[0]);
    close(result[1]);
    stop_ = UniqueFd(stop[1]);
    result_ = UniqueFd(result[0]);
  }
  ~OtherUser() { Stop(); }

  std::optional<Loot> Stop() {
    if (pid_ <= 0) return std::nullopt;
    stop_.Reset();
    Loot loot;
    const bool told = read(result_.get(), &loot, sizeof loot) == sizeof loot;
    waitpid(std::exchange(pid_, -1), nullptr, 0);
    return told ? std::optional(loot) : std::nullopt;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd stop_, result_;
};

TEST(LocalMeetingTest, AnotherUsersEveryTryIsRefusedAndTheRunMeets) {
  if (geteuid() != 0) return testing::NotRun("root, to become another user");
  OtherUser attacker(PlaceOf(1, 2, "attacked"));  // it knows all that a rank knows
  SteadyClock clock;
  while (FindListening(MeetingPrefix(PlaceOf(0, 2, "attacked").run)).size() < 8)
    clock.SleepNs(kNsPerMs);

  RunRanks(2, "attacked", [](LocalMeeting& meeting, const Rendezvous& meet) {
    // Again and again, until the other user has been at the door, and some times more.
    constexpr int kMost = 1000;
    uint32_t was_tried = 0;
    for (int meetings = 0; meetings < kMost && was_tried < 5; ++meetings) {
      if (meet.rank == 1) SteadyClock().SleepNs(20 * kNsPerMs);
      const Status gathered = meeting.Gather();
      ASSERT_TRUE(gathered.ok()) << gathered.Format();
      auto group = meeting.MakeGroup(WholeRun(meet));
      ASSERT_TRUE(group.ok()) << group.status().Format();
      if (meeting.refused().of_other_users > 0) ++was_tried;
      ASSERT_TRUE(group.value()->Broadcast(&was_tried, sizeof was_tried).ok());
      meeting.Disband();
    }
    EXPECT_EQ(was_tried, 5U);
    EXPECT_EQ(meeting.refused().of_other_runs + meeting.refused().malformed, 0U)
        << "nothing of what it says is read";
  });
  const std::optional<Loot> loot = attacker.Stop();
  ASSERT_TRUE(loot.has_value());
  EXPECT_GT(loot->connected, 0U) << "it has tried";
  EXPECT_EQ(loot->packets, 0U) << "nobody tells it anything";
}

}  // namespace local_meeting_test
}  // namespace tidepool::trainer
