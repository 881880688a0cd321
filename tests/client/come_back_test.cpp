// MemClient and a server that ends and comes back: what is sent again, what is not, who is waited
// for and how long.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/point.h"
#include "base/random.h"
#include "tests/client/played_session.h"

namespace tidepool::client {
namespace come_back_test {

constexpr int64_t kGoneLimit = 5 * kNsPerSecond;

class ComeBackTest : public PlayedSession {
 protected:
  void SetUp() override {
    options_.server_timeout_ns = 5 * kNsPerSecond;
    options_.on_wait = [this](const std::string& line) { lines_.push_back(line); };
  }

  std::vector<std::string> lines_;
};

// A server of the version before takes a micro-batch in a fetch for a lie.
TEST_F(ComeBackTest, AFetchIntoMemoryThatTheServerMadeSaysNothingOfItsUse) {
  Connect();
  static_cast<void>(client_->StartFetch({0, 0, 64, 10}, {12, 3}));
  EXPECT_EQ(server_.NextRequest()->micro_batch, 0U);
}

TEST_F(ComeBackTest, WhatWasNotAnsweredIsSentAgainInOrderAndMarked) {
  Connect();
  const Ticket a = Fetch(10), b = Fetch(20);
  const Ticket c = client_->StartSubmitGradient({0, 0, 64, 30}, 12, 2).value();
  const Ticket d = Fetch(40);
  const Ticket e =
      client_->StartEndStep({.version = 12, .learning_rate = 0.5F, .data_cursor = 99}).value();
  std::thread thread([&] {
    server_.Answer(4, 104);
    server_.Answer(2, 102);
    server_.Die();
    const shm::ResumeFrame frame = server_.TakeResume();
    EXPECT_EQ(frame.rank, 0U);
    EXPECT_EQ(frame.nonce, hello_.nonce);
    EXPECT_EQ(frame.job_nonce, server_.kJobNonce);
    EXPECT_EQ(frame.rcache_bytes, server_.kRcacheBytes);
    struct stat mine {
    }, sent{};
    ASSERT_EQ(server_.fds.size(), 1U);
    ASSERT_EQ(fstat(server_.rcache().fd(), &mine), 0);
    ASSERT_EQ(fstat(server_.fds[0].get(), &sent), 0);
    EXPECT_EQ(mine.st_ino, sent.st_ino) << "the same memory comes back";
    server_.Resumed(8);
    std::vector<shm::Request> again;
    for (uint64_t i = 1; i <= 3; ++i) {
      const auto request = server_.NextRequest();
      ASSERT_TRUE(request.has_value());
      EXPECT_EQ(request->counter, i);
      EXPECT_TRUE(shm::IsResent(request->flags));
      again.push_back(*request);
    }
    EXPECT_EQ(again[0].rcache_offset, 10U);
    EXPECT_EQ(again[1].op, static_cast<uint32_t>(shm::Op::kSubmitGradient));
    EXPECT_EQ(again[1].micro_batch, 2U);
    EXPECT_EQ(shm::AsEndStep(again[2]).data_cursor, 99U);
    EXPECT_EQ(again[0].flags, shm::kResubmitted) << "a fetch is of no attempt";
    EXPECT_EQ(again[1].flags, shm::kResubmitted | shm::FlagsOfAttempt(0));
    EXPECT_EQ(shm::AsEndStep(again[2]).flags, shm::kResubmitted | shm::FlagsOfAttempt(0));
    for (const uint64_t counter : {3, 1, 2}) server_.Answer(counter, 200 + counter);
  });
  EXPECT_EQ(client_->Wait(c).value().version, 202U);
  thread.join();
  EXPECT_EQ(client_->Wait(a).value().version, 201U);
  EXPECT_EQ(client_->Wait(b).value().version, 102U) << "answered by the server that ended";
  EXPECT_EQ(client_->Wait(d).value().version, 104U);
  EXPECT_EQ(client_->Wait(e).value().version, 203U);
  EXPECT_EQ(client_->attachment().session, 8U);
  const Ticket fresh = Fetch(60);
  EXPECT_EQ(fresh, e + 1);
  const auto request = server_.NextRequest();
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->counter, 4U);
  EXPECT_EQ(request->flags, 0U);
  server_.Answer(4, 7);
  EXPECT_EQ(client_->Wait(fresh).value().version, 7U);
  ASSERT_EQ(lines_.size(), 2U);
  EXPECT_NE(lines_[0].find("5.0 s"), std::string::npos) << lines_[0];
  EXPECT_NE(lines_[1].find("sent again: 3"), std::string::npos) << lines_[1];
}

TEST_F(ComeBackTest, AnAnswerThatNobodyHadTakenIsNotAskedForAgain) {
  Connect();
  const Ticket ticket = Fetch(10);
  server_.Answer(1, 101);
  server_.Die();
  const std::vector<ChunkId> order{0};
  const Status declared = Beside(
      [this] {
        server_.TakeResume();
        server_.Resumed(8);
        EXPECT_TRUE(server_.NextFrame().has_value());
        shm::Request request{};
        EXPECT_EQ(server_.port().Pop(&request), shm::PopResult::kEmpty)
            << "it was answered by the server that ended";
      },
      [&] { return client_->DeclareSchedule(order); });
  EXPECT_TRUE(declared.ok()) << declared.Format();
  auto outcome = client_->Wait(ticket);
  ASSERT_TRUE(outcome.ok()) << outcome.status().Format();
  EXPECT_EQ(outcome->version, 101U);
}

// The server dies after every few answers. Each ticket has exactly one outcome, its own; nothing
// that was answered comes again.
TEST_F(ComeBackTest, ThroughManyDeathsEveryTicketHasItsOwnOutcomeOnce) {
  constexpr uint64_t kRequests = 300;
  Connect();
  uint32_t deaths = 0;
  std::thread thread([&] {
    SplitMix64 random(2);
    std::set<uint64_t> answered;
    bool again = true;  // in this life, requests that were sent before may still come
    while (answered.size() < kRequests) {
      std::vector<shm::Request> held;
      for (uint64_t left = 1 + random.Below(25); left > 0 && answered.size() < kRequests;) {
        shm::Request request{};
        if (held.size() < 4 && server_.port().Pop(&request) == shm::PopResult::kItem) {
          ASSERT_FALSE(answered.contains(request.rcache_offset))
              << request.rcache_offset << " was answered already";
          ASSERT_TRUE(held.empty() || request.rcache_offset > held.back().rcache_offset) << "order";
          again = again && request.flags != 0;
          ASSERT_EQ(request.flags, again ? shm::kResubmitted : 0) << "sent again after a new one";
          held.push_back(request);
        }
        if (held.empty() || (held.size() < 4 && random.Below(3) != 0)) continue;
        const size_t at = random.Below(held.size());
        server_.Answer(held[at].counter, 1000 + held[at].rcache_offset);
        answered.insert(held[at].rcache_offset);
        held.erase(held.begin() + static_cast<ptrdiff_t>(at));
        --left;
      }
      if (answered.size() == kRequests) break;
      server_.Die();
      ++deaths;
      server_.TakeResume();
      server_.Resumed(1 + deaths);
      again = true;
    }
  });
  std::vector<Ticket> tickets;
  for (uint64_t name = 1; name <= kRequests; ++name) {
    tickets.push_back(Fetch(name));
    // 20 in flight; the oldest is awaited first, or the newest.
    if (tickets.size() < 20) continue;
    const auto taken = name % 3 == 0 ? tickets.end() - 1 : tickets.begin();
    const auto outcome = client_->Wait(*taken);
    ASSERT_TRUE(outcome.ok()) << outcome.status().Format();
    EXPECT_EQ(outcome.value().version, 1000 + *taken);
    tickets.erase(taken);
  }
  for (const Ticket ticket : tickets)
    EXPECT_EQ(client_->Wait(ticket).value().version, 1000 + ticket);
  thread.join();
  EXPECT_GT(deaths, 5U);
}

TEST_F(ComeBackTest, AServerThatIsNotReadyOrDiesAgainIsTriedAgain) {
  Connect();
  const Ticket ticket = Fetch(10);
  const auto outcome = Beside(
      [this] {
        server_.Die();
        server_.TakeResume();
        server_.Die();
        server_.RefuseResume(ErrorId::kNotReady);
        server_.RefuseResume(ErrorId::kRankTaken);
        for (const ErrorId lacking :
             {ErrorId::kMemoryMapFailed, ErrorId::kHostMemoryShort, ErrorId::kInternal})
          server_.RefuseResume(lacking);
        server_.TakeResume();
        server_.Resumed(5);
        server_.Die();
        server_.TakeResume();
        server_.Resumed(6);
        EXPECT_EQ(server_.NextRequest()->counter, 1U);
        server_.Answer(1, 3);
      },
      [&] { return client_->Wait(ticket); });
  ASSERT_TRUE(outcome.ok()) << outcome.status().Format();
  EXPECT_EQ(outcome.value().version, 3U);
  EXPECT_EQ(client_->attachment().session, 6U);
}

class FinalRefusalTest : public ComeBackTest, public ::testing::WithParamInterface<ErrorId> {};

INSTANTIATE_TEST_SUITE_P(Reasons, FinalRefusalTest,
                         ::testing::Values(ErrorId::kStatesLost, ErrorId::kPeerLost,
                                           ErrorId::kNotOwner, ErrorId::kAbiMismatch,
                                           ErrorId::kHandshakeBad));

TEST_P(FinalRefusalTest, EndsTheSessionWithItsReason) {
  Connect();
  const Ticket ticket = Fetch(10);
  const auto outcome = Beside(
      [this] {
        server_.Die();
        server_.RefuseResume(GetParam());
      },
      [&] { return client_->Wait(ticket); });
  EXPECT_EQ(outcome.status().id(), GetParam());
  EXPECT_EQ(outcome.status().what(), "the very reason");
  EXPECT_EQ(client_->StartFetch({0, 0, 64, 0}, 12).status().id(), GetParam())
      << "and it stays ended";
}

TEST_F(ComeBackTest, AServerThatStaysAwayEndsTheSessionAtTheLimit) {
  options_.server_timeout_ns = 300 * kNsPerMs;
  Connect();
  const Ticket ticket = Fetch(10);
  server_.StopListening();
  server_.Die();
  const SteadyClock clock;
  const int64_t start = clock.NowNs();
  const Status status = client_->Wait(ticket).status();
  EXPECT_GE(clock.NowNs() - start, 300 * kNsPerMs);
  EXPECT_LT(clock.NowNs() - start, kGoneLimit);
  EXPECT_EQ(status.id(), ErrorId::kServerGone);
  EXPECT_EQ(status.exit_code(), kExitJobKept);
  EXPECT_NE(status.what().find("the job is kept"), std::string::npos) << status.Format();
  EXPECT_NE(status.what().find("within"), std::string::npos)
      << "it says how long it waited: " << status.Format();
  EXPECT_EQ(lines_.size(), 1U);
}

TEST_F(ComeBackTest, AServerThatAcceptsAndNeverAnswersIsUnderTheSameLimit) {
  options_.server_timeout_ns = 200 * kNsPerMs;
  Connect();
  const Ticket ticket = Fetch(10);
  server_.Die();  // its socket still listens: a stopped process
  EXPECT_EQ(client_->Wait(ticket).status().id(), ErrorId::kServerGone);
}

TEST_F(ComeBackTest, AServerThatGoesOnLackingMemoryIsUnderTheSameLimitAndTheJobIsKept) {
  options_.server_timeout_ns = 200 * kNsPerMs;
  Connect();
  const Ticket ticket = Fetch(10);
  const auto outcome = Beside(
      [&] {
        server_.Die();
        server_.RefuseResume(ErrorId::kMemoryMapFailed);
        server_.StopListening();
      },
      [&] { return client_->Wait(ticket); });
  EXPECT_EQ(outcome.status().id(), ErrorId::kServerGone) << outcome.status().Format();
  EXPECT_EQ(outcome.status().exit_code(), kExitJobKept);
}

TEST_F(ComeBackTest, TheTimeOfTheAbsenceIsNotCounted) {
  options_.wait_timeout_ns = 600 * kNsPerMs;
  Connect();
  const Ticket ticket = Fetch(10);
  const auto outcome = Beside(
      [this] {
        server_.Die();
        SteadyClock().SleepNs(900 * kNsPerMs);
        server_.TakeResume();
        server_.Resumed(2);
        SteadyClock().SleepNs(50 * kNsPerMs);
        server_.Answer(1, 4);
      },
      [&] { return client_->Wait(ticket); });
  EXPECT_TRUE(outcome.ok()) << outcome.status().Format();
}

TEST_F(ComeBackTest, AServerThatSaidWhyItEndedTheSessionIsNotWaitedFor) {
  for (const shm::Frame& last :
       {shm::Frame(shm::EndedFrame{Status(ErrorId::kSessionEnded, "kicked")}),
        shm::Frame(shm::PeerLostFrame{3})}) {
    Connect();
    const Ticket ticket = Fetch(10);
    server_.Send(last);
    server_.Die();
    const ErrorId expected =
        std::holds_alternative<shm::EndedFrame>(last) ? ErrorId::kSessionEnded : ErrorId::kPeerLost;
    EXPECT_EQ(client_->Wait(ticket).status().id(), expected);
    EXPECT_EQ(client_->Detach().id(), expected);
    EXPECT_FALSE(server_.ClientWaits(20 * kNsPerMs)) << "nobody came back";
  }
  EXPECT_TRUE(lines_.empty());
}

TEST_F(ComeBackTest, TestingALostServerNeverBlocksAndLeadsToWait) {
  Connect();
  const Ticket ticket = Fetch(10);
  server_.StopListening();
  EXPECT_FALSE(client_->Test(ticket));
  server_.Die();
  SteadyClock clock;
  const int64_t start = clock.NowNs();
  while (!client_->Test(ticket) && clock.NowNs() - start < kGoneLimit) clock.SleepNs(kNsPerMs);
  EXPECT_TRUE(lines_.empty()) << "only Wait waits for the server";
  EXPECT_LT(clock.NowNs() - start, kGoneLimit);
}

TEST_F(ComeBackTest, AScheduleAndASaveInFlightAreSentAgain) {
  Connect();
  ASSERT_TRUE(client_->DeclareSchedule(std::vector<ChunkId>{0, 0, 0}).ok());
  const UniqueFd directory(open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const Status saved = Beside(
      [this] {
        EXPECT_TRUE(std::holds_alternative<shm::SchedulePartFrame>(*server_.NextFrame()));
        EXPECT_TRUE(std::holds_alternative<shm::SaveFrame>(*server_.NextFrame()));
        server_.Die();
        server_.TakeResume();
        server_.Resumed(2);
        const auto schedule = server_.NextFrame();
        ASSERT_TRUE(schedule && std::holds_alternative<shm::SchedulePartFrame>(*schedule));
        EXPECT_EQ(std::get<shm::SchedulePartFrame>(*schedule).order.size(), 3U);
        const auto save = server_.NextFrame();
        ASSERT_TRUE(save && std::holds_alternative<shm::SaveFrame>(*save));
        EXPECT_EQ(std::get<shm::SaveFrame>(*save).name, "x.safetensors");
        EXPECT_EQ(std::get<shm::SaveFrame>(*save).version, 12U);
        EXPECT_EQ(server_.fds.size(), 1U) << "the directory comes along";
        server_.Send(shm::SaveDoneFrame{Status()});
      },
      [&] { return client_->SaveWeights(directory.get(), "x.safetensors", 12); });
  EXPECT_TRUE(saved.ok()) << saved.Format();
}

TEST_F(ComeBackTest, AGoodbyeThatWasNotConfirmedIsSaidAgain) {
  Connect();
  const Status left = Beside(
      [this] {
        EXPECT_TRUE(std::holds_alternative<shm::GoodbyeFrame>(*server_.NextFrame()));
        server_.Die();
        server_.TakeResume();
        server_.Resumed(2);
        EXPECT_TRUE(std::holds_alternative<shm::GoodbyeFrame>(*server_.NextFrame()));
        server_.Send(shm::EndedFrame{Status()});
        server_.Die();
      },
      [this] { return client_->Detach(); });
  EXPECT_TRUE(left.ok()) << left.Format();
  EXPECT_EQ(client_->Detach().id(), ErrorId::kSessionEnded);
}

TEST_F(ComeBackTest, AJobThatIsGoneAfterAGoodbyeWasTakenDown) {
  for (const ErrorId id : {ErrorId::kStatesLost, ErrorId::kPeerLost}) {
    Connect();
    const Status left = Beside(
        [this, id] {
          EXPECT_TRUE(std::holds_alternative<shm::GoodbyeFrame>(*server_.NextFrame()));
          server_.Die();
          server_.RefuseResume(id);
        },
        [this] { return client_->Detach(); });
    EXPECT_TRUE(left.ok()) << left.Format();
  }
}

TEST_F(ComeBackTest, AnAttachThatLosesItsServerStartsOverAsTheSameRank) {
  uint64_t first = 0, second = 0;
  const auto client = Beside(
      [&] {
        first = server_.TakeGreeting().nonce;
        server_.Die();
        server_.TakeGreeting();
        server_.Send(shm::RefusedFrame{Status(ErrorId::kNotReady, "still starting")});
        server_.Die();
        server_.TakeGreeting();  // the memory was being made when another server was to follow
        server_.Send(shm::EndedFrame{
            Status(ErrorId::kNotReady, "memserver is being replaced by another one")});
        server_.Die();
        second = server_.TakeGreeting().nonce;
        server_.Welcome();
      },
      [this] { return MemClient::Connect(options_, server_.Spec(), 0); });
  ASSERT_TRUE(client.ok()) << client.status().Format();
  EXPECT_NE(first, 0U);
  EXPECT_EQ(first, second);
  EXPECT_EQ(lines_.size(), 2U);
}

TEST_F(ComeBackTest, ARankThatIsStillAttachedIsWaitedForWhenAsked) {
  const auto refuse = [this] {
    server_.TakeGreeting();
    server_.Send(shm::RefusedFrame{Status(ErrorId::kRankTaken, "still attached")});
    server_.Die();
  };
  const auto connect = [this] { return MemClient::Connect(options_, server_.Spec(), 0); };
  EXPECT_EQ(Beside(refuse, connect).status().id(), ErrorId::kRankTaken);
  options_.attach_retry = true;
  const auto client = Beside(
      [&] {
        refuse();
        refuse();
        server_.TakeGreeting();
        server_.Welcome();
      },
      connect);
  EXPECT_TRUE(client.ok()) << client.status().Format();
  options_.attach_timeout_ns = 300 * kNsPerMs;
  std::atomic<bool> done{false};
  const auto late = Beside(
      [&] {
        while (!done) {
          if (server_.ClientWaits(10 * kNsPerMs)) refuse();
        }
      },
      [&] {
        auto result = connect();
        done = true;
        return result;
      });
  EXPECT_EQ(late.status().id(), ErrorId::kRankTaken);
}

TEST_F(ComeBackTest, TheWayBackPassesItsPointsInOrder) {
  std::vector<std::string> points;
  SetPointHook([&points](const char* name) { points.emplace_back(name); });
  Connect();
  const Ticket ticket = Fetch(10);
  points.clear();
  const auto outcome = Beside(
      [this] {
        server_.Die();
        server_.TakeResume();
        server_.Resumed(2);
        server_.Answer(1);
      },
      [&] { return client_->Wait(ticket); });
  SetPointHook({});
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(points,
            (std::vector<std::string>{"client.server_lost", "client.resume_sent", "client.resumed",
                                      "client.resubmitted", "client.outcome_taken"}));
}

TEST_F(ComeBackTest, AForkedChildMayNotUseTheSessionAndDoesItNoHarm) {
  Connect();
  const Ticket ticket = Fetch(10);
  const pid_t child = fork();
  if (child == 0) {
    const auto refused = [](const Status& status) {
      return status.id() == ErrorId::kProtocolViolation &&
             status.what().find("forked child") != std::string::npos;
    };
    const bool all = refused(client_->StartFetch({0, 0, 64, 0}, 12).status()) &&
                     client_->Test(ticket) && refused(client_->Wait(ticket).status()) &&
                     refused(client_->DeclareSchedule(std::vector<ChunkId>{0})) &&
                     refused(client_->SaveWeights(0, "x", 12)) && refused(client_->Detach());
    client_.reset();
    _exit(all ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(server_.NextRequest()->rcache_offset, 10U);
  server_.Answer(1, 9);
  EXPECT_EQ(client_->Wait(ticket).value().version, 9U);
  shm::Request more{};
  EXPECT_EQ(server_.port().Pop(&more), shm::PopResult::kEmpty) << "the child sent nothing";
}

}  // namespace come_back_test
}  // namespace tidepool::client
