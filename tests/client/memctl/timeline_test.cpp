// memctl timeline: the trace is JSON in the form that trace viewers read, and says what the looks
// saw; and recordings are read again.
#include "client/memctl/commands/timeline.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tidepool::client {
namespace timeline_test {

namespace json = boost::json;

// One job "gpt" (number 7), looked at.
RunMoment At(double seconds, uint64_t version, const char* phase, uint64_t waited = 0) {
  RunMoment moment;
  moment.status.uptime_seconds = seconds;
  moment.status.pool_used = 100 * version;
  moment.status.bytes_h2d = 1000 * static_cast<uint64_t>(seconds);
  ResidencyJob job;
  job.id = 7;
  job.name = "gpt";
  job.state = "training";
  job.version = version;
  job.phase = phase;
  job.fetches = 9;
  job.fetches_waited = waited;
  job.fetch_wait_seconds = 0.25;
  moment.residency.jobs = {job};
  return moment;
}

json::array EventsOf(const std::string& text) {
  boost::system::error_code error;
  const json::value trace = json::parse({text.data(), text.size()}, error);
  EXPECT_FALSE(error) << error.message();
  EXPECT_EQ(trace.at("displayTimeUnit").as_string(), "ms");
  return trace.at("traceEvents").as_array();
}

// "NAME from+length" of every slice of a lane, in order.
std::vector<std::string> SlicesOf(const json::array& events, int64_t lane) {
  std::vector<std::string> slices;
  for (const json::value& event : events) {
    if (event.at("ph").as_string() != "X" || event.at("tid").to_number<int64_t>() != lane) continue;
    EXPECT_EQ(event.at("pid").to_number<int64_t>(), 7);
    slices.push_back(std::string(event.at("name").as_string()) + " " +
                     std::to_string(event.at("ts").to_number<int64_t>()) + "+" +
                     std::to_string(event.at("dur").to_number<int64_t>()));
  }
  return slices;
}

using Names = std::vector<std::string>;
const std::vector<RunMoment> kRun{At(10, 3, "forward"),  At(11, 3, "backward"),
                                  At(12, 3, "backward"), At(13, 4, "forward", 2),
                                  At(14, 7, "backward"), At(15, 7, "backward")};

TEST(Timeline, StepsAndPhasesLastFromLookToLook) {
  const json::array events = EventsOf(RenderTimeline(kRun));
  EXPECT_EQ(SlicesOf(events, 1),
            (Names{"step 3 0+3000000", "steps 4 to 6 3000000+1000000", "step 7 4000000+1000000"}));
  EXPECT_EQ(SlicesOf(events, 2), (Names{"forward 0+1000000", "backward 1000000+2000000",
                                        "forward 3000000+1000000", "backward 4000000+1000000"}));
}

TEST(Timeline, EveryEventHasWhatAViewerNeeds) {
  uint64_t counters = 0, marks = 0;
  Names names;
  for (const json::value& event : EventsOf(RenderTimeline(kRun))) {
    const std::string kind(event.at("ph").as_string());
    EXPECT_TRUE(event.at("pid").is_number() && event.at("tid").is_number() &&
                event.at("name").is_string())
        << json::serialize(event);
    if (kind == "M") {
      names.emplace_back(event.at("args").at("name").as_string());
      continue;
    }
    EXPECT_GE(event.at("ts").to_number<double>(), 0);
    if (kind == "C") ++counters;
    for (const auto& [key, value] : kind == "C" ? event.at("args").as_object() : json::object())
      EXPECT_TRUE(value.is_number()) << key;
    if (kind == "i") {
      ++marks;
      EXPECT_EQ(event.at("name").as_string(), "2 fetches waited, 250 ms together");
      EXPECT_EQ(event.at("s").as_string(), "t");
    }
  }
  EXPECT_EQ(names, (Names{"memserver", "job gpt", "steps", "phases"}));
  EXPECT_EQ(counters, 6u * 2 + 5u * 2) << "pool and rCaches at each look, two rates between two";
  EXPECT_EQ(marks, 1u);
}

TEST(Timeline, RatesAreThoseBetweenTwoLooksAndAServerThatBeganAgainHasNone) {
  std::vector<RunMoment> run{At(10, 3, "forward"), At(12, 3, "forward")};
  run[1].status.bytes_d2h = 0;
  run[0].status.bytes_d2h = 5;
  for (const json::value& event : EventsOf(RenderTimeline(run))) {
    if (event.at("name").as_string() != "copies, bytes/s") continue;
    EXPECT_EQ(event.at("args").at("to ranks").to_number<uint64_t>(), 1000u);
    EXPECT_EQ(event.at("args").at("from ranks").to_number<uint64_t>(), 0u);
  }
}

TEST(Timeline, AJobThatGoesEndsItsStepAndOneLookIsATraceToo) {
  std::vector<RunMoment> run{At(10, 3, "forward"), At(11, 3, "forward"), At(12, 3, "forward")};
  run[2].residency.jobs.clear();
  EXPECT_EQ(SlicesOf(EventsOf(RenderTimeline(run)), 1), (Names{"step 3 0+2000000"}));
  EXPECT_EQ(SlicesOf(EventsOf(RenderTimeline({run[0]})), 1), (Names{"step 3 0+0"}));
}

class Recording : public ::testing::Test {
 protected:
  ~Recording() override { std::filesystem::remove(path_); }
  Status Read(const std::string& text) {
    std::ofstream(path_) << text;
    Invocation invocation;
    invocation.from = path_;
    return MomentsFor(invocation).status();
  }
  const std::string path_ = ::testing::TempDir() + "tp-recording-" + std::to_string(getpid());
};

TEST_F(Recording, WhatIsNoneOrHoldsNothingIsRefusedWithItsPath) {
  for (const char* text :
       {"", "{}\n", "{\"tidepool_recording\":1}\n", "{\"tidepool_recording\":2}\n{}\n{}\n{}\n",
        "{\"tidepool_recording\":1}\n{}\n{}\n{}\n"}) {
    const Status status = Read(text);
    EXPECT_EQ(status.id(), ErrorId::kHandshakeBad) << text;
    EXPECT_EQ(status.where(), path_);
  }
  std::filesystem::remove(path_);
  Invocation none;
  none.from = path_;
  EXPECT_EQ(MomentsFor(none).status().id(), ErrorId::kFileUnreadable);
}

TEST(Timeline, OneStepIsCutOutOfTheLooks) {
  auto looks = LooksOfStep(kRun, "4");
  ASSERT_TRUE(looks.ok()) << looks.status().Format();
  EXPECT_EQ(looks->remark, "");
  EXPECT_EQ(SlicesOf(EventsOf(RenderTimeline(looks->moments)), 1), Names{"steps 4 to 6 0+1000000"})
      << "4, 5 and 6 ended between two looks";
  looks = LooksOfStep(kRun, "3");
  ASSERT_TRUE(looks.ok());
  EXPECT_EQ(looks->remark, "job gpt: the beginning of step 3 was not seen\n");
  EXPECT_EQ(SlicesOf(EventsOf(RenderTimeline(looks->moments)), 1), Names{"step 3 0+3000000"});
  looks = LooksOfStep(kRun, "7");
  ASSERT_TRUE(looks.ok());
  EXPECT_EQ(looks->remark, "job gpt: the end of step 7 was not seen\n");
  looks = LooksOfStep(kRun, "last");
  ASSERT_TRUE(looks.ok());
  EXPECT_EQ(SecondsOf(looks->moments.front()), 13);
  EXPECT_EQ(SecondsOf(looks->moments.back()), 14);
}

TEST(Timeline, AStepThatNobodySawIsAnError) {
  const Status missing = LooksOfStep(kRun, "12").status();
  EXPECT_EQ(missing.exit_code(), kExitNotFound);
  EXPECT_EQ(missing.why(), "job gpt: steps 3 to 7");
  EXPECT_EQ(LooksOfStep({kRun[0], kRun[1]}, "last").status().exit_code(), kExitNotFound);
  EXPECT_EQ(LooksOfStep({RunMoment{}}, "1").status().why(), "there was no job");
}

TEST(Timeline, OfSeveralJobsThoseThatHadTheStepAreShown) {
  std::vector<RunMoment> run{At(0, 1, "forward"), At(1, 2, "forward"), At(2, 3, "forward")};
  for (RunMoment& moment : run) {
    moment.residency.jobs.push_back(moment.residency.jobs[0]);
    moment.residency.jobs[1].id = 8;
    moment.residency.jobs[1].version += 40;
  }
  auto looks = LooksOfStep(run, "2");
  ASSERT_TRUE(looks.ok());
  ASSERT_EQ(looks->moments.size(), 2U);
  EXPECT_EQ(looks->moments[0].residency.jobs.size(), 1U);
  EXPECT_NE(JobAt(looks->moments[0], 7), nullptr);
}

}  // namespace timeline_test
}  // namespace tidepool::client
