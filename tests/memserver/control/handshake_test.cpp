#include "memserver/control/handshake.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "shm/messages.h"
#include "shm/spec/encode.h"

namespace tidepool::memserver {
namespace handshake_test {

shm::JobSpec Spec() {
  shm::JobSpec spec;
  spec.name = "job";
  spec.world = 2;
  spec.rcache_bytes = 8192;
  spec.parameter_groups = {{1.0F, 0.0F}};
  spec.data_groups = {{0b11}};
  spec.chunks = {{64, 0}, {64, 0}};
  spec.parameters = {{"w", {64}, 0, 0, 0, 64}, {"v", {64}, 1, 0, 0, 64}};
  return spec;
}

class HandshakeTest : public ::testing::Test {
 protected:
  Result<FrameAction> Say(shm::Frame frame) { return protocol_.OnFrame(std::move(frame), {}); }
  static shm::HelloFrame Hello(const std::vector<std::byte>& bytes) {
    return {shm::kOwnProtocols,      1,     2, 1,  bytes.size(),
            shm::Fingerprint(bytes), 0xabc, 0, {}, "batch 8"};
  }
  // Through the greeting; the event that comes out of it.
  ReserveJob Greet() {
    const auto bytes = shm::Encode(Spec());
    EXPECT_TRUE(Say(Hello(bytes)).ok());
    const std::vector<std::byte> first(bytes.begin(), bytes.begin() + 10),
        rest(bytes.begin() + 10, bytes.end());
    auto half = Say(shm::SpecPartFrame{first});
    EXPECT_TRUE(half.ok() && !half->event);
    auto whole = Say(shm::SpecPartFrame{rest});
    EXPECT_TRUE(whole.ok() && whole->event) << whole.status().Format();
    return std::get<ReserveJob>(std::move(*whole->event));
  }
  void Open() {
    Greet();
    protocol_.SetState(ConnectionState::kOpen);
  }

  static shm::ResumeFrame Resume() { return {shm::kOwnProtocols, 1, 0x10b, 0xabc, 8192}; }
  // Says it with a descriptor of its own.
  Result<FrameAction> SayResume(const shm::ResumeFrame& frame) {
    std::vector<UniqueFd> fds;
    fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    return protocol_.OnFrame(frame, std::move(fds));
  }

