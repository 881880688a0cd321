// A step's trace: lanes, times, and what the traced seams note.
#include "trainer/output/step_trace.h"

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "tests/fakes/fake_clock.h"
#include "trainer/output/traced_seams.h"

namespace tidepool::trainer {
namespace step_trace_test {

struct Slice {
  int64_t lane;
  std::string name;
  double from, length;
  bool operator==(const Slice&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Slice& slice) {
  return out << "lane " << slice.lane << ", " << slice.name << ": " << slice.from << " + "
             << slice.length;
}

std::vector<Slice> SlicesOf(const std::string& json) {
  std::vector<Slice> slices;
  const boost::json::value trace = boost::json::parse(json);
  for (const auto& event : trace.at("traceEvents").as_array()) {
    if (event.at("ph").as_string() != "X") continue;
    slices.push_back({event.at("tid").to_number<int64_t>(),
                      std::string(event.at("name").as_string()), event.at("ts").to_number<double>(),
                      event.at("dur").to_number<double>()});
  }
  return slices;
}

// Answers when it is told to; as a server with or without flags does.
class SlowService final : public client::ChunkService {
 public:
  const client::Attachment& attachment() const override { return attachment_; }
  Result<client::Ticket> StartPutWeights(const client::Range&) override { return ++last_; }
  Result<client::Ticket> StartFetch(const client::Range&, const client::Wanted&) override {
    return ++last_;
  }
  Result<client::Ticket> StartSubmitGradient(const client::Range&, Version, uint32_t) override {
    return ++last_;
  }
  Result<client::Ticket> StartEndStep(const client::StepEnd&) override { return ++last_; }
  client::TicketFlags FlagsOf(client::Ticket ticket) const override {
    return with_flags ? client::TicketFlags{nullptr, &done, ticket} : client::TicketFlags();
  }
  bool Test(client::Ticket) override { return answered; }
  Result<client::Outcome> Wait(client::Ticket) override { return client::Outcome(); }
  Status DeclareSchedule(std::span<const ChunkId>) override { return {}; }
  Status SaveWeights(int, const std::string&, Version) override { return {}; }
  Status Detach() override { return {}; }

  bool answered = false, with_flags = false;
  mutable std::atomic<uint64_t> done{0};

 private:
  client::Attachment attachment_;
  client::Ticket last_ = 0;
};

class StepTraceTest : public ::testing::Test {
 protected:
  void Pass(int64_t micros) { clock_.SleepNs(micros * 1000); }
  std::vector<Slice> Slices() { return SlicesOf(trace_.Render(0)); }

  FakeClock clock_;
  StepTrace trace_{&clock_};
  SlowService real_;
  TracedService service_{&real_, &trace_};
};

TEST_F(StepTraceTest, ForwardAndBackwardFollowEachOther) {
  trace_.BeginStep(3);
  Pass(5);
  trace_.Compute("forward 0");
  Pass(10);
  trace_.Compute("backward 0");
  Pass(20);
  trace_.Compute("");
  Pass(7);
  EXPECT_EQ(Slices(), (std::vector<Slice>{{1, "forward 0", 5, 10}, {1, "backward 0", 15, 20}}));
  const std::string text = trace_.Render(2);
  for (const char* part : {"\"displayTimeUnit\":\"ms\"", "rank 2, step 3", "\"all-gather\"",
                           "\"reduce-scatter\"", "\"Adam\"", "\"H2D\"", "\"D2H\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
}

TEST_F(StepTraceTest, ADevicesMomentsAreLaidFromTheFirst) {
  std::vector<double> moments = {100.0, 100.25, 100.75};
  size_t next = 0;
  DeviceTimer timer;
  timer.begin_step = [&] { next = 0; };
  timer.mark = [&] { return next++; };
  timer.seconds_between = [&](size_t from, size_t to) { return moments[to] - moments[from]; };
  StepTrace trace(&clock_, timer);
  trace.BeginStep(1);
  for (const char* name : {"forward 0", "backward 0", ""}) trace.Compute(name);
  EXPECT_EQ(SlicesOf(trace.Render(0)),
            (std::vector<Slice>{{1, "forward 0", 0, 250000}, {1, "backward 0", 250000, 500000}}));
}

TEST_F(StepTraceTest, CopiesEndWhereTheyAreSeenToEndAndTheUpdateWithTheLastChunk) {
  trace_.BeginStep(1);
  ASSERT_TRUE(service_.Wait(service_.StartEndStep({}).value()).ok());  // sealed
  Pass(4);
  trace_.BeginStep(2);
  const client::Ticket fetch = service_.StartFetch({.chunk = 7}, 1).value();
  Pass(6);
  EXPECT_FALSE(service_.Test(fetch));
  real_.answered = true;
  EXPECT_TRUE(service_.Test(fetch));
  Pass(1);
  const client::Ticket again = service_.StartFetch({.chunk = 7}, 1).value(),
                       submit = service_.StartSubmitGradient({.chunk = 8}, 1, 0).value();
  Pass(2);
  EXPECT_TRUE(service_.Test(again));
  Pass(3);
  EXPECT_TRUE(service_.Wait(submit).ok());
  // From the seal, 4 before the step, to the first fetch of the new version.
  EXPECT_EQ(Slices(), (std::vector<Slice>{{2, "chunk 7", 4, 6},
                                          {2, "chunk 7", 11, 2},
                                          {3, "chunk 8", 11, 5},
                                          {6, "update of step 1", 0, 10}}));
}

TEST_F(StepTraceTest, ACopyThatNobodyAsksForEndsWithItsFlag) {
  real_.with_flags = true;
  trace_.BeginStep(1);
  const client::Ticket first = service_.StartFetch({.chunk = 1}, 0).value();
  Pass(5);
  real_.done = first;
  static_cast<void>(service_.StartFetch({.chunk = 2}, 0));
  EXPECT_EQ(Slices(), (std::vector<Slice>{{2, "chunk 1", 0, 5}}))
      << "the second one is still on its way";
}

TEST_F(StepTraceTest, WhatBeganInAnEarlierStepIsNotShown) {
  trace_.BeginStep(1);
  const StepTrace::Id old = trace_.Begin(TraceLane::kAllGather, "all-gather");
  trace_.BeginStep(2);
  const StepTrace::Id now = trace_.Begin(TraceLane::kReduceScatter, "reduce-scatter");
  Pass(1);
  trace_.End(old);
  EXPECT_TRUE(Slices().empty());
  trace_.End(now);
  EXPECT_EQ(Slices(), (std::vector<Slice>{{5, "reduce-scatter", 0, 1}}));
}

}  // namespace step_trace_test
}  // namespace tidepool::trainer
