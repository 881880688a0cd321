// MemClient of a rank that brings its rCache: what the greeting says, flags of tickets, and what
// becomes of both when a server ends.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>
#include <vector>

#include "shm/spec/encode.h"
#include "tests/client/played_session.h"

namespace tidepool::client {
namespace brought_test {

ino_t InodeOf(int fd) {
  struct stat about {};
  EXPECT_EQ(fstat(fd, &about), 0);
  return about.st_ino;
}

class BroughtTest : public PlayedSession {
 protected:
  static constexpr uint64_t kPoison = shm::kPoisonedFlag;

  void SetUp() override {
    memory_ = UniqueFd(memfd_create("brought", MFD_CLOEXEC));
    options_.brought = BroughtMemory{.form = 2,
                                     .uuid = {7, 7},
                                     .descriptor = memory_.get(),
                                     .data = data_.data(),
                                     .bytes = data_.size()};
  }
  uint64_t Done(Ticket ticket) const { return server_.flags().done(ticket)->load(); }
  // The client notices that the server has died, and comes back.
  void ComeBack(uint32_t session) {
    const Status back = Beside(
        [&] {
          resume_ = server_.TakeResume();
          memories_ = std::move(server_.fds);
          server_.Resumed(session);
        },
        [this] { return client_->Check(); });
    ASSERT_TRUE(back.ok()) << back.Format();
  }