  ConnectionProtocol protocol_{5, getuid(), 1234, 99};
};

TEST_F(HandshakeTest, ACompleteGreetingBecomesOneReservation) {
  EXPECT_TRUE(protocol_.HalfOpen());
  const ReserveJob event = Greet();
  EXPECT_EQ(event.connection, 5U);
  EXPECT_EQ(event.rank, 1U);
  EXPECT_EQ(event.uid, getuid());
  EXPECT_EQ(event.pid, 1234);
  EXPECT_EQ(event.spec->name, "job");
  EXPECT_EQ(event.fingerprint, shm::Fingerprint(shm::Encode(Spec())));
  EXPECT_FALSE(protocol_.HalfOpen());
  EXPECT_EQ(protocol_.state(), ConnectionState::kReserving);
  EXPECT_EQ(event.nonce, 0xabcU);
  EXPECT_EQ(event.process_start, 99U);
  EXPECT_EQ(event.note, "batch 8");
  EXPECT_FALSE(protocol_.resume().has_value());
  EXPECT_FALSE(protocol_.TakeMemory().rcache.valid());
}

TEST_F(HandshakeTest, TheAnswerToAGreetingIsAWelcome) {
  Greet();
  const auto frame = protocol_.AnswerTo({.connection = 5,
                                         .session = 3,
                                         .job = 4,
                                         .sealed_version = 7,
                                         .job_nonce = 0x10b,
                                         .note = "batch 4"});
  ASSERT_TRUE(std::holds_alternative<shm::WelcomeFrame>(frame));
  const auto& welcome = std::get<shm::WelcomeFrame>(frame);
  EXPECT_EQ(welcome.session, 3U);
  EXPECT_EQ(welcome.job, 4U);
  EXPECT_EQ(welcome.sealed_version, 7U);
  EXPECT_EQ(welcome.job_nonce, 0x10bU);
  EXPECT_EQ(welcome.rcache_bytes, 8192U);
  EXPECT_EQ(welcome.note, "batch 4");
}

TEST_F(HandshakeTest, ARankThatComesBackAsksForItsSessionAtOnce) {
  auto said = SayResume(Resume());
  ASSERT_TRUE(said.ok() && said->event) << said.status().Format();
  const auto event = std::get<ResumeSession>(std::move(*said->event));
  EXPECT_EQ(event.connection, 5U);
  EXPECT_EQ(event.rank, 1U);
  EXPECT_EQ(event.job_nonce, 0x10bU);
  EXPECT_EQ(event.nonce, 0xabcU);
  EXPECT_EQ(event.rcache_bytes, 8192U);
  EXPECT_EQ(event.uid, getuid());
  EXPECT_EQ(event.pid, 1234);
  EXPECT_EQ(protocol_.state(), ConnectionState::kReserving);
  EXPECT_FALSE(protocol_.HalfOpen());
  EXPECT_TRUE(protocol_.TakeMemory().rcache.valid());
  EXPECT_FALSE(protocol_.TakeMemory().rcache.valid()) << "once";
  const auto frame = protocol_.AnswerTo({.connection = 5, .session = 9});
  ASSERT_TRUE(std::holds_alternative<shm::ResumedFrame>(frame));
  EXPECT_EQ(std::get<shm::ResumedFrame>(frame).session, 9U);
}

TEST_F(HandshakeTest, AResumeOfAnotherVersionNamesBoth) {
  shm::ResumeFrame frame = Resume();
  frame.protocols = {1, 2};
  const Status status = SayResume(frame).status();
  EXPECT_EQ(status.id(), ErrorId::kAbiMismatch);
  EXPECT_NE(status.what().find("versions 1 to 2"), std::string::npos) << status.Format();
  EXPECT_NE(status.what().find(Text(shm::kOwnProtocols)), std::string::npos) << status.Format();
}

// A trainer of the next release, and one that is one release behind: the session has the version
// that both speak, and the answer says so.
TEST_F(HandshakeTest, TheSessionHasTheHighestVersionThatBothSpeak) {
  const uint32_t own = shm::kOwnProtocols.highest;
  const uint32_t before = shm::kAbiVersionBefore;
  for (const shm::ProtocolRange& client :
       {shm::ProtocolRange{own, own + 3}, shm::ProtocolRange{1, own},
        shm::ProtocolRange{before, before}}) {
    const uint32_t both = std::min(own, client.highest);
    ConnectionProtocol greeted(5, getuid(), 1234, 99), returned(6, getuid(), 1234, 99);
    const auto bytes = shm::Encode(Spec());
    shm::HelloFrame hello = Hello(bytes);
    hello.protocols = client;
    ASSERT_TRUE(greeted.OnFrame(hello, {}).ok());
    ASSERT_TRUE(greeted.OnFrame(shm::SpecPartFrame{bytes}, {}).ok());
    EXPECT_EQ(greeted.agreed(), both);
    EXPECT_EQ(std::get<shm::WelcomeFrame>(greeted.AnswerTo({})).protocol, both);
    shm::ResumeFrame resume = Resume();
    resume.protocols = client;
    std::vector<UniqueFd> fds;
    fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(returned.OnFrame(resume, std::move(fds)).ok());
    EXPECT_EQ(std::get<shm::ResumedFrame>(returned.AnswerTo({})).protocol, both);
  }
}

// --- a rank that brings its rCache ---

std::vector<UniqueFd> Descriptors(size_t count) {
  std::vector<UniqueFd> fds;
  for (size_t i = 0; i < count; ++i) fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return fds;
}

TEST_F(HandshakeTest, WhatARankBringsIsKeptForWhoImportsIt) {
  const auto bytes = shm::Encode(Spec());
  shm::HelloFrame hello = Hello(bytes);
  hello.rcache = {shm::MemoryForm::kVmm, {7}};
  ASSERT_TRUE(protocol_.OnFrame(hello, Descriptors(1)).ok());
  auto said = Say(shm::SpecPartFrame{bytes});
  ASSERT_TRUE(said.ok() && said->event) << said.status().Format();
  EXPECT_TRUE(std::get<ReserveJob>(*said->event).client_owned_rcache);
  const ReturnedMemory memory = protocol_.TakeMemory();
  EXPECT_EQ(memory.kind, hello.rcache);
  EXPECT_TRUE(memory.rcache.valid());
  EXPECT_FALSE(memory.flags.valid()) << "the server makes them";
}

TEST_F(HandshakeTest, ARankThatComesBackBringsItsFlagsToo) {
  shm::ResumeFrame resume = Resume();
  resume.rcache = {shm::MemoryForm::kIpc, {7}};
  resume.flags_base = 44;
  auto said = protocol_.OnFrame(resume, Descriptors(2));
  ASSERT_TRUE(said.ok() && said->event) << said.status().Format();
  EXPECT_TRUE(std::get<ResumeSession>(*said->event).client_owned_rcache);
  const ReturnedMemory memory = protocol_.TakeMemory();
  EXPECT_TRUE(memory.rcache.valid() && memory.flags.valid());
  EXPECT_EQ(memory.flags_base, 44U);
}

TEST_F(HandshakeTest, ResumeIsAFirstWordOnly) {
  ASSERT_TRUE(Say(Hello(shm::Encode(Spec()))).ok());
  EXPECT_EQ(SayResume(Resume()).status().id(), ErrorId::kHandshakeBad);
  protocol_.SetState(ConnectionState::kOpen);
  EXPECT_EQ(SayResume(Resume()).status().id(), ErrorId::kHandshakeBad);
  EXPECT_FALSE(protocol_.TakeMemory().rcache.valid());
}

TEST_F(HandshakeTest, ASecondResumeOrAGreetingAfterItEndsTheConnection) {
  ASSERT_TRUE(SayResume(Resume()).ok());
  EXPECT_EQ(SayResume(Resume()).status().id(), ErrorId::kHandshakeBad);
  EXPECT_EQ(Say(Hello(shm::Encode(Spec()))).status().id(), ErrorId::kHandshakeBad);
}

TEST_F(HandshakeTest, ARankThatCameBackDeclaresSchedulesOfTheJobThatItIsAttachedTo) {
  ASSERT_TRUE(SayResume(Resume()).ok());
  shm::JobSpec spec = Spec();
  spec.chunks.resize(3, spec.chunks[0]);
  EXPECT_TRUE(std::holds_alternative<shm::ResumedFrame>(
      protocol_.AnswerTo({.spec = std::make_shared<const shm::JobSpec>(spec)})));
  protocol_.SetState(ConnectionState::kOpen);
  auto part = Say(shm::SchedulePartFrame{2, {2, 0}});
  ASSERT_TRUE(part.ok() && part->event);
  EXPECT_EQ(*std::get<DeclareSchedule>(*part->event).order, (std::vector<ChunkId>{2, 0, 1}));
  EXPECT_EQ(Say(shm::SchedulePartFrame{2, {0, 77}}).status().id(), ErrorId::kProtocolViolation);
}

TEST_F(HandshakeTest, GreetingAndDescriptionMustNameTheSameNumberOfRanks) {
  const auto bytes = shm::Encode(Spec());
  shm::HelloFrame hello = Hello(bytes);
  hello.world = 3;
  ASSERT_TRUE(Say(hello).ok());
  EXPECT_EQ(Say(shm::SpecPartFrame{bytes}).status().id(), ErrorId::kHandshakeBad);
}

TEST_F(HandshakeTest, WhileTheServerWorksTheTrainerHasNothingToSay) {
  Greet();
  for (const auto state :
       {ConnectionState::kReserving, ConnectionState::kPreparing, ConnectionState::kAttaching}) {
    protocol_.SetState(state);
    EXPECT_EQ(Say(shm::GoodbyeFrame{}).status().id(), ErrorId::kHandshakeBad);
    EXPECT_EQ(Say(shm::SchedulePartFrame{1, {0}}).status().id(), ErrorId::kHandshakeBad);
    EXPECT_EQ(Say(shm::SpecPartFrame{{std::byte{1}}}).status().id(), ErrorId::kHandshakeBad);
  }
}

TEST_F(HandshakeTest, AScheduleInPartsBecomesOneEvent) {
  Open();
  auto part = Say(shm::SchedulePartFrame{3, {0, 1}});
  ASSERT_TRUE(part.ok());
  EXPECT_FALSE(part->event);
  part = Say(shm::SchedulePartFrame{3, {0}});
  ASSERT_TRUE(part.ok() && part->event);
  EXPECT_EQ(*std::get<DeclareSchedule>(*part->event).order, (std::vector<ChunkId>{0, 1}))
      << "each once";
  part = Say(shm::SchedulePartFrame{1, {1}});
  ASSERT_TRUE(part.ok() && part->event) << "a later schedule starts anew";
  EXPECT_EQ(*std::get<DeclareSchedule>(*part->event).order, (std::vector<ChunkId>{1, 0}))
      << "and those that it left out";
}

TEST_F(HandshakeTest, AScheduleThatShrinksUnderItsPartsOrNamesUnknownChunksEndsTheSession) {
  Open();
  ASSERT_TRUE(Say(shm::SchedulePartFrame{5, {0, 1, 0}}).ok());
  EXPECT_EQ(Say(shm::SchedulePartFrame{2, {0, 1}}).status().id(), ErrorId::kProtocolViolation);
  EXPECT_EQ(Say(shm::SchedulePartFrame{5, {2}}).status().id(), ErrorId::kProtocolViolation);
  EXPECT_EQ(Say(shm::SchedulePartFrame{~0U, {0}}).status().id(), ErrorId::kProtocolViolation);
}

TEST_F(HandshakeTest, OneSaveAtATime) {
  Open();
  const auto directory = [] {
    std::vector<UniqueFd> fds;
    fds.emplace_back(open(::testing::TempDir().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    return fds;
  };
  auto first = protocol_.OnFrame(shm::SaveFrame{3, "a"}, directory());
  ASSERT_TRUE(first.ok() && first->event) << first.status().Format();
  EXPECT_EQ(std::get<SaveWeights>(*first->event).version, 3U);
  EXPECT_TRUE(std::get<SaveWeights>(*first->event).directory.valid());
  EXPECT_EQ(protocol_.OnFrame(shm::SaveFrame{3, "b"}, directory()).status().id(),
            ErrorId::kHandshakeBad);
  protocol_.SaveEnded();
  EXPECT_TRUE(protocol_.OnFrame(shm::SaveFrame{3, "b"}, directory()).ok());
}

TEST_F(HandshakeTest, AProcessThatIsNoRankAsksForStatesAndSaysNoMore) {
  auto asked = Say(shm::AskStatesFrame{shm::kOwnProtocols, "gpt"});
  ASSERT_TRUE(asked.ok() && asked->event) << asked.status().Format();
  EXPECT_FALSE(asked->answer) << "the loop knows whether there is such a job";
  const auto& event = std::get<AskStates>(*asked->event);
  EXPECT_EQ(event.connection, 5U);
  EXPECT_EQ(event.uid, getuid());
  EXPECT_EQ(event.job, "gpt");
  EXPECT_NE(event.memory, nullptr);
  EXPECT_FALSE(protocol_.HalfOpen()) << "it waits as long as states come";
  EXPECT_EQ(Say(shm::AskStatesFrame{shm::kOwnProtocols, "gpt"}).status().id(),
            ErrorId::kHandshakeBad);
  EXPECT_EQ(Say(shm::StreamStatesFrame{3}).status().id(), ErrorId::kHandshakeBad);
}

TEST_F(HandshakeTest, StatesAreAskedForFirstAndInAVersionThatHasThem) {
  ConnectionProtocol before(5, getuid(), 1234, 99);
  const auto old = before.OnFrame(
      shm::AskStatesFrame{{shm::kAbiVersionBefore, shm::kAbiVersionBefore}, "gpt"}, {});
  EXPECT_EQ(old.status().id(), ErrorId::kHandshakeBad);
  Open();
  EXPECT_EQ(Say(shm::AskStatesFrame{shm::kOwnProtocols, "gpt"}).status().id(),
            ErrorId::kHandshakeBad);
}

TEST_F(HandshakeTest, GoodbyeIsTheLastWord) {
  Open();
  auto said = Say(shm::GoodbyeFrame{});
  ASSERT_TRUE(said.ok() && said->event);
  EXPECT_EQ(std::get<Goodbye>(*said->event).connection, 5U);
  EXPECT_EQ(Say(shm::GoodbyeFrame{}).status().id(), ErrorId::kHandshakeBad);
}

TEST(SaveDirectory, OfAnotherUserIsAnErrorOfTheSaveNotOfTheSession) {
  const UniqueFd root(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  EXPECT_TRUE(CheckSaveDirectory(root.get(), 0).ok());
  EXPECT_EQ(CheckSaveDirectory(root.get(), 4711).id(), ErrorId::kSaveFailed);
  const UniqueFd readable(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_EQ(CheckSaveDirectory(readable.get(), 0).id(), ErrorId::kProtocolViolation);
  EXPECT_EQ(CheckSaveDirectory(-1, 0).id(), ErrorId::kProtocolViolation);
}

}  // namespace handshake_test
}  // namespace tidepool::memserver
