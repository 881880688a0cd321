// A step's trace: lanes, times, and what the traced seams note.
#include "trainer/output/step_trace.h"

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/fakes/fake_clock.h"
#include "trainer/output/server_lanes.h"
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

// What a viewer of this format relies on: slices of a thread nest, and each flow has one begin and
// one end, on slices of their threads, in the order of time.
void CheckForm(const std::string& json) {
  struct Span {
    double from, to;
  };
  using Lane = std::pair<int64_t, int64_t>;  // process and thread
  std::map<Lane, std::vector<Span>> lanes;
  const auto lane_of = [](const boost::json::value& event) {
    return Lane{event.at("pid").to_number<int64_t>(), event.at("tid").to_number<int64_t>()};
  };
  std::map<std::string, std::vector<const boost::json::value*>> flows;
  const boost::json::value trace = boost::json::parse(json);
  for (const auto& event : trace.at("traceEvents").as_array()) {
    const std::string kind(event.at("ph").as_string());
    if (kind == "M") continue;
    const double at = event.at("ts").to_number<double>();
    EXPECT_GE(at, 0);
    if (kind == "X") {
      lanes[lane_of(event)].push_back({at, at + event.at("dur").to_number<double>()});
    } else {
      ASSERT_TRUE(kind == "s" || kind == "f") << kind;
      flows[std::string(event.at("id").as_string())].push_back(&event);
    }
  }

  for (auto& [lane, spans] : lanes) {
    for (const Span& a : spans) {
      for (const Span& b : spans) {
        const bool apart = a.to <= b.from || b.to <= a.from;
        const bool within =
            (a.from >= b.from && a.to <= b.to) || (b.from >= a.from && b.to <= a.to);
        EXPECT_TRUE(apart || within) << "lane " << lane.second << ": " << a.from << " to " << a.to
                                     << " and " << b.from << " to " << b.to;
      }
    }
  }
  for (const auto& [id, points] : flows) {
    ASSERT_EQ(points.size(), 2u) << id;
    EXPECT_TRUE(id.starts_with("0x") && id.find_first_not_of("0123456789abcdef", 2) == id.npos)
        << id << ": Perfetto takes hexadecimal numbers alone";
    EXPECT_EQ(points[0]->at("ph").as_string(), "s");
    EXPECT_EQ(points[1]->at("ph").as_string(), "f");
    EXPECT_EQ(points[1]->at("bp").as_string(), "e");
    EXPECT_EQ(points[0]->at("name"), points[1]->at("name"));
    EXPECT_LE(points[0]->at("ts").to_number<double>(), points[1]->at("ts").to_number<double>());
    for (const auto* point : points) {
      const double at = point->at("ts").to_number<double>();
      const auto& spans = lanes[lane_of(*point)];
      EXPECT_TRUE(std::any_of(spans.begin(), spans.end(),
                              [at](const Span& span) { return span.from <= at && at <= span.to; }))
          << id << " ends on no slice";
    }
  }
}

