// What is written about the admin socket is what it does: its page lists the endpoints of the route
// table and the metrics that there are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "memserver/admin/admin_api.h"
#include "memserver/admin/reports/exposition.h"
#include "memserver/admin/reports/health_report.h"
#include "memserver/admin/reports/metrics_report.h"
#include "tests/memserver/admin/admin_fixture.h"

namespace tidepool::memserver {
namespace admin_pages_test {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kHugePool = uint64_t{1} << 30;

// First cells, without their quotes, of the tables' rows that begin with `start`.
std::set<std::string> RowsOfPage(const std::string& start) {
  std::set<std::string> rows;
  std::ifstream page(TIDEPOOL_ADMIN_PAGE);
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `" + start)) continue;
    EXPECT_TRUE(rows.insert(line.substr(3, line.find('`', 3) - 3)).second)
        << line << " stands twice";
  }
  return rows;
}

ServerFacts Facts() {
  return {.version = "1.2.3",
          .abi = 9,
          .build = "a \"build\"",
          .devices = {"host"},
          .socket_dir = "/run/x",
          .pid = 77};
}

// Names of the families in an answer, in order.
std::vector<std::string> FamiliesOf(const std::string& metrics) {
  std::vector<std::string> names;
  std::istringstream lines(metrics);
  for (std::string line, hash, word, name; std::getline(lines, line);) {
    std::istringstream(line) >> hash >> word >> name;
    if (hash == "#" && word == "TYPE") names.push_back(name);
  }
  return names;
}

TEST(AdminPage, ListsEveryEndpointAndNoOther) {
  std::set<std::string> rows;
  for (const char* method : {"GET", "PUT", "POST", "DELETE"})
    rows.merge(RowsOfPage(method + std::string(" /")));
  const std::vector<std::string> all = AdminApi::Endpoints();
  EXPECT_EQ(rows, std::set<std::string>(all.begin(), all.end()));
  EXPECT_EQ(rows.size(), all.size());
}

// What a route is said to do it does for a request: nothing of the list is answered with 404 or
// 405.
TEST(AdminPage, EveryEndpointIsThere) {
  FakeLoop loop;
  AdminApi api(Facts(), &loop.source, loop.mail());
  for (std::string endpoint : AdminApi::Endpoints()) {
    const size_t blank = endpoint.find(' '), brace = endpoint.find('{');
    const std::string method = endpoint.substr(0, blank);
    if (brace != std::string::npos) endpoint.replace(brace, endpoint.find('}') + 1 - brace, "gpt");
    const AdminAnswer answer =
        api.Answer({method, endpoint.substr(blank + 1), "", {.level = AdminLevel::kAdmin}});
    EXPECT_TRUE(answer.status == 200 || answer.status == 400)
        << endpoint << ": " << answer.status << " " << answer.body;
  }
}

// A snapshot in which everything is wrong that can be, and one in which nothing is.
TEST(Health, EveryCheckHasItsBadSideAndStandsOnThePage) {
  Snapshot bad = TwoJobs();
  bad.ready = false;
  bad.draining = true;
  bad.pool_bytes = 2 * kHugePool;
  bad.pool_used = bad.pool_bytes;
  bad.pool_huge_bytes = 0;
  bad.nvme.failed = "/mnt/a";
  bad.nvme.stalled = 2;
  bad.accounts[0].quota.limit = bad.accounts[0].used - 1;
  bad.jobs[0].suspended = true;
  bad.waiting[0].waited_ns = 3600 * kNsPerSecond;
  bad.set_aside = {{"old", 1000, "job 3 (old) waits"}};
  bad.gpus[0].failure = bad.gpus[0].pin_failure = "code 700";
  bad.gpus[0].form = "ipc";
  std::set<std::string> codes;
  for (const HealthCheck& check :
       CheckHealth({.snapshot = std::make_shared<Snapshot>(bad), .silent_seconds = 3})) {
    EXPECT_NE(check.severity, Severity::kOk) << check.code;
    EXPECT_STRNE(check.remedy, "") << check.code;
    codes.insert(check.code);
  }
  std::set<std::string> rows;
  for (const char* letter : {"L", "D", "P", "N", "J", "R", "C"}) rows.merge(RowsOfPage(letter));
  // Endpoints.
  std::erase_if(rows, [](const std::string& row) { return row.find(' ') != std::string::npos; });
  EXPECT_EQ(rows, codes);
  Snapshot good;
  good.ready = true;
  good.pool_bytes = 2 * kHugePool;
  good.pool_huge_bytes = kHugePool;
  const std::string report = HealthReport({.snapshot = std::make_shared<Snapshot>(good)});
  EXPECT_THAT(report, ::testing::StartsWith(R"({"status":"ok","checks":[)"));
  EXPECT_THAT(report, Not(HasSubstr(R"("severity":"warn")")));
  EXPECT_THAT(HealthReport({.snapshot = std::make_shared<Snapshot>(bad)}),
              ::testing::StartsWith(R"({"status":"error")"));
}

TEST(Health, WhatIsMutedIsShownAndCountsForNothing) {
  Snapshot now;
  now.ready = true;
  now.draining = true;
  now.mutes = {{"DRAINING", 1500 * kNsPerMs}};
  const std::string muted = HealthReport({.snapshot = std::make_shared<Snapshot>(now)});
  EXPECT_THAT(muted, ::testing::StartsWith(R"({"status":"ok")"));
  EXPECT_THAT(muted, HasSubstr(R"("code":"DRAINING","severity":"warn")"));
  EXPECT_THAT(muted, HasSubstr(R"("muted_seconds":1.5})"));
  now.mutes = {{"POOL_NEAR_FULL", kNsPerSecond}};
  EXPECT_THAT(HealthReport({.snapshot = std::make_shared<Snapshot>(now)}),
              ::testing::StartsWith(R"({"status":"warn")"))
      << "another one";
}

TEST(Events, AreForOperators) {
  FakeLoop loop;
  AdminApi api(Facts(), &loop.source, loop.mail());
  const auto ask = [&](const char* target, AdminLevel level) {
    return api.Answer({"GET", target, "", {.uid = 7, .level = level}});
  };
  EXPECT_EQ(ask("/v1/events", AdminLevel::kUser).status, 403u);
  EXPECT_STREQ(ask("/v1/events?limit=1", AdminLevel::kOperator).content_type,
               "application/x-ndjson");
  EXPECT_EQ(ask("/v1/events?after=x", AdminLevel::kOperator).status, 400u);
}

TEST(Metrics, ThePageListsEveryFamilyAndNoOther) {
  FakeLoop loop;
  const std::vector<std::string> families = FamiliesOf(MetricsReport(loop.source.Get(), Facts()));
  EXPECT_EQ(RowsOfPage("tidepool_"), std::set<std::string>(families.begin(), families.end()));
  EXPECT_EQ(std::set<std::string>(families.begin(), families.end()).size(), families.size())
      << "a family is there twice";
}

TEST(Metrics, CarryTheNumbersOfTheSnapshot) {
  FakeLoop loop;
  const std::string text = MetricsReport(loop.source.Get(), Facts());
  for (const char* line :
       {R"(tidepool_build_info{version="1.2.3",abi="9",build="a \"build\""} 1)",
        "tidepool_uptime_seconds 90", "tidepool_ready 1",
        R"(tidepool_pool_bytes{state="used"} 262144)",
        R"(tidepool_pool_bytes{state="free"} 786432)", R"(tidepool_jobs{state="training"} 1)",
        R"(tidepool_jobs{state="loading"} 0)", "tidepool_sessions 2", "tidepool_ranks_waiting 1",
        R"(tidepool_account_bytes{account="user:7",bound="guarantee"} 4096)",
        R"(tidepool_job_bytes{job_name="gpt",tier="host"} 200000)",
        R"(tidepool_job_steps_total{job_name="gpt"} 41)",
        R"(tidepool_job_step_fetches{job_name="gpt",waited="no"} 7)",
        R"(tidepool_job_step_fetches{job_name="gpt",waited="yes"} 2)",
        R"(tidepool_job_step_fetch_wait_seconds{job_name="gpt"} 0.25)",
        R"(tidepool_rank_request_wait_seconds_total{job_name="gpt",rank="0",kind="fetch"} 0.5)",
        R"(tidepool_rank_request_wait_seconds_total{job_name="gpt",rank="0",kind="gradient"} 1)",
        R"(tidepool_rank_request_wait_seconds_total{job_name="gpt",rank="1",kind="claim"} 0)",
        R"(tidepool_rank_requests_total{job_name="gpt",rank="1"} 0)"}) {
    EXPECT_THAT(text, HasSubstr("\n" + std::string(line) + "\n"));
  }
  EXPECT_THAT(text, Not(HasSubstr(R"(bound="limit")"))) << "there is none";
}

