#include "client/request_log.h"

#include <gtest/gtest.h>

#include <vector>

namespace tidepool::client {
namespace request_log_test {

shm::Request Named(uint64_t name) {
  shm::Request request{};
  request.rcache_offset = name;
  return request;
}

class RequestLogTest : public ::testing::Test {
 protected:
  Ticket Add(uint64_t name) {
    shm::Request request = Named(name);
    const Ticket ticket = log_.Add(&request);
    EXPECT_EQ(log_.Find(ticket)->request.counter, request.counter);
    return ticket;
  }
  void Answer(uint64_t counter) {
    RequestLog::Entry* entry = log_.FindUnanswered(counter);
    ASSERT_NE(entry, nullptr) << counter;
    entry->outcome.emplace(Outcome{});
  }
  RequestLog log_;
};

TEST_F(RequestLogTest, TicketsAndCountersAreTheSameForTheFirstRings) {
  for (Ticket ticket = 1; ticket <= 5; ++ticket) {
    EXPECT_EQ(Add(ticket), ticket);
    EXPECT_EQ(log_.FindUnanswered(ticket), log_.Find(ticket));
  }
}

TEST_F(RequestLogTest, AnAnswerIsTakenOnceAndOnlyForACounterInUse) {
  Add(1);
  Add(2);
  Answer(2);
  EXPECT_EQ(log_.FindUnanswered(2), nullptr) << "answered already";
  for (const uint64_t lie : {uint64_t{0}, uint64_t{3}, ~uint64_t{0}})
    EXPECT_EQ(log_.FindUnanswered(lie), nullptr) << lie;
}

TEST_F(RequestLogTest, UnansweredRequestsAreRenumberedInOrderAndMarked) {
  for (uint64_t name = 1; name <= 6; ++name) Add(10 * name);
  Answer(2);
  Answer(5);
  log_.Remove(5);
  const auto requests = log_.Renumber();
  ASSERT_EQ(requests.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(requests[i].counter, i + 1);
    EXPECT_EQ(requests[i].flags, shm::kResubmitted);
    EXPECT_EQ(requests[i].rcache_offset, (std::vector<uint64_t>{10, 30, 40, 60})[i]);
  }
  EXPECT_EQ(log_.FindUnanswered(3), log_.Find(4)) << "the third one sent again";
  EXPECT_EQ(log_.FindUnanswered(5), nullptr);
}

TEST_F(RequestLogTest, RequestsAfterARenumberingGoOnFromIt) {
  for (uint64_t name = 1; name <= 3; ++name) Add(name);
  Answer(1);
  log_.Renumber();
  const Ticket fresh = Add(4);
  EXPECT_EQ(fresh, 4U) << "tickets keep counting";
  EXPECT_EQ(log_.Find(fresh)->request.counter, 3U);
  EXPECT_EQ(log_.Find(fresh)->request.flags, 0U);
  EXPECT_EQ(log_.FindUnanswered(3), log_.Find(fresh));
  Answer(1);  // ticket 2
  EXPECT_TRUE(log_.Find(2)->outcome.has_value());
  const auto again = log_.Renumber();
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(again[0].rcache_offset, 3U);
  EXPECT_EQ(again[1].rcache_offset, 4U);
}

TEST_F(RequestLogTest, ACounterOfTheFormerRingsIsNotTakenForAnother) {
  for (uint64_t name = 1; name <= 3; ++name) Add(name);
  for (uint64_t counter = 1; counter <= 3; ++counter) Answer(counter);
  log_.Renumber();
  for (uint64_t counter = 1; counter <= 3; ++counter)
    EXPECT_EQ(log_.FindUnanswered(counter), nullptr);
}

TEST_F(RequestLogTest, ARequestThatWasNeverSentIsForgotten) {
  Add(1);
  const Ticket second = Add(2);
  log_.TakeBack(second);
  EXPECT_EQ(log_.Find(second), nullptr);
  EXPECT_EQ(Add(3), second);
  EXPECT_EQ(log_.Find(second)->request.counter, 2U);
}

}  // namespace request_log_test
}  // namespace tidepool::client
