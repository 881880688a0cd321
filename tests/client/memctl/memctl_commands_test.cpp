// memctl's commands against a real admin server in this process.
#include "client/memctl/commands/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/unique_fd.h"
#include "client/memctl/commands/run_report.h"
#include "client/memctl/views/top.h"
#include "tests/client/memctl/memctl_fixture.h"

namespace tidepool::client {
namespace memctl_commands_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(Memctl, EveryReportOfTheServerIsUnderstood) {
  Serve();
  EXPECT_THAT(ResultOf({"status"}), HasSubstr("memserver 1.2.3  ready"));
  EXPECT_THAT(ResultOf({"status"}), HasSubstr("\ncuda:0    a GPU, 1000 B, 1 rank; 10 B taken by "
                                              "memserver; the whole pool is registered"));
  EXPECT_THAT(ResultOf({"ps"}), HasSubstr("gpt"));
  EXPECT_THAT(ResultOf({"residency"}), HasSubstr("rank 1 rCache .CC.<>"));
  EXPECT_THAT(ResultOf({"residency"}), HasSubstr("host pool     _.gGOA"));
  EXPECT_THAT(ResultOf({"chunks"}), HasSubstr("update-due"));
  EXPECT_THAT(ResultOf({"version"}), HasSubstr("memserver  1.2.3   abi 1"));
  EXPECT_THAT(ResultOf({"topo"}), HasSubstr("no GPU and no NVMe drive"));
  EXPECT_EQ(ResultOf({"topo", "-o", "json"}), std::string(kTopology) + "\n");
  EXPECT_EQ(ResultOf({"wait-ready"}), "memserver is ready\n");
  EXPECT_THAT(ResultOf({"api", "GET", "/v1/jobs/gpt"}), StartsWith("{\"id\":3"));
}

TEST_F(Memctl, QuotasAreShownAndChanged) {
  Serve();
  EXPECT_THAT(ResultOf({"quotas"}), HasSubstr("user:7"));
  EXPECT_THAT(ResultOf({"quotas"}), HasSubstr("job big needs more"));
  EXPECT_THAT(ResultOf({"job", "quota", "gpt", "--limit", "10KiB", "--weight", "2"}),
              HasSubstr("quota changed"));
  const auto commands = loop_.TakeCommands();
  ASSERT_EQ(commands.size(), 1u);
  const auto& set = std::get<memserver::SetJobQuota>(commands[0].what);
  EXPECT_EQ(set.change.limit, 10240u);
  EXPECT_EQ(set.change.weight, 2u);
  loop_.AnswerWith(Status(ErrorId::kQuotaRefused, "no room"));
  EXPECT_EQ(Run({"job", "quota", "gpt", "--guarantee", "1GiB"}).status().exit_code(), kExitRefused);
  EXPECT_EQ(Run({"job", "quota", "gpt"}).status().exit_code(), kExitUsage) << "nothing to change";
  EXPECT_EQ(Run({"job", "quota"}).status().id(), ErrorId::kUsageError);
}

TEST_F(Memctl, JobsAndTheServerAreHandled) {
  Serve();
  EXPECT_THAT(ResultOf({"job", "suspend", "gpt"}), HasSubstr("job gpt: suspended"));
  EXPECT_THAT(ResultOf({"job", "resume", "gpt"}), HasSubstr("served again"));
  EXPECT_THAT(ResultOf({"job", "release", "gpt", "--force"}), HasSubstr("released"));
  EXPECT_THAT(ResultOf({"drain"}), HasSubstr("no new jobs"));
  EXPECT_THAT(ResultOf({"undrain"}), HasSubstr("new jobs again"));
  EXPECT_THAT(ResultOf({"logs", "level", "debug", "--for", "10s"}), HasSubstr("changed"));
  const auto commands = loop_.TakeCommands();
  ASSERT_EQ(commands.size(), 6u);
  EXPECT_TRUE(std::get<memserver::ReleaseJob>(commands[2].what).force);
  EXPECT_EQ(std::get<memserver::ChangeLogLevel>(commands[5].what).level, LogLevel::kDebug);
  EXPECT_EQ(Run({"logs", "level", "loud"}).status().exit_code(), kExitUsage);
  loop_.AnswerWith(Status(ErrorId::kJobBusy, "it has ranks"));
  EXPECT_EQ(Run({"job", "release", "gpt"}).status().exit_code(), kExitRefused);
}

TEST_F(Memctl, ResidencyIsAPictureToo) {
  Serve();
  const std::string svg = ResultOf({"residency", "-o", "svg"}),
                    page = ResultOf({"residency", "-o", "html"});
  EXPECT_THAT(svg, StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
  EXPECT_THAT(page, StartsWith("<!DOCTYPE html>"));
  for (const std::string& picture : {svg, page}) {
    EXPECT_THAT(picture, HasSubstr(">rank 1 rCache</"));
    EXPECT_THAT(picture, HasSubstr("<rect class=\"ink-held\" x=\"16.67%\" width=\"16.67%\" "
                                   "height=\"22\"/>"))
        << "chunk 1, cached by rank 0";
    EXPECT_THAT(picture, HasSubstr("<text class=\"letter\" x=\"25%\" y=\"15\">C</text>"));
    EXPECT_THAT(picture, HasSubstr("<line class=\"edge\" x1=\"33.33%\"")) << "a border";
    EXPECT_THAT(picture, HasSubstr("x=\"83.33%\" y=\"11\">5</text>")) << "number of a chunk";
    EXPECT_THAT(picture, HasSubstr("in rCache"));
  }
  for (const char* part : {"<script", "src=", "url("})
    EXPECT_THAT(page, ::testing::Not(HasSubstr(part)));
  EXPECT_EQ(Run({"status", "-o", "svg"}).status().exit_code(), kExitUsage);
}

TEST_F(Memctl, ResidencyIsATableByLayerTensorAndJob) {
  Serve();
  EXPECT_THAT(ResultOf({"residency", "--by", "layer", "--job", "gpt", "--no-color"}),
              HasSubstr("LAYER        CHUNKS     BYTES  RCACHES  HOST POOL\n"
                        "h.0               1  2.06 KiB  CC       .\n"
                        "h.1               1  2.00 KiB  >>       A\n"
                        "(no tensor)       4  16.0 KiB  .<       O\n"
                        "C in rCache   c some of it in rCache"));
  EXPECT_THAT(ResultOf({"residency", "--by", "tensor"}),
              HasSubstr("\nh.0.bias          1      64 B  CC       .\n"));
  EXPECT_THAT(ResultOf({"residency", "--by", "job"}),
              HasSubstr("ID  JOB  STATE                                             STEP  CHUNKS  "
                        "RCACHES             HOST POOL"));
  EXPECT_THAT(ResultOf({"residency", "--by", "job"}),
              HasSubstr("2 >, 1 <, 3 C, 6 .  195 KiB: 1 A, 1 O, 1 g, 1 G, 1 _, 1 .  -\n"));
  EXPECT_THAT(ResultOf({"residency", "--by", "layer", "-o", "svg"}),
              HasSubstr("<title>h.1</title></rect>"));
  EXPECT_THAT(ResultOf({"residency", "--by", "layer", "-o", "json"}),
              StartsWith(R"({"by":"layer")"));
  EXPECT_EQ(Run({"residency", "--by", "rank"}).status().exit_code(), kExitUsage);
  const std::string recording = directory_ + "/layers.rec";
  ResultOf({"record", recording.c_str(), "--for", "1ms", "--by", "layer"});
  EXPECT_THAT(ResultOf({"residency", "--from", recording.c_str(), "--by", "layer", "--job", "gpt"}),
              HasSubstr("\nh.1     "));
  const Status other = Run({"residency", "--from", recording.c_str(), "--by", "tensor"}).status();
  EXPECT_EQ(other.exit_code(), kExitUsage);
  EXPECT_THAT(other.fix(), HasSubstr("--by tensor"));
  const std::string page = directory_ + "/run.html";
  ResultOf({"report", page.c_str(), "--from", recording.c_str()});
  std::stringstream text;
  text << std::ifstream(page).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("some of it in rCache"));
}

TEST_F(Memctl, TensorsAreFoundAndSoIsWhatLiesInAChunk) {
  Serve();
  EXPECT_EQ(ResultOf({"tensors", "0.bias"}),
            "JOB  CHUNK   AT  ELEMENTS  STATE     STATES  VERSION  CACHED BY  DIMS  TENSOR\n"
            "  3      1  512        16  resident  host         41  0,1        16    h.0.bias\n");
  EXPECT_THAT(ResultOf({"chunk", "5", "--job", "gpt"}), HasSubstr("32x16"));
  EXPECT_THAT(Run({"tensors", "h.", "--job", "gpt", "--limit", "1"}).value().remark,
              HasSubstr("there are more: memctl tensors h. --job gpt --limit 1 --cursor 3:1"));
  EXPECT_THAT(ResultOf({"tensors", "-o", "json"}), StartsWith("{\"tensors\":[{\"job\":3"));
  auto none = Run({"tensors", "no.such"});
  ASSERT_TRUE(none.ok());
  EXPECT_THAT(none->remark, HasSubstr("no job has such a tensor"));
  EXPECT_EQ(Run({"chunk"}).status().exit_code(), kExitUsage);
  EXPECT_EQ(Run({"chunk", "2", "--job", "gpt"}).status().exit_code(), kExitNotFound);
}

TEST_F(Memctl, SettingsAreShownAndReadAgain) {
  Serve();
  EXPECT_EQ(ResultOf({"config", "get", "pool.size"}), "8GiB\n");
  EXPECT_THAT(ResultOf({"config", "get", "pool.size", "-o", "json"}),
              StartsWith(R"({"key":"pool.size","value":"8GiB","origin":"/etc/x.toml:3")"));
  EXPECT_EQ(Run({"config", "get", "pool.siez"}).status().exit_code(), kExitNotFound);
  const std::string all = ResultOf({"config", "show"});
  EXPECT_THAT(all, HasSubstr("pool.size  8GiB   50%      -        /etc/x.toml:3"));
  EXPECT_THAT(all, HasSubstr("log.level  info   info     yes      default"));
  EXPECT_THAT(all, HasSubstr("user:7"));
  EXPECT_THAT(ResultOf({"config", "diff"}), ::testing::Not(HasSubstr("log.level")));
  EXPECT_THAT(ResultOf({"config", "diff", "-o", "json"}),
              StartsWith("{\"file\":\"/etc/x.toml\",\"settings\":[{\"key\":\"pool.size\""));
  EXPECT_EQ(ResultOf({"config", "reload"}),
            "the configuration was read again; applied: log.level\n");
  EXPECT_THAT(ResultOf({"config", "reload", "-o", "json"}),
              HasSubstr("\"applied\":[\"log.level\"]"));
  loop_.AnswerWith(
      Status(ErrorId::kConfigNeedsRestart, "no").Where("/etc/x.toml").Why("pool.size"));
  const Status refused = Run({"config", "reload"}).status();
  EXPECT_EQ(refused.exit_code(), kExitRefused);
  EXPECT_EQ(refused.where(), "/etc/x.toml");
  EXPECT_EQ(refused.why(), "pool.size");
  EXPECT_EQ(Run({"config"}).status().id(), ErrorId::kUsageError);
}

TEST_F(Memctl, EventsAreTheLogAndGoOnWhereTheLastOnesEnded) {
  Serve();
  LogInfo("an event of the test", {{"job", 3}, {"name", "gpt"}});
  auto all = Run({"events"});
  ASSERT_TRUE(all.ok()) << all.status().Format();
  EXPECT_THAT(all->result, HasSubstr("Z  an event of the test  job=3  name=gpt\n"));
  LogWarn("another one");
  auto next = Run({"events", "--after", all->cursor.c_str()});
  ASSERT_TRUE(next.ok());
  EXPECT_THAT(next->result, ::testing::EndsWith("Z  warn: another one\n"));
  EXPECT_THAT(next->result, ::testing::Not(HasSubstr("an event of the test")));
  EXPECT_EQ(Run({"events", "--after", next->cursor.c_str()})->cursor, next->cursor)
      << "nothing new";
  EXPECT_THAT(ResultOf({"events", "-o", "json"}), StartsWith("{\"number\":"));
  EXPECT_EQ(ResultOf({"events", "--last", "1"}), next->result);
  const std::string last = ResultOf({"events", "--last", "1", "-o", "json"});
  EXPECT_THAT(last, StartsWith("{\"number\":"));
  EXPECT_EQ(std::count(last.begin(), last.end(), '\n'), 1);
  EXPECT_EQ(Run({"events", "--last", "1"})->cursor, next->cursor);
  EXPECT_EQ(Parse({"events", "-f"}).invocation->watch_ns, kNsPerSecond / 2);
}

TEST_F(Memctl, HealthHasAnExitCode) {
  Serve();
  auto health = Run({"health"});
  ASSERT_TRUE(health.ok()) << health.status().Format();
  EXPECT_EQ(health->exit_code, 1) << health->result;
  EXPECT_THAT(health->result, HasSubstr("LEASE_STALE"));
  EXPECT_THAT(health->result, HasSubstr("jobs without trainers, kept for their lease: 1 (7)"));
  EXPECT_THAT(health->result, HasSubstr("fix: start them again with --resume auto"));
  EXPECT_THAT(ResultOf({"health", "-o", "json"}), StartsWith("{\"status\":\"warn\""));
}

TEST_F(Memctl, ChecksOfHealthAreMutedAndUnmuted) {
  Serve();
  EXPECT_EQ(ResultOf({"health", "--mute", "LEASE_STALE"}), "LEASE_STALE is muted for 1h\n");
  EXPECT_EQ(ResultOf({"health", "--mute", "DRAINING", "--for", "2min"}),
            "DRAINING is muted for 2min\n");
  EXPECT_EQ(ResultOf({"health", "--unmute", "DRAINING"}), "DRAINING counts again\n");
  const auto commands = loop_.TakeCommands();
  ASSERT_EQ(commands.size(), 3u);
  EXPECT_EQ(std::get<memserver::MuteCheck>(commands[0].what).for_ns, 3600 * kNsPerSecond);
  EXPECT_EQ(std::get<memserver::MuteCheck>(commands[1].what).code, "DRAINING");
  EXPECT_EQ(std::get<memserver::MuteCheck>(commands[2].what).for_ns, 0);
  EXPECT_EQ(Run({"health", "--mute", "NO_SUCH"}).status().exit_code(), kExitUsage);
  EXPECT_EQ(Run({"health", "--for", "1h"}).status().id(), ErrorId::kUsageError) << "of what?";
}

TEST_F(Memctl, TheDoctorLooksAtTheWayToo) {
  auto without = Run({"doctor"});
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without->exit_code, kExitHostUnfit);
  EXPECT_THAT(without->result, HasSubstr("sockets are missing (" + directory_ + "/admin.sock, " +
                                         directory_ + "/data.sock)"));
  Serve();
  const UniqueFd data(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (directory_ + "/data.sock").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(bind(data.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  auto with = Run({"doctor"});
  ASSERT_TRUE(with.ok());
  EXPECT_EQ(with->exit_code, kExitOk) << with->result;
  EXPECT_THAT(with->result, HasSubstr("MEMSERVER"));
  EXPECT_THAT(with->result, HasSubstr("LEASE_STALE"));
  EXPECT_THAT(
      ResultOf({"doctor", "-o", "json"}),
      StartsWith("{\"status\":\"warn\",\"checks\":[{\"code\":\"SOCKET_DIR\",\"severity\":\"ok\""));
}

TEST_F(Memctl, TopShowsWhatMoves) {
  Serve();
  const std::string shown = ResultOf({"top", "--watch", "50ms"});
  EXPECT_THAT(shown, HasSubstr("now       0 B/s to ranks"));
  EXPECT_THAT(shown, HasSubstr("OPTIMIZER"));
  EXPECT_THAT(ResultOf({"top", "--watch", "50ms", "-o", "json"}),
              HasSubstr("\"steps_per_second\":0"));
  const ParsedLine line = Parse({"top", "-b", "-n", "3"});
  EXPECT_TRUE(line.invocation->batch);
  EXPECT_EQ(line.invocation->rounds, 3U);
  EXPECT_EQ(line.invocation->watch_ns, kNsPerSecond);
}

TEST(Top, RatesLieBetweenTwoLooks) {
  TopLook before, after;
  before.status.uptime_seconds = 10;
  after.status.uptime_seconds = 12;
  before.status.bytes_h2d = 1000;
  after.status.bytes_h2d = 5000;
  before.status.parameters_updated = 7;  // the server began anew: no rate below nothing
  JobView job;
  job.id = 1;
  job.version = 10;
  job.optimizer_bytes = 100;
  before.jobs = {job};
  job.version = 14;
  job.optimizer_bytes = 400;
  JobView late;
  late.id = 2;
  late.version = 90;
  JobView busy;
  busy.id = 3;
  before.jobs.push_back(busy);
  busy.optimizer_bytes = 900;
  after.jobs = {job, late, busy};
  const TopView top = Compare(before, after);
  EXPECT_DOUBLE_EQ(top.bytes_to_ranks, 2000);
  EXPECT_DOUBLE_EQ(top.parameters, 0);
  ASSERT_EQ(top.jobs.size(), 3U);
  EXPECT_EQ(top.jobs[0].job.id, 3U) << "the busiest first";
  EXPECT_DOUBLE_EQ(top.jobs[0].optimizer_share, 0.75);
  EXPECT_DOUBLE_EQ(top.jobs[1].steps_a_second, 2);
  EXPECT_DOUBLE_EQ(top.jobs[1].optimizer_bytes_a_second, 150);
  EXPECT_DOUBLE_EQ(top.jobs[2].steps_a_second, 0) << "it was not there before";
}

TEST_F(Memctl, AReportIsOnePageThatNeedsNothingElse) {
  Serve();
  const std::string path = directory_ + "/run.html";
  EXPECT_THAT(ResultOf({"report", path.c_str(), "--for", "200ms", "--watch", "50ms"}),
              StartsWith(path + ": "));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string page = text.str();
  EXPECT_THAT(page, StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(page, ::testing::EndsWith("</body></html>\n"));
  for (const char* part : {"<td>gpt</td><td>training</td><td>2/2</td><td>41</td><td>195 KiB</td>",
                           "Job gpt", "rank 1 rCache", "host pool, of 1.00 MiB"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  for (const char* part : {"http", "<script", "src=", "url("})
    EXPECT_THAT(page, ::testing::Not(HasSubstr(part)));
  EXPECT_EQ(Run({"report", (directory_ + "/none/run.html").c_str(), "--for", "0s"}).status().id(),
            ErrorId::kFileWriteFailed);
  EXPECT_TRUE(Parse({"drain"}).invocation->fields.empty());
}

TEST_F(Memctl, ARunIsRecordedAndLookedAtAgain) {
  Serve();
  const std::string recording = directory_ + "/run.rec", trace = directory_ + "/run.json",
                    page = directory_ + "/run.html";
  EXPECT_THAT(ResultOf({"record", recording.c_str(), "--for", "100ms", "--watch", "50ms"}),
              StartsWith(recording + ": "));
  EXPECT_THAT(ResultOf({"timeline", trace.c_str(), "--from", recording.c_str()}),
              HasSubstr(" looks"));
  EXPECT_THAT(ResultOf({"report", page.c_str(), "--from", recording.c_str()}), HasSubstr(" looks"));
  EXPECT_THAT(ResultOf({"residency", "--from", recording.c_str(), "--at", "0"}),
              HasSubstr("rank 1 rCache .CC.<>"));
  EXPECT_THAT(ResultOf({"residency", "--from", recording.c_str(), "--at", "99", "--job", "7"}),
              ::testing::Not(HasSubstr("gpt")));
  std::stringstream text;
  text << std::ifstream(trace).rdbuf();
  EXPECT_THAT(text.str(), StartsWith("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[{\"ph\":\"M\""));
  EXPECT_THAT(text.str(), HasSubstr("\"name\":\"job gpt\""));
  EXPECT_EQ(Run({"residency", "--at", "1"}).status().exit_code(), kExitUsage) << "of what?";
  EXPECT_EQ(Run({"timeline", trace.c_str(), "--from", recording.c_str(), "--for", "1s"})
                .status()
                .exit_code(),
            kExitUsage);
  EXPECT_EQ(Run({"timeline", trace.c_str(), "--from", "/none"}).status().id(),
            ErrorId::kFileUnreadable);
  EXPECT_EQ(Run({"timeline", (directory_ + "/none/x").c_str(), "--from", recording.c_str()})
                .status()
                .id(),
            ErrorId::kFileWriteFailed);
  EXPECT_EQ(Run({"record", (directory_ + "/none/x").c_str()}).status().id(),
            ErrorId::kFileWriteFailed);
  server_.reset();
  EXPECT_FALSE(Run({"record", recording.c_str()}).ok());
  EXPECT_THAT(ResultOf({"residency", "--from", recording.c_str()}), HasSubstr("gpt"))
      << "what was recorded before is still there";
  for (const std::string& file : {recording, trace, page}) std::filesystem::remove(file);
}

// Six chunks in two looks: what moved is where the picture says.
TEST(RunReport, PicturesAreTheLooksOneBelowTheOther) {
  RunMoment first;
  ResidencyJob job;
  job.id = 1;
  job.name = "a<b>";
  job.version = 3;
  job.chunks = 6;
  job.rows = {{.place = "host pool", .letters = "..AA.."}};
  first.residency.jobs = {job};
  RunMoment second = first;
  second.status.uptime_seconds = 2;
  second.residency.jobs[0].rows[0].letters = "AA....";
  second.residency.jobs[0].version = 5;

  const std::string page = RenderReport({first, second});
  EXPECT_THAT(page, HasSubstr("y=\"18\" width=\"100%\" height=\"5\" role=\"img\" "
                              "aria-label=\". 4, A 2\"><rect class=\"ink-resident\""));
  EXPECT_THAT(page, HasSubstr("y=\"23\" width=\"100%\" height=\"5\" role=\"img\" "
                              "aria-label=\". 4, A 2\"><rect class=\"ink-updating\" x=\"0%\" "
                              "width=\"33.33%\" height=\"5\""));
  EXPECT_THAT(page, HasSubstr("sealed steps, 3 to 5"));
  EXPECT_THAT(page, HasSubstr("2 looks in 2.0 s"));
  EXPECT_THAT(page, HasSubstr("Job a&lt;b&gt;"));
  EXPECT_THAT(page, HasSubstr(">2.0 s</text>")) << "a tick of the time";
  EXPECT_THAT(page, ::testing::Not(HasSubstr("Loss"))) << "nobody tells of it";

  first.residency.jobs[0].rows = {{.place = "", .rank = 1, .letters = "CC...."}};
  EXPECT_THAT(RenderReport({first}),
              HasSubstr("<rect class=\"ink-absent\" x=\"33.33%\" width=\"66.67%\""))
      << "not held";
}

// Loss, tokens a second, step times and the sharing of CPUs, as the server tells of them.
TEST(RunReport, SaysHowTheTrainingGoes) {
  RunMoment first;
  JobView job;
  job.id = 1;
  job.version = 3;
  job.loss = 3.5;
  job.tokens_per_second = 1200;
  job.step_seconds = 0.25;
  job.step_seconds_p50 = 0.2;
  job.step_seconds_p99 = 0.4;
  first.jobs = {job};
  ResidencyJob seen;
  seen.id = 1;
  seen.phase = "forward";
  first.residency.jobs = {seen};
  RunMoment second = first;
  second.status.uptime_seconds = 10;
  second.jobs[0].loss = 2.5;
  second.jobs[0].cpus_shared = true;
  RunMoment third = second;
  third.status.uptime_seconds = 20;

  const std::string page = RenderReport({first, second, third});
  for (const char* part :
       {"Loss", ">3.5</text>", "Tokens a second", ">1000</text>", "Time of a step",
        ">400 ms</text>", "p99 of the last 128", "<rect class=\"ink-due\" x=\"50%\" width=\"50%\"",
        "<rect class=\"ink-coming\" x=\"0%\" width=\"100%\""}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
}

TEST_F(Memctl, ErrorsAreExplainedByNumberOrName) {
  EXPECT_THAT(ResultOf({"explain", "TP2101"}),
              AllOf(HasSubstr("TP2101  PoolFull: there is no room, or no right\n   The job "
                              "reserves more host memory than"),
                    HasSubstr("\n   fix:   give memserver a larger --pool")));
  EXPECT_EQ(ResultOf({"explain", "2101"}), ResultOf({"explain", "PoolFull"}));
  EXPECT_THAT(ResultOf({"explain", "TP2101", "-o", "json"}), HasSubstr("\"exit_code\":5"));
  EXPECT_THAT(ResultOf({"explain"}),
              AllOf(HasSubstr("NUMBER"), HasSubstr("TP2101  PoolFull"), HasSubstr("TP9002")));
  const auto unknown = Run({"explain", "PoolFul"});
  EXPECT_EQ(unknown.status().exit_code(), kExitUsage);
  EXPECT_THAT(unknown.status().Format(), HasSubstr("did you mean \"PoolFull\""));
}

TEST_F(Memctl, NvmeIsShownAndScrubbed) {
  Serve();
  EXPECT_EQ("\n" + ResultOf({"nvme", "status"}), R"(
DIRECTORY      SIZE      USED      FREE   READ   WRITTEN  STATE
/mnt/a     8.00 KiB  4.00 KiB  4.00 KiB  512 B  1.00 KiB  good
/mnt/b     8.00 KiB       0 B  8.00 KiB    0 B       0 B  a flush failed: takes no new jobs

engine  a simulated disk; 6 repetitions after errors
LATE    job 3 (gpt), chunk 1, piece 2, /mnt/b at offset 2048: a write for 41.5 s
WARNING 2 writes failed; 2 pieces in the pool instead (4.00 KiB), 0 waiting for room there
IN POOL job 3 (gpt), chunk 2, piece 0, /mnt/a at offset 512: Input/output error
IN POOL job 3 (gpt), chunk 5, piece 1, /mnt/a at offset 1024: No space left on device
MOVING  job 3 (gpt) from the pool: 4 of 9 pieces
moved   2 jobs whose room others needed, 4.00 KiB of the pool; 1 failed, 0 dropped
scrub   running: 5 of 9 pieces checked, 2.00 KiB in 1.5 s; 1 damaged
DAMAGED job 3 (gpt), chunk 4, piece 1, /mnt/a at offset 4096: its header is damaged
)");
  EXPECT_TRUE(loop_.TakeCommands().empty());
  EXPECT_THAT(ResultOf({"nvme", "scrub"}), HasSubstr("memctl nvme status"));
  EXPECT_EQ(loop_.TakeCommands().size(), 1u);
  EXPECT_EQ(Run({"nvme"}).status().id(), ErrorId::kUsageError);
}

TEST_F(Memctl, JsonIsTheServersOwn) {
  Serve();
  EXPECT_EQ(
      ResultOf({"ps", "-o", "json"}),
      api_.Answer({"GET", "/v1/jobs", "", {.level = memserver::AdminLevel::kAdmin}}).body + "\n");
  EXPECT_THAT(ResultOf({"-o", "json", "status"}), StartsWith("{\"state\":\"ready\""));
}

TEST_F(Memctl, OneJobIsChosenByNameOrNumber) {
  Serve();
  EXPECT_EQ(ResultOf({"ps", "--job", "gpt"}), ResultOf({"ps", "--job", "3"}));
  EXPECT_EQ(ResultOf({"ps", "--job", "gpt"}).find("detached"), std::string::npos);
  EXPECT_EQ(ResultOf({"residency", "--job", "7"}).find("gpt"), std::string::npos);
  for (const char* command : {"ps", "residency", "chunks"}) {
    const auto shown = Run({command, "--job", "no such/job?"});
    ASSERT_FALSE(shown.ok());
    EXPECT_EQ(shown.status().exit_code(), kExitNotFound);
    EXPECT_THAT(shown.status().Format(), HasSubstr("no such/job?"));
  }
}

TEST_F(Memctl, ChunksArePaged) {
  Serve();
  EXPECT_THAT(Run({"chunks", "--limit", "4"}).value().remark,
              HasSubstr("memctl chunks --limit 4 --cursor 3:4"));
  EXPECT_THAT(ResultOf({"chunks", "--tier", "nvme"}), ::testing::Not(HasSubstr("resident")));
  EXPECT_THAT(ResultOf({"chunks", "--tier", "rcache"}), HasSubstr("host    0,1"));
  EXPECT_THAT(ResultOf({"chunks", "--cursor", "3:4", "--state", "updating"}),
              HasSubstr("  3      5  updating"));
  EXPECT_EQ(Run({"chunks", "--state", "lost"}).status().exit_code(), kExitUsage);
}

TEST_F(Memctl, ServerErrorsKeepTheirExitCodes) {
  Serve();
  EXPECT_EQ(Run({"api", "GET", "/v1/nothing"}).status().exit_code(), kExitNotFound);
  EXPECT_EQ(Run({"api", "POST", "/v1/jobs"}).status().exit_code(), kExitUsage);
  EXPECT_EQ(Run({"api", "GET", "v1"}).status().exit_code(), kExitUsage);
  EXPECT_EQ(Run({"api", "GET", "/v1/x y"}).status().exit_code(), kExitUsage);
}

TEST_F(Memctl, WithoutAServerTheErrorSaysHowToStartOne) {
  for (const char* command : {"status", "ps", "residency", "chunks"}) {
    const auto shown = Run({command});
    ASSERT_FALSE(shown.ok());
    EXPECT_EQ(shown.status().exit_code(), kExitNoServer);
    EXPECT_THAT(shown.status().Format(), HasSubstr("memserver run"));
    EXPECT_THAT(shown.status().Format(), HasSubstr(directory_ + "/admin.sock"));
  }
  const auto version = Run({"version"});
  ASSERT_TRUE(version.ok());
  EXPECT_THAT(version.value().result, StartsWith("memctl"));
  EXPECT_THAT(version.value().remark, HasSubstr("TP3001"));
}

TEST_F(Memctl, ProbesAnswerByTheirExitCode) {
  EXPECT_EQ(Run({"ready"}).status().exit_code(), kExitNoServer);
  EXPECT_EQ(Run({"live"}).status().exit_code(), kExitNoServer);
  Serve();
  EXPECT_EQ(ResultOf({"ready"}), "memserver is ready\n");
  EXPECT_EQ(ResultOf({"live"}), "memserver is alive\n");
}

TEST_F(Memctl, ADrainWaitsForTheRanksThatAreLeft) {
  Serve();
  const Status waited = Run({"drain", "--wait", "1ms"}).status();
  EXPECT_EQ(waited.exit_code(), kExitTimeout);
  EXPECT_THAT(waited.what(), HasSubstr("2 ranks of 2 jobs are still attached"));
  EXPECT_EQ(loop_.TakeCommands().size(), 1u) << "it is drained all the same";
}

TEST_F(Memctl, WaitReadyTimesOutAndNamesTheReason) {
  const auto shown = Run({"wait-ready", "--timeout", "250ms"});
  ASSERT_FALSE(shown.ok());
  EXPECT_EQ(shown.status().exit_code(), kExitTimeout);
  EXPECT_THAT(shown.status().Format(), HasSubstr("no memserver listens"));
}

TEST_F(Memctl, WaitReadyWaitsForTheServer) {
  std::thread later([this] {
    SteadyClock().SleepNs(300 * kNsPerMs);
    Serve();
  });
  EXPECT_EQ(ResultOf({"wait-ready", "--timeout", "20s"}), "memserver is ready\n");
  later.join();
}

// A peer that listens but does not behave like memserver.
class OtherListener {
 public:
  explicit OtherListener(const std::string& path)
      : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(fd_.get(), 4), 0);
  }
  // Accepts one peer, sends `text`, closes.
  void AnswerOnce(const std::string& text) {
    const UniqueFd peer(accept(fd_.get(), nullptr, nullptr));
    send(peer.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }

 private:
  UniqueFd fd_;
};

TEST_F(Memctl, ASilentPeerIsATimeout) {
  const OtherListener listener(directory_ + "/admin.sock");
  const auto shown = Run({"status", "--timeout", "100ms"});
  ASSERT_FALSE(shown.ok());
  EXPECT_EQ(shown.status().exit_code(), kExitTimeout);
}

TEST_F(Memctl, APeerThatSpeaksOtherwiseIsAnError) {
  for (const char* text :
       {"", "hello, who are you?\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot json!",
        "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"}) {
    std::filesystem::remove(directory_ + "/admin.sock");
    OtherListener listener(directory_ + "/admin.sock");
    std::thread peer([&] { listener.AnswerOnce(text); });
    const auto shown = Run({"status"});
    peer.join();
    ASSERT_FALSE(shown.ok()) << text;
    EXPECT_TRUE(shown.status().id() == ErrorId::kHandshakeBad ||
                shown.status().id() == ErrorId::kServerGone)
        << shown.status().Format();
  }
}

}  // namespace memctl_commands_test
}  // namespace tidepool::client
