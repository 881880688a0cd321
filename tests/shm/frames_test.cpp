#include "shm/frames.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "shm/flag_pages.h"
#include "shm/spec/job_spec.h"
#include "shm/messages.h"

namespace tidepool::shm {
namespace frames_test {

HelloFrame SoundHello() {
  return {kOwnProtocols, 1, 2, 4711, 1000, 99, 0xabc};
}

ResumeFrame SoundResume() {
  return {kOwnProtocols, 1, 0x10b, 0xabc, 8192};
}

std::vector<Frame> OneOfEach() {
  std::vector<Frame> frames;
  frames.emplace_back(SoundHello());
  frames.emplace_back(SpecPartFrame{std::vector<std::byte>(10, std::byte{3})});
  frames.emplace_back(WelcomeFrame{3, 3, 4, 8192, 1, 2.5F, 7, 8, 9, 10, 11, 12});
  frames.emplace_back(
      RefusedFrame{Status(ErrorId::kPoolFull, "no room").Where("here").Why("because").Fix("more")});
  frames.emplace_back(SchedulePartFrame{5, {4, 3, 2}});
  frames.emplace_back(SaveFrame{12, "model.safetensors"});
  frames.emplace_back(SaveDoneFrame{Status()});
  frames.emplace_back(GoodbyeFrame{});
  frames.emplace_back(EndedFrame{Status(ErrorId::kSessionEnded, "the end")});
  frames.emplace_back(PeerLostFrame{1});
  frames.emplace_back(SoundResume());
  frames.emplace_back(
      HelloFrame{kOwnProtocols, 1, 2, 4711, 1000, 99, 0xabc, 0, {MemoryForm::kIpc, {5}}});
  frames.emplace_back(ResumedFrame{3, 77});
  frames.emplace_back(QueuedFrame{2, Status(ErrorId::kPoolFull, "no room")});
  frames.emplace_back(AskStatesFrame{kOwnProtocols, "gpt"});
  frames.emplace_back(StatesGivenFrame{12, 1000, "batch 8"});
  return frames;
}

template <typename T>
T Through(const T& frame) {
  auto decoded = DecodeFrame(EncodeFrame(frame));
  EXPECT_TRUE(decoded.ok()) << decoded.status().Format();
  return std::get<T>(decoded.value());
}

TEST(Frames, EveryTypeSurvivesTheWireUnchanged) {
  for (const Frame& frame : OneOfEach()) {
    const auto bytes = EncodeFrame(frame);
    const auto decoded = DecodeFrame(bytes);
    ASSERT_TRUE(decoded.ok()) << NameOf(frame) << ": " << decoded.status().Format();
    EXPECT_EQ(decoded.value().index(), frame.index());
    EXPECT_EQ(EncodeFrame(decoded.value()), bytes) << NameOf(frame);
  }
}

TEST(Frames, ARefusalKeepsItsFourParts) {
  const Status why =
      Through(RefusedFrame{
                  Status(ErrorId::kPoolFull, "no room").Where("here").Why("because").Fix("more")})
          .why;
  EXPECT_EQ(why.id(), ErrorId::kPoolFull);
  EXPECT_EQ(
      why.Format(),
      Status(ErrorId::kPoolFull, "no room").Where("here").Why("because").Fix("more").Format());
}

TEST(Frames, AnUnknownErrorNumberBecomesInternal) {
  EXPECT_TRUE(Through(SaveDoneFrame{Status()}).result.ok());
  auto bytes = EncodeFrame(EndedFrame{Status(ErrorId::kSessionEnded, "x")});
  bytes[kFrameHeaderBytes + 2] = std::byte{0xff};
  const auto decoded = DecodeFrame(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<EndedFrame>(decoded.value()).why.id(), ErrorId::kInternal);
}

TEST(Frames, LongTextsAreCutSoThatEveryFrameFitsIntoAPacket) {
  const std::string long_text(100'000, 'x');
  const auto frame = Through(RefusedFrame{
      Status(ErrorId::kPoolFull, long_text).Where(long_text).Why(long_text).Fix(long_text)});
  EXPECT_EQ(frame.why.what().size(), kFrameTextMax);
}

TEST(Frames, AHelloOutOfRangeIsRefused) {
  const auto refused = [](auto change) {
    HelloFrame hello = SoundHello();
    change(&hello);
    return DecodeFrame(EncodeFrame(hello)).status().id() == ErrorId::kHandshakeBad;
  };
  EXPECT_TRUE(refused([](HelloFrame* h) { h->world = 0; }));
  EXPECT_TRUE(refused([](HelloFrame* h) { h->world = kRanksMax + 1; }));
  EXPECT_TRUE(refused([](HelloFrame* h) { h->rank = 2; }));
  EXPECT_TRUE(refused([](HelloFrame* h) { h->spec_bytes = kSpecBytesMax + 1; }));
  EXPECT_TRUE(refused([](HelloFrame* h) { h->nonce = 0; }));
  EXPECT_FALSE(refused([](HelloFrame* h) {
    h->protocols = {77, 78};
  })) << "another version must reach the place that can name both";
}

TEST(Frames, AHelloKeepsTheFlagsThatAreKnown) {
  HelloFrame hello = SoundHello();
  EXPECT_EQ(Through(hello).flags, 0u);
  hello.flags = kHelloMayWait | 0x100;
  EXPECT_EQ(Through(hello).flags, kHelloMayWait);
}

TEST(Frames, AResumeOutOfRangeIsRefused) {
  const auto refused = [](auto change) {
    ResumeFrame resume = SoundResume();
    change(&resume);
    return DecodeFrame(EncodeFrame(resume)).status().id() == ErrorId::kHandshakeBad;
  };
  EXPECT_TRUE(refused([](ResumeFrame* r) { r->rank = kRanksMax; }));
  EXPECT_TRUE(refused([](ResumeFrame* r) { r->nonce = 0; }));
  EXPECT_TRUE(refused([](ResumeFrame* r) { r->rcache_bytes = 0; }));
  EXPECT_FALSE(refused([](ResumeFrame* r) { r->job_nonce = 0; }))
      << "the loop knows no such job, and says so";
  EXPECT_FALSE(refused([](ResumeFrame* r) { r->protocols = {77, 77}; }));
}

// --- an rCache that the rank brings ---

HelloFrame BroughtHello() {
  HelloFrame hello = SoundHello();
  hello.rcache = {MemoryForm::kVmm, {1, 2, 3}};
  return hello;
}
ResumeFrame BroughtResume() {
  ResumeFrame resume = SoundResume();
  resume.rcache = {MemoryForm::kIpc, {1, 2, 3}};
  resume.flags_base = 600;
  return resume;
}

TEST(Frames, WhatARankBringsSurvivesTheWireAndTellsHowManyDescriptorsCome) {
  EXPECT_EQ(Through(BroughtHello()).rcache, BroughtHello().rcache);
  EXPECT_EQ(Through(BroughtResume()).rcache, BroughtResume().rcache);
  EXPECT_EQ(Through(BroughtResume()).flags_base, 600U);
  EXPECT_EQ(FdsOf(SoundHello()), 0U);
  EXPECT_EQ(FdsOf(BroughtHello()), 1U);
  EXPECT_EQ(FdsOf(SoundResume()), 1U);
  EXPECT_EQ(FdsOf(BroughtResume()), 2U);
}

TEST(Frames, ABroughtRcacheOutOfRangeIsRefused) {
  const auto refused = [](const Frame& frame) {
    return DecodeFrame(EncodeFrame(frame)).status().id() == ErrorId::kHandshakeBad;
  };
  HelloFrame hello = BroughtHello();
  hello.rcache.form = static_cast<MemoryForm>(kMemoryFormMax + 1);
  EXPECT_TRUE(refused(hello));
  hello.rcache = {MemoryForm::kVmm, {}};
  EXPECT_TRUE(refused(hello)) << "of no GPU";
  hello.rcache = {MemoryForm::kHost, {1}};
  EXPECT_TRUE(refused(hello)) << "the host's has no uuid";
  ResumeFrame resume = BroughtResume();
  resume.flags_base = kFlagsBaseMax + 1;
  EXPECT_TRUE(refused(resume));
  resume = SoundResume();
  resume.flags_base = 1;
  EXPECT_TRUE(refused(resume)) << "a session on the host has no flags";
}

TEST(Frames, WhatARunIsKnownByIsSaidBothWays) {
  HelloFrame hello = SoundHello();
  hello.note = std::string(kRunNoteMax, 'n');
  EXPECT_EQ(Through(hello).note, hello.note);
  hello.note += "n";
  EXPECT_EQ(DecodeFrame(EncodeFrame(hello)).status().id(), ErrorId::kHandshakeBad);
  WelcomeFrame welcome{kAbiNote};
  welcome.note = "batch 8\n";
  EXPECT_EQ(Through(welcome).note, "batch 8\n");
  welcome.protocol = kAbiNote - 1;
  EXPECT_EQ(Through(welcome).note, "");
}

TEST(Frames, TheOpenAttemptIsSaidInWelcomeSinceRequestsNameIt) {
  WelcomeFrame welcome{kAbiAttempt};
  welcome.note = "batch 8\n";
  welcome.attempt = 5;
  EXPECT_EQ(Through(welcome).attempt, 5U);
  EXPECT_EQ(Through(welcome).note, "batch 8\n");
  const size_t said = EncodeFrame(welcome).size();
  welcome.protocol = kAbiAttempt - 1;
  EXPECT_EQ(EncodeFrame(welcome).size(), said - 4);
  EXPECT_EQ(Through(welcome).attempt, 0U);
}

TEST(Attempts, AreNamedInFlagsBesideTheMarkOfBeingSentAgain) {
  EXPECT_EQ(AttemptIn(0), std::nullopt);
  EXPECT_EQ(AttemptIn(kResubmitted), std::nullopt) << "a request may name none";
  for (const uint32_t attempt : {0U, 1U, kAttemptMask}) {
    EXPECT_EQ(AttemptIn(FlagsOfAttempt(attempt)), attempt);
    EXPECT_EQ(AttemptIn(FlagsOfAttempt(attempt) | kResubmitted), attempt);
    EXPECT_FALSE(IsResent(FlagsOfAttempt(attempt)));
    EXPECT_TRUE(IsResent(FlagsOfAttempt(attempt) | kResubmitted));
  }
}

TEST(Attempts, GoRound) {
  EXPECT_EQ(AttemptAfter(0), 1U);
  EXPECT_EQ(AttemptAfter(kAttemptMask), 0U);
  EXPECT_FALSE(IsBefore(3, 3));
  EXPECT_TRUE(IsBefore(2, 3));
  EXPECT_FALSE(IsBefore(3, 2));
  EXPECT_TRUE(IsBefore(kAttemptMask, 0)) << "one turn later";
  EXPECT_FALSE(IsBefore(0, kAttemptMask));
}

TEST(Frames, AVersionBeforeItSaysAndReadsNothingOfIt) {
  HelloFrame hello = SoundHello();
  ResumeFrame resume = SoundResume();
  const size_t greeting = EncodeFrame(hello).size(), coming_back = EncodeFrame(resume).size();
  hello.protocols = resume.protocols = {kAbiVersionBefore, kAbiVersionBefore};
  hello.note = "batch 8";
  EXPECT_EQ(EncodeFrame(hello).size(), greeting - 20 - 4)
      << "form and uuid, and how long the note is";
  EXPECT_EQ(Through(hello).note, "");
  EXPECT_EQ(EncodeFrame(resume).size(), coming_back - 28) << "and the base of its flags";
  EXPECT_EQ(Through(hello).rcache, RcacheKind{});
  EXPECT_EQ(Through(resume).nonce, resume.nonce);
}

TEST(FlagPages, AWordIsReachedCyclicallyAndAPoisonedOneAlways) {
  alignas(64) static std::array<std::byte, kFlagBytes> pages{};
  const FlagPages flags(pages.data());
  EXPECT_FALSE(flags.IsReady(1));
  flags.ready(513)->store(1);
  EXPECT_TRUE(flags.IsReady(1));
  EXPECT_FALSE(flags.IsReady(513)) << "the same slot, one turn later";
  EXPECT_FALSE(flags.IsDone(1)) << "another page";
  flags.PoisonDone();
  EXPECT_TRUE(flags.IsDone(1) && flags.IsDone(511) && flags.IsDone(kFlagsBaseMax));
  EXPECT_TRUE(FlagPages().is_null());
}

// Sets the payload's length behind a change of its bytes.
std::vector<std::byte> WithLength(std::vector<std::byte> bytes) {
  const auto length = static_cast<uint32_t>(bytes.size() - kFrameHeaderBytes);
  std::memcpy(bytes.data() + 8, &length, sizeof length);
  return bytes;
}

// Before version 3 a greeting began with one number; what follows it is not ours to read.
TEST(Frames, AGreetingOfAFormerVersionIsReadFarEnoughToNameIt) {
  for (const uint32_t second_word : {0U, 5U}) {
    auto bytes = EncodeFrame(SoundHello());
    const std::array<uint32_t, 2> words{2, second_word};
    std::memcpy(bytes.data() + kFrameHeaderBytes, words.data(), sizeof words);
    bytes.erase(bytes.end() - sizeof(uint64_t), bytes.end());
    const auto decoded = DecodeFrame(WithLength(bytes));
    ASSERT_TRUE(decoded.ok()) << decoded.status().Format();
    EXPECT_EQ(std::get<HelloFrame>(decoded.value()).protocols, (ProtocolRange{2, 2}));
  }
}

TEST(Frames, ANewerClientMaySayMoreBehindWhatIsKnown) {
  const std::array<std::byte, 12> more{};
  const auto with_more = [&more](Frame frame) {
    auto bytes = EncodeFrame(frame);
    bytes.insert(bytes.end(), more.begin(), more.end());
    return DecodeFrame(WithLength(bytes));
  };
  HelloFrame hello = SoundHello();
  ResumeFrame resume = SoundResume();
  EXPECT_FALSE(with_more(hello).ok()) << "of this version nothing follows";
  EXPECT_FALSE(with_more(resume).ok());
  hello.protocols.highest = resume.protocols.highest = kOwnProtocols.highest + 1;
  const auto greeted = with_more(hello);
  ASSERT_TRUE(greeted.ok()) << greeted.status().Format();
  EXPECT_EQ(std::get<HelloFrame>(greeted.value()).nonce, hello.nonce);
  const auto resumed = with_more(resume);
  ASSERT_TRUE(resumed.ok()) << resumed.status().Format();
  EXPECT_EQ(std::get<ResumeFrame>(resumed.value()).nonce, resume.nonce);
  hello.nonce = 0;
  EXPECT_FALSE(with_more(hello).ok()) << "what is known is checked as ever";
}

TEST(Protocols, TheHighestThatBothSpeakIsAgreedOn) {
  EXPECT_EQ(Agreed({3, 3}, {3, 3}), 3U);
  EXPECT_EQ(Agreed({3, 4}, {3, 3}), 3U);
  EXPECT_EQ(Agreed({3, 5}, {2, 4}), 4U);
  EXPECT_EQ(Agreed({2, 4}, {3, 5}), 4U);
  EXPECT_EQ(Agreed({2, 3}, {4, 5}), std::nullopt);
  EXPECT_EQ(Agreed({4, 5}, {2, 3}), std::nullopt);
  EXPECT_EQ(Text({3, 3}), "version 3");
  EXPECT_EQ(Text({3, 5}), "versions 3 to 5");
  EXPECT_TRUE(kOwnProtocols.Has(kAbiVersion)) << "what the headers of this folder describe";
}

TEST(Frames, AScheduleThatLiesAboutItsLengthIsRefused) {
  for (const auto& [count, total] : {std::pair{4U, 5U}, std::pair{2U, 5U}, std::pair{0U, 5U},
                                     std::pair{3U, 2U}, std::pair{~0U, ~0U}}) {
    auto bytes = EncodeFrame(SchedulePartFrame{5, {4, 3, 2}});
    std::memcpy(bytes.data() + kFrameHeaderBytes, &total, sizeof total);
    std::memcpy(bytes.data() + kFrameHeaderBytes + 4, &count, sizeof count);
    EXPECT_FALSE(DecodeFrame(bytes).ok()) << count << " of " << total;
  }
}

TEST(Frames, OnlyPlainFileNamesAreAccepted) {
  for (const char* name : {"model.safetensors", "a", "...", "with space"})
    EXPECT_TRUE(IsPlainFileName(name)) << name;
  for (const char* name : {"", ".", "..", "a/b", "/etc/passwd", "../x", "a\nb"}) {
    EXPECT_FALSE(IsPlainFileName(name)) << name;
    EXPECT_FALSE(DecodeFrame(EncodeFrame(SaveFrame{1, name})).ok()) << name;
  }
  EXPECT_FALSE(IsPlainFileName(std::string(kFileNameMax + 1, 'a')));
  EXPECT_FALSE(IsPlainFileName(std::string("a\0b", 3)));
}

TEST(Frames, EveryCutAndEveryExtensionIsRefused) {
  for (const Frame& frame : OneOfEach()) {
    const auto bytes = EncodeFrame(frame);
    for (size_t length = 0; length < bytes.size(); ++length)
      ASSERT_FALSE(DecodeFrame(std::span(bytes).first(length)).ok());
    auto longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(DecodeFrame(longer).ok()) << NameOf(frame);
  }
}

TEST(Frames, UnknownTypesAndStrangersAreRefused) {
  auto bytes = EncodeFrame(GoodbyeFrame{});
  bytes[4] = std::byte{13};
  EXPECT_FALSE(DecodeFrame(bytes).ok());
  bytes[4] = std::byte{0};
  EXPECT_FALSE(DecodeFrame(bytes).ok());
  const std::string http = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_FALSE(DecodeFrame(std::as_bytes(std::span(http))).ok());
}

TEST(Frames, RandomDamageIsRefusedOrDecodesToAFrameThatCanBeEncoded) {
  SplitMix64 random(5);
  const auto frames = OneOfEach();
  for (int round = 0; round < 50'000; ++round) {
    auto bytes = EncodeFrame(frames[random.Below(frames.size())]);
    for (uint64_t i = 0; i < 1 + random.Below(3); ++i)
      bytes[random.Below(bytes.size())] = static_cast<std::byte>(random.Next());
    const auto decoded = DecodeFrame(bytes);
    if (decoded.ok()) {
      ASSERT_FALSE(EncodeFrame(decoded.value()).empty());
    }
  }
}

TEST(Frames, DescriptorsComeOnlyWithTheFramesThatNeedThem) {
  uint32_t sum = 0;
  for (const Frame& frame : OneOfEach()) sum += FdsOf(frame);
  EXPECT_EQ(sum, 12U);
  EXPECT_EQ(FdsOf(Frame(WelcomeFrame{})), 4U);
  EXPECT_EQ(FdsOf(Frame(SaveFrame{})), 1U);
  EXPECT_EQ(FdsOf(Frame(ResumeFrame{})), 1U);
  EXPECT_EQ(FdsOf(Frame(ResumedFrame{})), 3U);
  EXPECT_EQ(FdsOf(Frame(StatesGivenFrame{})), 2U);
}

}  // namespace frames_test
}  // namespace tidepool::shm