// Each family's samples stand behind its own header, and nothing else is in the text.
TEST(Metrics, AreWellFormed) {
  FakeLoop loop;
  std::istringstream lines(MetricsReport(loop.source.Get(), Facts()));
  std::string family;
  bool histogram = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) {
      EXPECT_TRUE(line.ends_with('.')) << "a sentence: " << line;
      family = line.substr(7, line.find(' ', 7) - 7);
      continue;
    }
    if (line.starts_with("# TYPE ")) {
      EXPECT_EQ(line.substr(7, line.find(' ', 7) - 7), family);
      histogram = line.ends_with(" histogram");
      continue;
    }
    const std::string name = line.substr(0, line.find_first_of("{ "));
    const bool of_histogram = histogram && (name == family + "_bucket" || name == family + "_sum" ||
                                            name == family + "_count");
    EXPECT_TRUE(name == family || of_histogram) << line;
    size_t read = 0;
    const std::string value = line.substr(line.rfind(' ') + 1);
    std::stod(value, &read);
    EXPECT_EQ(read, value.size()) << line;
  }
}

TEST(Metrics, AUserSeesItsOwnJobsAlone) {
  FakeLoop loop;
  AdminApi api(Facts(), &loop.source, loop.mail());
  const std::string body =
      api.Answer({"GET", "/metrics", "", {.uid = 12345, .level = AdminLevel::kUser}}).body;
  EXPECT_THAT(body, HasSubstr(R"(tidepool_pool_bytes{state="used"} 262144)")) << "sums are of all";
  EXPECT_THAT(body, Not(HasSubstr("gpt")));
  EXPECT_THAT(body, Not(HasSubstr("user:7")));
}

TEST(Exposition, EscapesLabelsAndWritesNumbersThatAreNone) {
  Exposition out;
  out.Gauge("a", "help").Sample(0.5, {{"path", "a\\b\"c\nd"}}).Sample(1.0 / 0.0).Sample(0.0 / 0.0);
  EXPECT_EQ(out.Take(),
            "# HELP a help\n# TYPE a gauge\na{path=\"a\\\\b\\\"c\\nd\"} 0.5\na +Inf\na NaN\n");
}

TEST(Exposition, BucketsOfAHistogramAddUp) {
  Exposition out;
  const double bounds[] = {0.5, 1};
  const uint64_t counts[] = {2, 0, 1};
  out.Histogram("h", "help").Buckets(bounds, counts, 7.5, {"job", "a"});
  EXPECT_EQ(out.Take(),
            "# HELP h help\n# TYPE h histogram\n"
            "h_bucket{job=\"a\",le=\"0.5\"} 2\nh_bucket{job=\"a\",le=\"1\"} 2\n"
            "h_bucket{job=\"a\",le=\"+Inf\"} 3\nh_sum{job=\"a\"} 7.5\nh_count{job=\"a\"} 3\n");
}

}  // namespace admin_pages_test
}  // namespace tidepool::memserver