// Two layers forward and one back, with operators inside operators; each number is a microsecond.
TEST_F(StepTraceTest, OperatorsLieInLayersAndCopiesFlowToTheirUse) {
  trace_.BeginStep(1);
  const StepTrace::Id fetch = trace_.Begin(TraceLane::kH2D, "chunk 0", 0),
                      other = trace_.Begin(TraceLane::kH2D, "chunk 1", 1);
  Pass(2);
  trace_.End(fetch);
  trace_.Compute("forward 0");
  const auto run = [&](const char* name, const char* parameter, ChunkId chunk) {
    trace_.operators()->Begin(name);
    Pass(1);
    trace_.operators()->Begin("aten::inner");
    if (*parameter != 0) trace_.operators()->Uses(parameter, chunk);
    Pass(2);
    trace_.operators()->End();
    trace_.operators()->End();
  };
  run("aten::linear", "h.0.attn.weight", 0);
  run("aten::gelu", "", 0);
  trace_.End(other);
  run("aten::linear", "h.1.attn.weight", 1);
  trace_.Compute("backward 0");
  run("AddmmBackward0", "h.1.attn.weight", 1);
  const StepTrace::Id out = trace_.Begin(TraceLane::kD2H, "chunk 1", 1);
  trace_.Compute("");
  Pass(1);
  trace_.End(out);

  const std::string text = trace_.Render(3);
  CheckForm(text);
  std::vector<Slice> own, copies;
  for (const Slice& slice : SlicesOf(text)) (slice.lane == 7 ? own : copies).push_back(slice);
  EXPECT_EQ(own, (std::vector<Slice>{{7, "forward 0", 2, 9},
                                     {7, "backward 0", 11, 3},
                                     {7, "h.0", 2, 6},
                                     {7, "h.1", 8, 3},
                                     {7, "h.1", 11, 3},
                                     {7, "aten::linear", 2, 3},
                                     {7, "aten::inner", 3, 2},
                                     {7, "aten::gelu", 5, 3},
                                     {7, "aten::inner", 6, 2},
                                     {7, "aten::linear", 8, 3},
                                     {7, "aten::inner", 9, 2},
                                     {7, "AddmmBackward0", 11, 3},
                                     {7, "aten::inner", 12, 2}}));
  EXPECT_EQ(copies[2], (Slice{2, "chunk 0", 0, 2}));
  EXPECT_EQ(copies[3], (Slice{102, "chunk 1", 0, 8})) << "a row of its own beside chunk 0";

  const boost::json::value trace = boost::json::parse(text);
  std::vector<std::string> points;
  for (const auto& event : trace.at("traceEvents").as_array()) {
    const std::string kind(event.at("ph").as_string());
    if (kind == "s" || kind == "f") {
      points.push_back(kind + " " + std::string(event.at("name").as_string()) + " " +
                       std::to_string(event.at("tid").to_number<int64_t>()) + " at " +
                       std::to_string(event.at("ts").to_number<int64_t>()));
    }
  }
  EXPECT_EQ(points, (std::vector<std::string>{"s fetch 2 at 2", "f fetch 7 at 3",
                                              "s fetch 102 at 8", "f fetch 7 at 9",
                                              "s gradient 7 at 14", "f gradient 3 at 14"}));
}

// What memserver did stands beside, on the same clock: from the update to the copy to the fetch.
TEST_F(StepTraceTest, MemserversOwnCopiesAndUpdatesAreAProcessBesideTheRank) {
  trace_.BeginStep(1);
  const int64_t zero_ns = trace_.from_ns();
  EXPECT_EQ(zero_ns, clock_.NowNs());
  const StepTrace::Id fetch = trace_.Begin(TraceLane::kH2D, "chunk 3", 3);
  Pass(20);
  trace_.End(fetch);
  const auto at = [zero_ns](int64_t micros) { return zero_ns + micros * 1000; };
  const auto work = [&](const char* what, uint64_t worker, uint64_t piece, int64_t from,
                        int64_t to) {
    return client::ServerSpan{what, {}, worker, {}, 3, piece, at(from), at(to)};
  };
  const auto copy = [&](const char* what, uint64_t rank, int64_t from, int64_t to) {
    return client::ServerSpan{what, rank, {}, {}, 3, 0, at(from), at(to)};
  };
  trace_.SetServer({work("update", 1, 0, 1, 4), work("update", 0, 1, 2, 7), copy("fetch", 0, 8, 18),
                    copy("fetch", 1, 9, 12), copy("fetch", 1, 10, 15), copy("fetch", 0, 18, 19),
                    copy("gradient", 0, 16, 17), work("scan", 1, 0, 17, 19)});

  const std::string text = trace_.Render(0);
  CheckForm(text);
  std::map<std::string, std::vector<std::string>> lanes;  // by name
  std::map<int64_t, std::string> names;
  std::vector<std::string> flows;
  const boost::json::value trace = boost::json::parse(text);
  for (const auto& event : trace.at("traceEvents").as_array()) {
    if (event.at("pid").to_number<int64_t>() != static_cast<int64_t>(kServerProcess)) continue;
    const std::string kind(event.at("ph").as_string()), name(event.at("name").as_string());
    const auto tid = event.at("tid").to_number<int64_t>();
    if (name == "process_name") {
      EXPECT_EQ(event.at("args").at("name").as_string(), "memserver");
    }
    if (name == "thread_name") names[tid] = std::string(event.at("args").at("name").as_string());
    const auto number = [&event](const char* key) {
      return std::to_string(event.at(key).to_number<int64_t>());
    };
    if (kind == "X")
      lanes[names[tid]].push_back(name + ": " + number("ts") + " + " + number("dur"));
    if (kind == "s" || kind == "f") flows.push_back(kind + " " + names[tid] + " " + number("ts"));
  }
  const std::map<std::string, std::vector<std::string>> wanted{
      {"worker 0", {"update chunk 3, piece 1: 2 + 5"}},
      {"worker 1", {"update chunk 3: 1 + 3", "scan chunk 3: 17 + 2"}},
      {"fetches of rank 0", {"chunk 3: 8 + 10", "chunk 3: 18 + 1"}},
      {"fetches of rank 1", {"chunk 3: 9 + 3"}},
      {"fetches of rank 1 (2)", {"chunk 3: 10 + 5"}},
      {"gradients of rank 0", {"chunk 3: 16 + 1"}}};
  EXPECT_EQ(lanes, wanted);
  EXPECT_EQ(flows, (std::vector<std::string>{"s worker 0 7", "f fetches of rank 0 8",
                                             "s worker 0 7", "f fetches of rank 1 9"}))
      << "from the last piece of the update to each rank's first copy";
  trace_.BeginStep(2);
  EXPECT_EQ(trace_.Render(0).find("memserver"), std::string::npos) << "that was another step";
}