  UniqueFd memory_;
  std::vector<std::byte> data_ = std::vector<std::byte>(testing::PlayedServer::kRcacheBytes);
  shm::ResumeFrame resume_;
  std::vector<UniqueFd> memories_;
};

TEST_F(BroughtTest, TheGreetingBringsTheMemoryInAVersionThatKnowsIt) {
  Connect();
  EXPECT_EQ(hello_.rcache, (shm::RcacheKind{shm::MemoryForm::kIpc, {7, 7}}));
  EXPECT_EQ(hello_.protocols.lowest, shm::kAbiBrought);
  EXPECT_EQ(InodeOf(server_.brought.get()), InodeOf(memory_.get()));
  const Attachment& attachment = client_->attachment();
  EXPECT_EQ(attachment.rcache, data_.data());
  ASSERT_EQ(attachment.flags_bytes, shm::kFlagBytes);
  server_.flags().done(3)->store(99);
  EXPECT_EQ(shm::FlagPages(attachment.flags).done(3)->load(), 99U) << "both map the same pages";
}

TEST_F(BroughtTest, MemoryThatIsTooSmallIsNotEvenSent) {
  options_.brought->bytes = testing::PlayedServer::kRcacheBytes - 1;
  auto client = MemClient::Connect(options_, server_.Spec(), 0);
  EXPECT_EQ(client.status().id(), ErrorId::kJobSpecBad);
}

TEST_F(BroughtTest, EachTicketHasWordsOfItsOwnThatSayItsNumber) {
  Connect();
  const Ticket first = Fetch(0), second = Fetch(256);
  const TicketFlags one = client_->FlagsOf(first), two = client_->FlagsOf(second);
  EXPECT_EQ(one.value, first);
  EXPECT_EQ(two.value, second);
  EXPECT_NE(one.ready, two.ready);
  one.ready->store(one.value);
  EXPECT_TRUE(server_.flags().IsReady(first));
  EXPECT_FALSE(server_.flags().IsReady(second));
  server_.flags().done(second)->store(second);
  EXPECT_EQ(two.done->load(), second);
  EXPECT_EQ(client_->FlagsOf(first + kTicketsMax).ready, one.ready)
      << "a slot is used again behind as many as may be in flight";
}

TEST_F(BroughtTest, AFetchSaysHowManyUsesComeBeforeItsOwn) {
  Connect();
  static_cast<void>(client_->StartFetch({0, 0, 64, 0}, {12, 3}));
  Fetch(256);
  const auto ahead = server_.NextRequest(), now = server_.NextRequest();
  ASSERT_TRUE(ahead && now);
  EXPECT_EQ(shm::UsesAhead(*ahead), 3U);
  EXPECT_EQ(shm::UsesAhead(*now), 0U);
}

TEST_F(BroughtTest, NoStreamWaitsForAServerThatIsGone) {
  Connect();
  const Ticket ticket = Fetch(0);
  server_.Die();
  EXPECT_EQ(client_->Wait(ticket).status().id(), ErrorId::kServerGone);
  for (uint64_t n = 0; n < shm::kFlagSlots; ++n) ASSERT_EQ(Done(n), kPoison) << n;
}

TEST_F(BroughtTest, AnOrderlyEndOfTheSessionEndsWaitsToo) {
  Connect();
  const Ticket ticket = Fetch(0);
  server_.Send(shm::EndedFrame{Status(ErrorId::kCudaFailed, "the GPU failed")});
  EXPECT_EQ(client_->Wait(ticket).status().id(), ErrorId::kCudaFailed);
  EXPECT_EQ(Done(ticket), kPoison);
}

// A server of an earlier version would take the types of the chunks for damage.
TEST_F(BroughtTest, AJobOfSeveralTypesGreetsInAVersionThatKnowsThemAndCountsBytesByThem) {
  shm::JobSpec spec = server_.Spec();
  spec.frozen = {{64, DType::kRaw, HashOf({})}};
  options_.server_timeout_ns = 5 * kNsPerSecond;
  auto connected = Beside(
      [this] {
        hello_ = server_.TakeGreeting();
        server_.Welcome();
      },
      [&] { return MemClient::Connect(options_, spec, 0); });
  ASSERT_TRUE(connected.ok()) << connected.status().Format();
  client_ = std::move(connected).value();
  EXPECT_EQ(hello_.protocols.lowest, shm::kAbiDTypes);

  const Ticket wide = Fetch(0), raw = client_->StartFetch({1, 0, 64, 256}, 12).value();
  for (const Ticket ticket : {wide, raw}) server_.flags().done(ticket)->store(ticket);
  server_.Die();
  ComeBack(8);
  EXPECT_EQ(client_->Wait(wide).value().bytes, 256U);
  EXPECT_EQ(client_->Wait(raw).value().bytes, 64U);
}

// And a gradient of a job that sums has four bytes an element, though its weights have two.
TEST_F(BroughtTest, AJobThatSumsGradientsGreetsInAVersionThatKnowsThemAndCountsFourBytes) {
  shm::JobSpec spec = server_.Spec();
  spec.dtype = DType::kBF16;
  spec.sums_gradients = 1;
  options_.server_timeout_ns = 5 * kNsPerSecond;
  auto connected = Beside(
      [this] {
        hello_ = server_.TakeGreeting();
        server_.Welcome();
      },
      [&] { return MemClient::Connect(options_, spec, 0); });
  ASSERT_TRUE(connected.ok()) << connected.status().Format();
  client_ = std::move(connected).value();
  EXPECT_EQ(hello_.protocols.lowest, shm::kAbiSums);

  const Ticket weights = Fetch(0);
  const Ticket sum = client_->StartSubmitGradient({0, 0, 64, 256}, 12, 0).value();
  for (const Ticket ticket : {weights, sum}) server_.flags().done(ticket)->store(ticket);
  server_.Die();
  ComeBack(8);
  EXPECT_EQ(client_->Wait(weights).value().bytes, 128U);
  EXPECT_EQ(client_->Wait(sum).value().bytes, 256U);
}

TEST_F(BroughtTest, TicketsOfAServerThatEndedAreCarriedOutInTheirOrderWhenTheirStreamsSaySo) {
  options_.server_timeout_ns = 5 * kNsPerSecond;
  Connect();
  const Ticket copied = Fetch(0), second = Fetch(256), third = Fetch(512);
  const uint64_t count = 64;
  server_.flags().done(copied)->store(copied);  // by its stream; it died before it answered
  server_.Die();
  ComeBack(8);
  EXPECT_EQ(resume_.rcache, hello_.rcache);
  ASSERT_EQ(memories_.size(), 2U);
  EXPECT_EQ(InodeOf(memories_[shm::kResumeRcache].get()), InodeOf(memory_.get()));
  EXPECT_EQ(resume_.flags_base, third - 2)
      << "two are sent again; tickets of later requests go on from there";

  auto outcome = client_->Wait(copied);
  ASSERT_TRUE(outcome.ok()) << outcome.status().Format();
  EXPECT_EQ(outcome.value().version, 12U);
  EXPECT_EQ(outcome.value().bytes, count * BytesOf(server_.Spec().dtype))
      << "its copy may have been overwritten since: not asked for again";

  shm::Request request{};
  server_.flags().ready(third)->store(third);
  EXPECT_FALSE(client_->Test(third));
  EXPECT_EQ(server_.port().Pop(&request), shm::PopResult::kEmpty)
      << "the second one's memory is not free yet, and the third comes behind it";
  server_.flags().ready(second)->store(second);
  EXPECT_FALSE(client_->Test(second));
  for (const Ticket ticket : {second, third}) {
    const auto sent = server_.NextRequest();
    ASSERT_TRUE(sent.has_value());
    EXPECT_EQ(sent->counter, ticket - copied);
    EXPECT_EQ(sent->flags, shm::kResubmitted);
    EXPECT_NE(Done(ticket), ticket);
    server_.Answer(sent->counter, 12);
    EXPECT_TRUE(client_->Test(ticket));
    EXPECT_EQ(Done(ticket), ticket)
        << "such a request has no flags at the server: the client writes for it";
  }
  const Ticket later = Fetch(768);
  const auto sent = server_.NextRequest();
  ASSERT_TRUE(sent.has_value());
  EXPECT_EQ(resume_.flags_base + sent->counter, later);
  EXPECT_EQ(client_->FlagsOf(later).value, later);
}

}  // namespace brought_test
}  // namespace tidepool::client