// A drive's read leads to the work on the piece that it read; an update on a GPU leads to fetches.
TEST_F(StepTraceTest, DrivesAndGpusOfMemserverHaveLanesAndFlowsToo) {
  trace_.BeginStep(1);
  const int64_t zero_ns = trace_.from_ns();
  Pass(50);
  const auto at = [zero_ns](int64_t micros) { return zero_ns + micros * 1000; };
  const auto drive = [&](const char* what, uint64_t number, uint64_t piece, int64_t from) {
    return client::ServerSpan{what, {}, {}, number, 3, piece, at(from), at(from + 5)};
  };
  const auto of_rank = [&](const char* what, uint64_t chunk, int64_t from) {
    return client::ServerSpan{what, 1, {}, {}, chunk, 0, at(from), at(from + 5)};
  };
  const client::ServerSpan scan{"scan", {}, 0, {}, 3, 1, at(8), at(9)},
      update{"update", {}, 0, {}, 3, 1, at(10), at(20)};
  trace_.SetServer({drive("read", 1, 1, 2), drive("read", 1, 2, 4), scan, update,
                    drive("write", 1, 1, 21), of_rank("gpu_update", 4, 10),
                    of_rank("fetch", 4, 16)});
  const std::string text = trace_.Render(1);
  CheckForm(text);

  std::map<int64_t, std::string> names;
  std::multiset<std::string> seen;
  const boost::json::value trace = boost::json::parse(text);
  for (const auto& event : trace.at("traceEvents").as_array()) {
    if (event.at("pid").to_number<int64_t>() != static_cast<int64_t>(kServerProcess)) continue;
    const std::string kind(event.at("ph").as_string()), name(event.at("name").as_string());
    const auto tid = event.at("tid").to_number<int64_t>();
    if (name == "thread_name") names[tid] = std::string(event.at("args").at("name").as_string());
    if (kind != "M")
      seen.insert(kind + " " + names[tid] + ": " + name + " at " +
                  std::to_string(event.at("ts").to_number<int64_t>()));
  }
  EXPECT_EQ(seen, (std::multiset<std::string>{
                      "X reads of NVMe directory 1: read chunk 3, piece 1 at 2",
                      "X reads of NVMe directory 1 (2): read chunk 3, piece 2 at 4",
                      "X writes of NVMe directory 1: write chunk 3, piece 1 at 21",
                      "X worker 0: scan chunk 3, piece 1 at 8",
                      "X worker 0: update chunk 3, piece 1 at 10",
                      "X GPU of rank 1: update chunk 4 at 10", "X fetches of rank 1: chunk 4 at 16",
                      "s reads of NVMe directory 1: read at 7", "f worker 0: read at 10",
                      "s GPU of rank 1: updated at 15", "f fetches of rank 1: updated at 16"}));
}

TEST_F(StepTraceTest, APlannedStepStandsBesideTheRealOneAndBeginsWithIt) {
  trace_.SetPlan({"planned: tiny: 2 stages on 2 GPUs",
                  {{"GPU 0", "forward 0 of stage 0", 10'000, 30'000},
                   {"GPU 1", "forward 0 of stage 1", 35'000, 60'000},
                   {"GPU 0", "backward 0 of stage 0", 70'000, 90'000},
                   {"complex 0 up", "weights of stage 0", 0, 10'000}}});
  Pass(3);
  trace_.BeginStep(1);
  trace_.Compute("forward 0 of stage 0");
  Pass(12);
  trace_.Compute("");
  for (uint64_t step : {1, 2}) {
    if (step == 2) trace_.BeginStep(2);
    const std::string text = trace_.Render(0);
    CheckForm(text);
    std::vector<Slice> planned;
    const boost::json::value trace = boost::json::parse(text);
    for (const auto& event : trace.at("traceEvents").as_array()) {
      if (event.at("pid").to_number<int64_t>() != static_cast<int64_t>(kPlanProcess)) continue;
      if (event.at("name").as_string() == "process_name") {
        EXPECT_EQ(event.at("args").at("name").as_string(), "planned: tiny: 2 stages on 2 GPUs");
      }
      if (event.at("ph").as_string() != "X") continue;
      planned.push_back({event.at("tid").to_number<int64_t>(),
                         std::string(event.at("name").as_string()),
                         event.at("ts").to_number<double>(), event.at("dur").to_number<double>()});
    }
    EXPECT_EQ(planned, (std::vector<Slice>{{1, "forward 0 of stage 0", 10, 20},
                                           {1, "backward 0 of stage 0", 70, 20},
                                           {2, "forward 0 of stage 1", 35, 25},
                                           {3, "weights of stage 0", 0, 10}}))
        << "in step " << step;
  }
}

TEST(ServersClock, IsTheSameWhereItsTimeLiesBetweenQuestionAndAnswer) {
  EXPECT_EQ(NsAhead(105, 100, 120), 0);
  EXPECT_EQ(NsAhead(100, 100, 120), 0);
  EXPECT_EQ(NsAhead(5110, 100, 120), 5000) << "another time namespace";
  EXPECT_EQ(NsAhead(10, 100, 120), -100);
}

TEST(OperatorsOfAStep, ThatItDoesNotHoldAreCounted) {
  FakeClock clock;
  OperatorTrace trace(&clock, 10);
  trace.Begin("outer");
  for (int i = 0; i < 15; ++i) {
    trace.Begin("inner");
    trace.Uses("h.0.weight", 0);
    trace.End();
  }
  clock.SleepNs(1000);
  trace.End();
  EXPECT_EQ(trace.left_out(), 6u);
  ASSERT_EQ(trace.operators().size(), 10u);
  EXPECT_EQ(trace.operators()[0].to_ns - trace.operators()[0].from_ns, 1000) << "the outer one";
  trace.Clear();
  trace.End();  // of the step before
  EXPECT_TRUE(trace.operators().empty());
  EXPECT_EQ(trace.left_out(), 0u);
}

TEST(LayersOfParameters, AreWhatStandsBeforeTheFirstNumberAndTheNumber) {
  EXPECT_EQ(LayerOf("h.3.attn.c_attn.weight"), "h.3");
  EXPECT_EQ(LayerOf("model.layers.12.mlp.gate_proj.weight"), "model.layers.12");
  EXPECT_EQ(LayerOf("wte.weight"), "wte");
  EXPECT_EQ(LayerOf("0.weight"), "0");
  EXPECT_EQ(LayerOf("weight"), "weight");
}

}  // namespace step_trace_test
}  // namespace tidepool::trainer
