#include "memserver/admin/admin_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "memserver/admin/request_target.h"
#include "memserver/admin/request_body.h"
#include "tests/memserver/admin/admin_fixture.h"

namespace tidepool::memserver {
namespace admin_api_test {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class AdminApiTest : public ::testing::Test {
 protected:
  // Everything as an admin, unless a test says otherwise.
  AdminAnswer Ask(const char* method, const std::string& target, const std::string& body = "",
                  AdminLevel level = AdminLevel::kAdmin) {
    return api_.Answer({method, target, body, {.uid = 7, .pid = 8, .level = level}});
  }
  AdminAnswer Get(const std::string& target) { return Ask("GET", target); }
  std::string BodyOf(const std::string& target) {
    const AdminAnswer answer = Get(target);
    EXPECT_EQ(answer.status, 200u) << answer.body;
    EXPECT_STREQ(answer.content_type, "application/json");
    return answer.body;
  }
  void ExpectProblem(const std::string& target, unsigned status, const std::string& text) {
    const AdminAnswer answer = Get(target);
    EXPECT_EQ(answer.status, status) << target;
    EXPECT_STREQ(answer.content_type, "application/problem+json");
    EXPECT_THAT(answer.body, HasSubstr("\"status\":" + std::to_string(status)));
    EXPECT_THAT(answer.body, HasSubstr("\"code\":\"TP310"));
    EXPECT_THAT(answer.body, HasSubstr("\"remedy\":\""));
    EXPECT_THAT(answer.body, HasSubstr(text)) << target;
  }

  FakeLoop loop_;
  AdminApi api_{Facts(), &loop_.source, loop_.mail()};
};

TEST_F(AdminApiTest, VersionNamesReleaseAndAbi) {
  EXPECT_EQ(
      BodyOf("/v1/version"),
      R"({"name":"tidepool","version":"1.2.3","abi":9,"build":"test build","devices":["host"],"pid":77})");
}

TEST_F(AdminApiTest, StatusCarriesTheNumbersOfTheSnapshot) {
  const std::string body = BodyOf("/v1/status");
  EXPECT_THAT(body, HasSubstr(R"("state":"ready")"));
  EXPECT_THAT(body, HasSubstr(R"("uptime_seconds":90)"));
  EXPECT_THAT(
      body,
      HasSubstr(
          R"("pool":{"bytes":1048576,"bytes_used":262144,"bytes_free":786432,"frozen_bytes":0,"frozen_chunks":0,"huge_page_bytes":524288,"touch_seconds":2.5})"));
  EXPECT_THAT(body, HasSubstr(R"("rcache":{"bytes_limit":4096,"bytes_used":2048})"));
  EXPECT_THAT(body, HasSubstr(R"("jobs":2,"sessions":2)"));
}

TEST_F(AdminApiTest, JobsAreListedWithCountsOfChunkStates) {
  const std::string body = BodyOf("/v1/jobs");
  EXPECT_THAT(body, HasSubstr(R"("id":3,"name":"gpt")"));
  EXPECT_THAT(
      body,
      HasSubstr(
          R"("chunk_states":{"empty":1,"resident":1,"gradients":1,"complete":1,"update-due":1,"updating":1,"frozen":0})"));
  EXPECT_THAT(body, HasSubstr(R"("id":5,"name":"7","uid":0,"state":"detached")"));
  EXPECT_THAT(body, Not(HasSubstr("sessions")));
}

TEST_F(AdminApiTest, OneJobIsFoundByNumberOrName) {
  EXPECT_EQ(BodyOf("/v1/jobs/3"), BodyOf("/v1/jobs/gpt"));
  EXPECT_THAT(BodyOf("/v1/jobs/3"),
              HasSubstr(R"("sessions":[{"id":8,"rank":0,"pid":100,"rcache_bytes":1024)"));
  EXPECT_THAT(BodyOf("/v1/jobs/7"), HasSubstr(R"("id":5)"))
      << "no job has the number 7, one has the name";
  EXPECT_EQ(BodyOf("/v1/jobs/%67pt"), BodyOf("/v1/jobs/gpt"));
}

TEST_F(AdminApiTest, ResidencyIsRunLengthEncoded) {
  const std::string body = BodyOf("/v1/residency?job=gpt");
  EXPECT_THAT(
      body,
      HasSubstr(
          R"({"kind":"rcache","rank":0,"chunks_held":1,"bytes_limit":1024,"runs":[[".",1],["C",1],[".",3],[">",1]],"chunks":)"));
  EXPECT_THAT(
      body,
      HasSubstr(
          R"({"kind":"rcache","rank":1,"chunks_held":2,"bytes_limit":1024,"runs":[[".",1],["C",2],[".",1],["<",1],[">",1]],"chunks":)"));
  EXPECT_THAT(body, HasSubstr(R"("runs":[["_",1],[".",1],["g",1],["G",1],["O",1],["A",1]])"));
  EXPECT_THAT(
      body,
      HasSubstr(
          R"("legend":{"C":"in rCache",">":"on its way in","<":"gradient on its way out","_":"empty")"));
  EXPECT_THAT(
      body,
      HasSubstr(
          R"("step":{"phase":"backward","chunks_done":4,"micro_batch":1,"micro_batches":2})"));
  EXPECT_THAT(body,
              HasSubstr(R"("last_step":{"fetches":9,"fetches_waited":2,"bytes_fetched":36864,)"
                        R"("fetch_wait_seconds":0.25})"));
  EXPECT_THAT(body, HasSubstr(R"("chunks":{">":1,"<":1,"C":2,".":2}})"));
  EXPECT_THAT(BodyOf("/v1/residency"), HasSubstr(R"("runs":[[".",2]])"))
      << "without a job, all of them";
}

TEST_F(AdminApiTest, ResidencyIsToldByLayerTensorAndJobToo) {
  const std::string layers = BodyOf("/v1/residency?job=gpt&by=layer");
  EXPECT_THAT(layers, HasSubstr(R"({"by":"layer","pool")"));
  EXPECT_THAT(
      layers,
      HasSubstr(
          R"~("columns":[{"name":"h.0","chunks":1,"bytes":2112},{"name":"h.1","chunks":1,"bytes":2048},)~"
          R"~({"name":"(no tensor)","chunks":4,"bytes":16384}],"rows")~"));
  EXPECT_THAT(
      layers,
      HasSubstr(R"("rank":1,"chunks_held":2,"bytes_limit":1024,"runs":[["C",1],[">",1],["<",1]],)"))
      << "of four, one is sent";
  EXPECT_THAT(
      layers,
      HasSubstr(
          R"("runs":[[".",1],["A",1],["O",1]],"chunks":{"A":1,"O":1,"g":1,"G":1,"_":1,".":1}})"));
  EXPECT_THAT(layers, HasSubstr(R"("c":"some of it in rCache")"));
  const std::string tensors = BodyOf("/v1/residency?job=gpt&by=tensor");
  EXPECT_THAT(
      tensors,
      HasSubstr(
          R"([{"name":"h.0.weight","chunks":1,"bytes":2048},{"name":"h.0.bias","chunks":1,"bytes":64},)"));
  EXPECT_THAT(tensors, HasSubstr(R"("runs":[[".",2],["A",1],["O",1]])"));
  const std::string jobs = BodyOf("/v1/residency?by=job");
  EXPECT_THAT(jobs, HasSubstr(R"("columns":[{"name":"gpt","chunks":6,"bytes":24576}])"));
  EXPECT_THAT(
      jobs,
      HasSubstr(R"("columns":[{"name":"7","chunks":2,"bytes":512}],"rows":[{"kind":"host_pool")"));
  EXPECT_EQ(BodyOf("/v1/residency?by=chunk"), BodyOf("/v1/residency"));
  ExpectProblem("/v1/residency?by=rank", 400, "chunk, layer, expert, tensor or job");
}

// Names of layers end with their first number; a column of which a rank holds some is told apart.
TEST(ResidencyReport, PutsTheTensorsOfALayerTogetherWhereverTheyLie) {
  Snapshot snapshot = TwoJobs();
  auto spec = std::make_shared<shm::JobSpec>();
  const auto add = [&](const char* name, uint32_t chunk) {
    spec->parameters.push_back({.name = name, .dims = {}, .chunk = chunk, .element_count = 8});
  };
  add("wte", 0);
  add("model.layers.0.mlp.experts.7.w", 1);
  add("model.norm.weight", 2);
  add("model.layers.10.w", 2);
  add("model.layers.0.w", 3);
  spec->chunks.resize(4);
  spec->frozen.resize(2);
  snapshot.jobs[0].spec = spec;
  snapshot.frozen_chunks = 2;
  const std::string text = ResidencyReport(snapshot, {&snapshot.jobs[0]}, ResidencyBy::kLayer);
  EXPECT_THAT(
      text,
      HasSubstr(
          R"([{"name":"wte","chunks":1,"bytes":32},{"name":"model.layers.0","chunks":2,"bytes":64},)"));
  EXPECT_THAT(
      text,
      HasSubstr(
          R"({"name":"model.norm","chunks":1,"bytes":32},{"name":"model.layers.10","chunks":1,"bytes":32},)"));
  EXPECT_THAT(text, HasSubstr(R"~({"name":"(frozen)","chunks":2,"bytes":8192}])~"));
  EXPECT_THAT(text, HasSubstr(R"("rank":0,"chunks_held":1,"bytes_limit":1024,)"
                              R"("runs":[[".",1],["c",1],[".",2],[">",1]])"));

  // Chunk 0 stays fp32 beside 16-bit ones, and the frozen chunks are bytes.
  spec->dtype = DType::kBF16;
  spec->f32_chunks = 1;
  for (const ChunkId id : {4, 5}) snapshot.jobs[0].chunks[id].dtype = DType::kRaw;
  const std::string mixed = ResidencyReport(snapshot, {&snapshot.jobs[0]}, ResidencyBy::kLayer);
  EXPECT_THAT(mixed, HasSubstr(R"([{"name":"wte","chunks":1,"bytes":32},)"));
  EXPECT_THAT(mixed, HasSubstr(R"({"name":"model.norm","chunks":1,"bytes":16})"));
  EXPECT_THAT(mixed, HasSubstr(R"~({"name":"(frozen)","chunks":2,"bytes":2048}])~"));
}

TEST_F(AdminApiTest, ChunksArePagedByCursor) {
  std::string all, target = "/v1/chunks?limit=3";
  int pages = 0;
  while (true) {
    const std::string body = BodyOf(target);
    ++pages;
    all += body;
    const size_t at = body.find("\"next_cursor\":\"");
    if (at == std::string::npos) break;
    const size_t begin = at + 15;
    target = "/v1/chunks?limit=3&cursor=" + body.substr(begin, body.find('"', begin) - begin);
    ASSERT_LT(pages, 10);
  }
  EXPECT_EQ(pages, 3);
  for (int chunk = 0; chunk < 6; ++chunk)
    EXPECT_THAT(all, HasSubstr("{\"job\":3,\"chunk\":" + std::to_string(chunk) + ","));
  EXPECT_THAT(all, HasSubstr("{\"job\":5,\"chunk\":1,"));
  size_t rows = 0;
  for (size_t at = all.find("{\"job\":"); at != std::string::npos;
       at = all.find("{\"job\":", at + 1))
    ++rows;
  EXPECT_EQ(rows, 8u) << "a chunk was shown twice or never";
}

TEST_F(AdminApiTest, ChunksAreFilteredByJobAndState) {
  EXPECT_EQ(
      BodyOf("/v1/chunks?job=gpt&state=gradients"),
      R"({"chunks":[{"job":3,"chunk":2,"state":"gradients","data_group":0,"elements":1024,)"
      R"("dtype":"fp32","bytes":16384,"version":41,)"
      R"("fetches":5,"states_on_nvme":false,"weights_on_nvme":false,"ranks_cached":[1]}],"next_cursor":null})");
  EXPECT_EQ(BodyOf("/v1/chunks?job=5&state=empty"), R"({"chunks":[],"next_cursor":null})");
  EXPECT_EQ(BodyOf("/v1/chunks?tier=nvme"), R"({"chunks":[],"next_cursor":null})");
  EXPECT_EQ(BodyOf("/v1/chunks?tier=host"), BodyOf("/v1/chunks"));
  const std::string held = BodyOf("/v1/chunks?tier=rcache");
  EXPECT_THAT(held, HasSubstr(R"("chunk":1,)"));
  EXPECT_THAT(held, HasSubstr(R"("chunk":2,)"));
  EXPECT_THAT(held, Not(HasSubstr(R"("ranks_cached":[])")));
  ExpectProblem("/v1/chunks?tier=tape", 400, "rcache, host, nvme");
}

TEST_F(AdminApiTest, WhatIsUnknownIsAProblemWithARemedy) {
  ExpectProblem("/v2/status", 404, "/v1/status");
  ExpectProblem("/", 404, "no path");
  ExpectProblem("/v1/jobs/3/pause", 404, "no path");
  ExpectProblem("/v1/jobs/none", 404, "jobs there are: gpt, 7");
  ExpectProblem("/v1/jobs/none", 404, "\"code\":\"TP3101\"");
  ExpectProblem("/v1/chunks?state=lost", 400, "\"code\":\"TP3102\"");
  ExpectProblem("/v1/residency?job=none", 404, "none");
  ExpectProblem("/v1/chunks?jobb=3", 400, "did you mean \\\"job\\\"");
  ExpectProblem("/v1/status?verbose=1", 400, "verbose");
  ExpectProblem("/v1/chunks?job=3&job=5", 400, "twice");
  ExpectProblem("/v1/chunks?state=lost", 400, "states are: empty, resident");
  ExpectProblem("/v1/chunks?limit=0", 400, "0 chunks");
  ExpectProblem("/v1/chunks?limit=10001", 400, "10000");
  ExpectProblem("/v1/chunks?limit=-1", 400, "whole number");
  for (const char* cursor : {"x", "3", "3:", ":1", "3:1x", "99999999999:0", ""}) {
    ExpectProblem(std::string("/v1/chunks?cursor=") + cursor, 400, "no cursor");
  }
  ExpectProblem("v1/status", 400, "not one");
  ExpectProblem("/v1/%zz", 400, "not one");
  ExpectProblem("/" + std::string(kTargetBytesMax, 'a'), 400, "longer");
}

TEST_F(AdminApiTest, ACursorBeyondTheEndIsAnEmptyPage) {
  EXPECT_EQ(BodyOf("/v1/chunks?cursor=99:0"), R"({"chunks":[],"next_cursor":null})");
  EXPECT_EQ(BodyOf("/v1/chunks?job=gpt&cursor=3:1000"), R"({"chunks":[],"next_cursor":null})");
}

TEST_F(AdminApiTest, JobsAreSuspendedResumedAndReleased) {
  EXPECT_EQ(Ask("POST", "/v1/jobs/gpt/suspend").status, 200u);
  EXPECT_EQ(Ask("POST", "/v1/jobs/gpt/resume").status, 200u);
  EXPECT_EQ(Ask("DELETE", "/v1/jobs/gpt").status, 200u);
  EXPECT_EQ(Ask("DELETE", "/v1/jobs/gpt?force=true").status, 200u);
  EXPECT_EQ(Ask("DELETE", "/v1/jobs/gpt?force=maybe").status, 400u);
  EXPECT_EQ(Ask("POST", "/v1/jobs/gpt/suspend?force=true").status, 400u);
  const auto commands = loop_.TakeCommands();
  ASSERT_EQ(commands.size(), 4u);
  EXPECT_TRUE(std::get<SuspendJob>(commands[0].what).suspended);
  EXPECT_FALSE(std::get<SuspendJob>(commands[1].what).suspended);
  EXPECT_FALSE(std::get<ReleaseJob>(commands[2].what).force);
  EXPECT_TRUE(std::get<ReleaseJob>(commands[3].what).force);
}

TEST_F(AdminApiTest, AJobIsEvictedAndTheServerEnded) {
  EXPECT_EQ(Ask("POST", "/v1/jobs/gpt/evict").status, 200u);
  const auto commands = loop_.TakeCommands();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(std::get<EvictJob>(commands[0].what).job, "gpt");
  EXPECT_EQ(Ask("POST", "/v1/shutdown").status, 200u);
  EXPECT_EQ(Ask("POST", "/v1/shutdown?keep=false").status, 200u);
  EXPECT_EQ(Ask("POST", "/v1/shutdown?keep=maybe").status, 400u);
  EXPECT_EQ(Ask("POST", "/v1/shutdown", "", AdminLevel::kOperator).status, 403u);
  EXPECT_EQ(loop_.TakeMainCommands(),
            (std::vector{MainCommand::What::kHandOver, MainCommand::What::kEnd}));
}

TEST_F(AdminApiTest, OneChunkIsFoundByItsNumberWithinItsJob) {
  EXPECT_THAT(BodyOf("/v1/chunks/1?job=gpt"), StartsWith(R"({"job":3,"chunk":1,"state":)"));
  ExpectProblem("/v1/chunks/1", 400, "the parameter job is missing, and 2 jobs are there");
  for (const char* chunk : {"99", "-1", "1x", "x"})
    ExpectProblem("/v1/chunks/" + std::string(chunk) + "?job=gpt", 404, "its chunks are 0 to ");
}

TEST_F(AdminApiTest, TiersAddUpToWhatJobsHave) {
  const std::string tiers = BodyOf("/v1/tiers");
  for (const char* kind : {"rcache", "host", "nvme"})
    EXPECT_THAT(tiers, HasSubstr("{\"kind\":\"" + std::string(kind) + "\",\"bytes\":"));
  EXPECT_THAT(Ask("GET", "/metrics/summary").body, HasSubstr("job       gpt: "));
}

TEST_F(AdminApiTest, TheServerIsDrainedAndItsLogLevelChanged) {
  EXPECT_EQ(Ask("POST", "/v1/drain").status, 200u);
  EXPECT_EQ(Ask("DELETE", "/v1/drain").status, 200u);
  EXPECT_EQ(Ask("PUT", "/v1/log", R"({"level":"debug","for":"10s"})").status, 200u);
  EXPECT_EQ(Ask("PUT", "/v1/log", R"({"level":"loud"})").status, 400u);
  EXPECT_EQ(Ask("PUT", "/v1/log", R"({"level":"debug","for":"long"})").status, 400u);
  EXPECT_EQ(Ask("PUT", "/v1/log", R"({"level":"debug"})", AdminLevel::kOperator).status, 403u);
  EXPECT_EQ(Ask("POST", "/v1/drain", "", AdminLevel::kUser).status, 403u);
  EXPECT_EQ(Ask("GET", "/v1/drain").status, 405u);
  const auto commands = loop_.TakeCommands();
  ASSERT_EQ(commands.size(), 3u);
  EXPECT_TRUE(std::get<DrainJobs>(commands[0].what).draining);
  EXPECT_FALSE(std::get<DrainJobs>(commands[1].what).draining);
  EXPECT_EQ(std::get<ChangeLogLevel>(commands[2].what).for_ns, 10 * kNsPerSecond);
}

TEST_F(AdminApiTest, ChecksOfHealthAreMutedByNameForATime) {
  EXPECT_EQ(Ask("PUT", "/v1/health/mutes", R"({"check":"DRAINING","for":"1h"})").status, 200u);
  EXPECT_EQ(Ask("DELETE", "/v1/health/mutes?check=DRAINING").status, 200u);
  for (const char* body :
       {R"({"check":"DRAINED","for":"1h"})", R"({"check":"DRAINING"})",
        R"({"check":"DRAINING","for":"0s"})", R"({"check":"DRAINING","for":"721h"})",
        R"({"check":"DRAINING","for":"soon"})", R"({"for":"1h"})"}) {
    EXPECT_EQ(Ask("PUT", "/v1/health/mutes", body).status, 400u) << body;
  }
  EXPECT_EQ(Ask("DELETE", "/v1/health/mutes").status, 400u);
  EXPECT_EQ(Ask("DELETE", "/v1/health/mutes?check=no").status, 400u);
  EXPECT_EQ(Ask("PUT", "/v1/health/mutes", R"({"check":"DRAINING","for":"1h"})", AdminLevel::kUser)
                .status,
            403u);
  const auto commands = loop_.TakeCommands();
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(std::get<MuteCheck>(commands[0].what).code, "DRAINING");
  EXPECT_EQ(std::get<MuteCheck>(commands[0].what).for_ns, 3600 * kNsPerSecond);
  EXPECT_EQ(std::get<MuteCheck>(commands[1].what).for_ns, 0);
}

// fz_admin: a list of methods was taken for one, and then there was no such change.
TEST_F(AdminApiTest, SeveralMethodsAreNone) {
  EXPECT_EQ(Ask("PUT, DELETE", "/v1/health/mutes").status, 405u);
  EXPECT_EQ(Ask("POST, DELETE", "/v1/drain").status, 405u);
  EXPECT_EQ(Ask("", "/v1/drain").status, 405u);
}

TEST_F(AdminApiTest, OtherMethodsAreRefusedWithTheOnesAllowed) {
  for (const char* method : {"POST", "PUT", "PATCH", "OPTIONS", "BREW"}) {
    const AdminAnswer answer = Ask(method, "/v1/jobs/3");
    EXPECT_EQ(answer.status, 405u);
    EXPECT_EQ(answer.allow, "GET, HEAD, DELETE");
  }
  EXPECT_EQ(Ask("POST", "/nowhere").status, 404u);
}

TEST_F(AdminApiTest, AQuotaIsMailedToTheLoopWithTheCaller) {
  const AdminAnswer answer =
      Ask("PUT", "/v1/jobs/gpt/quota",
          R"({"limit":"50%","guarantee":4096,"nvme_limit":"1KiB","weight":3,"priority":"high"})");
  EXPECT_EQ(answer.status, 200u) << answer.body;
  EXPECT_EQ(answer.body, R"({"result":"done"})");
  const auto commands = loop_.TakeCommands();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].caller.uid, 7u);
  EXPECT_EQ(commands[0].caller.pid, 8);
  const auto& set = std::get<SetJobQuota>(commands[0].what);
  EXPECT_EQ(set.job, "gpt");
  EXPECT_EQ(set.change.limit, uint64_t{1} << 19);
  EXPECT_EQ(set.change.guarantee, 4096u);
  EXPECT_EQ(set.change.nvme_limit, 1024u);
  EXPECT_EQ(set.change.weight, 3u);
  EXPECT_EQ(set.change.priority, Priority::kHigh);
}

TEST_F(AdminApiTest, ABadBodyChangesNothing) {
  for (const char* body :
       {"", "{}", "[]", "7", "{\"weight\":0}", "{\"weight\":101}", "{\"weight\":-1}",
        "{\"weight\":1.5}", "{\"weight\":[1]}", "{\"limit\":\"many\"}", "{\"limit\":true}",
        "{\"guarantee\":\"none\"}", "{\"nvme_limit\":\"50%\"}", "{\"priority\":\"top\"}",
        "{\"colour\":\"red\"}", "{\"weight\":1", "{\"a\":{\"b\":{}}}"}) {
    const AdminAnswer answer = Ask("PUT", "/v1/jobs/gpt/quota", body);
    EXPECT_EQ(answer.status, 400u) << body;
    EXPECT_THAT(answer.body, HasSubstr("\"code\":\"TP3102\"")) << body;
  }
  EXPECT_EQ(Ask("PUT", "/v1/jobs/gpt/quota", std::string(kBodyBytesMax + 1, ' ')).status, 400u);
  EXPECT_TRUE(loop_.TakeCommands().empty());
}

TEST_F(AdminApiTest, WhoeverChangedSomethingSeesItInTheNextAnswer) {
  ASSERT_EQ(Ask("PUT", "/v1/jobs/gpt/quota", R"({"weight":2})").status, 200u);
  const int asked = loop_.asked;
  Get("/v1/quotas");
  EXPECT_EQ(loop_.asked, asked + 1);
}

TEST_F(AdminApiTest, ARefusedChangeKeepsItsReason) {
  loop_.AnswerWith(Status(ErrorId::kQuotaRefused, "no room").Why("gpt holds all"));
  const AdminAnswer answer = Ask("PUT", "/v1/jobs/gpt/quota", R"({"guarantee":1})");
  EXPECT_EQ(answer.status, 409u);
  EXPECT_THAT(answer.body, HasSubstr(R"("code":"TP2105")"));
  EXPECT_THAT(answer.body, HasSubstr(R"("why":"gpt holds all")"));
}

TEST_F(AdminApiTest, AUserSeesItsOwnJobsAndChangesNoQuota) {
  // In the picture, both jobs are of user 0.
  const auto seen = [this](const std::string& target) {
    return Ask("GET", target, "", AdminLevel::kUser);
  };
  EXPECT_EQ(seen("/v1/jobs").body, R"({"jobs":[],"lost":[]})");
  EXPECT_THAT(
      Ask("GET", "/v1/jobs").body,
      HasSubstr(
          R"("lost":[{"name":"old","uid":0,"version":3,"at":1793000000,"why":"its lease"}])"));
  EXPECT_EQ(seen("/v1/jobs/gpt").status, 404u);
  EXPECT_THAT(seen("/v1/jobs/gpt").body, Not(HasSubstr("jobs there are: gpt")));
  EXPECT_THAT(seen("/v1/residency").body, HasSubstr(R"("jobs":[])"));
  EXPECT_EQ(seen("/v1/chunks").body, R"({"chunks":[],"next_cursor":null})");
  EXPECT_THAT(seen("/v1/quotas").body, HasSubstr("user:7")) << "its own account";
  const AdminAnswer root =
      api_.Answer({"GET", "/v1/jobs", "", {.uid = 0, .level = AdminLevel::kUser}});
  EXPECT_THAT(root.body, HasSubstr("gpt")) << "who owns the jobs sees them at every level";
  const AdminAnswer refused =
      Ask("PUT", "/v1/jobs/gpt/quota", R"({"weight":2})", AdminLevel::kUser);
  EXPECT_EQ(refused.status, 403u);
  EXPECT_THAT(refused.body, HasSubstr("operator"));
  EXPECT_TRUE(loop_.TakeCommands().empty());
}

TEST_F(AdminApiTest, GetNeverChangesAnything) {
  const AdminAnswer answer = Ask("GET", "/v1/jobs/gpt/quota", R"({"weight":2})");
  EXPECT_EQ(answer.status, 405u);
  EXPECT_EQ(answer.allow, "PUT");
  EXPECT_TRUE(loop_.TakeCommands().empty());
}

TEST_F(AdminApiTest, QuotasShowAccountsAndWhoWaits) {
  const std::string body = BodyOf("/v1/quotas");
  EXPECT_THAT(
      body,
      HasSubstr(
          R"({"account":"user:7","guarantee_bytes":4096,"limit_bytes":null,"nvme_limit_bytes":512,"weight":2,"priority":"low","bytes_used":11,"bytes_room":22,"nvme_bytes_used":33})"));
  EXPECT_THAT(body, HasSubstr(R"("waiting":[{"name":"big","account":"user:7")"));
}

TEST_F(AdminApiTest, NvmeShowsEachDirectoryAndTheScrub) {
  EXPECT_EQ(
      BodyOf("/v1/nvme"),
      R"({"engine":"a simulated disk","repetitions":6,"transfers":0,"blocks_stalled":0,"directories":[)"
      R"({"path":"/mnt/a","bytes":8192,"bytes_used":4096,"bytes_free":4096,"bytes_read":512,"bytes_written":1024,"failed":false},)"
      R"({"path":"/mnt/b","bytes":8192,"bytes_used":0,"bytes_free":8192,"bytes_read":0,"bytes_written":0,"failed":true}],)"
      R"("unwritten":{"writes_failed":2,"pieces_in_pool":2,"bytes_in_pool":4096,"pieces_waiting":0,"pieces":[)"
      R"({"job":3,"name":"gpt","chunk":2,"piece":0,"directory":"/mnt/a","offset":512,"error":"Input/output error","in_pool":true},)"
      R"({"job":3,"name":"gpt","chunk":5,"piece":1,"directory":"/mnt/a","offset":1024,"error":"No space left on device","in_pool":true}]},)"
      R"("late":[{"job":3,"name":"gpt","chunk":1,"piece":2,"directory":"/mnt/b","offset":2048,"write":true,"seconds":41.5,"lost":false}],)"
      R"("demotion":{"job":3,"name":"gpt","pieces":9,"pieces_written":4,"jobs_moved":2,"jobs_failed":1,"jobs_dropped":0,"pool_bytes_freed":4096},)"
      R"("scrub":{"state":"running","seconds":1.5,"pieces":9,"pieces_checked":5,"bytes_checked":2048,"repetitions":1,"pieces_damaged":1,)"
      R"("damage":[{"job":3,"name":"gpt","chunk":4,"piece":1,"directory":"/mnt/a","offset":4096,"what":"its header is damaged"}]}})");
  EXPECT_THAT(BodyOf("/v1/status"),
              HasSubstr(R"("failed_directory":"","directories":["/mnt/a","/mnt/b"])"));
}

TEST_F(AdminApiTest, AScrubIsPostedAndNeverBegunByGet) {
  EXPECT_EQ(Ask("GET", "/v1/nvme/scrub").status, 405u);
  EXPECT_EQ(Ask("GET", "/v1/nvme/scrub").allow, "POST");
  EXPECT_EQ(Ask("POST", "/v1/nvme").status, 405u);
  EXPECT_EQ(Ask("POST", "/v1/nvme/scrub", R"({"now":true})").status, 400u);
  EXPECT_TRUE(loop_.TakeCommands().empty());
  EXPECT_EQ(Ask("POST", "/v1/nvme/scrub").status, 200u);
  const auto commands = loop_.TakeCommands();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<StartScrub>(commands[0].what));
}

TEST_F(AdminApiTest, TensorsAreFoundByNameOrChunkWithWhereTheyLie) {
  EXPECT_EQ(
      BodyOf("/v1/tensors?name=0.weight"),
      R"({"tensors":[{"job":3,"name":"h.0.weight","dims":[32,16],"elements":512,"chunk":1,"element_begin":0,"state":"resident",)"
      R"("version":41,"states_on_nvme":false,"ranks_cached":[0,1]}],"next_cursor":null})");
  EXPECT_THAT(BodyOf("/v1/tensors?job=gpt&chunk=5"), HasSubstr("h.1.weight"));
  EXPECT_THAT(BodyOf("/v1/tensors?job=gpt&chunk=5"), Not(HasSubstr("h.0")));
  EXPECT_THAT(BodyOf("/v1/tensors?limit=2"), HasSubstr(R"("next_cursor":"3:2")"));
  EXPECT_THAT(BodyOf("/v1/tensors?limit=2&cursor=3:2"), HasSubstr("h.1.weight"));
  EXPECT_EQ(BodyOf("/v1/tensors?job=7"), R"({"tensors":[],"next_cursor":null})");
  ExpectProblem("/v1/tensors?limit=0", 400, "0 tensors");
  ExpectProblem("/v1/tensors?chunk=x", 400, "whole number");
  ExpectProblem("/v1/tensors?cursor=3", 400, "no cursor");
  ExpectProblem("/v1/tensors?job=none", 404, "none");
  EXPECT_EQ(Ask("GET", "/v1/tensors", "", AdminLevel::kUser).body,
            R"({"tensors":[],"next_cursor":null})")
      << "others' tensors are not there";
}

TEST_F(AdminApiTest, SettingsAreShownToOperatorsWithTheirOrigins) {
  EXPECT_EQ(
      BodyOf("/v1/config"),
      R"({"file":"/etc/x.toml","settings":[)"
      R"({"key":"pool.size","value":"8GiB","origin":"/etc/x.toml:3","default":"50%","reloads":false},)"
      R"({"key":"log.level","value":"info","origin":"default","default":"info","reloads":true}],)"
      R"("quotas":[{"match":"user:7","origin":"/etc/x.toml:5","guarantee":"4KiB","weight":2,"priority":"normal"}]})");
  EXPECT_THAT(BodyOf("/v1/config/diff"), Not(HasSubstr("log.level")));
  EXPECT_THAT(BodyOf("/v1/config/diff"), HasSubstr("pool.size"));
  EXPECT_EQ(Ask("GET", "/v1/config", "", AdminLevel::kUser).status, 403u);
  EXPECT_EQ(Ask("GET", "/v1/config/diff", "", AdminLevel::kUser).status, 403u);
}

TEST_F(AdminApiTest, AReloadIsTheAdminsAndSaysWhatWasAppliedOrWhyNot) {
  EXPECT_EQ(Ask("GET", "/v1/reload").allow, "POST");
  EXPECT_EQ(Ask("POST", "/v1/reload", "", AdminLevel::kOperator).status, 403u);
  EXPECT_EQ(Ask("POST", "/v1/reload", R"({"file":"/etc/passwd"})").status, 400u);
  EXPECT_EQ(Ask("POST", "/v1/reload").body, R"({"result":"done","applied":["log.level"]})");
  EXPECT_EQ(Ask("POST", "/v1/reload?dry_run=true").body,
            R"({"result":"planned","would_apply":["log.level"]})");
  EXPECT_EQ(Ask("POST", "/v1/reload?dry_run=maybe").status, 400u);
  EXPECT_TRUE(loop_.TakeCommands().empty()) << "the main thread reads files, not the loop";
  loop_.AnswerWith(
      Status(ErrorId::kConfigNeedsRestart, "no").Where("/etc/x.toml").Why("pool.size"));
  const AdminAnswer refused = Ask("POST", "/v1/reload");
  EXPECT_EQ(refused.status, 409u);
  EXPECT_THAT(refused.body, HasSubstr(R"("code":"TP1105","name":"ConfigNeedsRestart",)"
                                      R"("where":"/etc/x.toml","why":"pool.size")"));
}

TEST_F(AdminApiTest, ProbesSayOkOnAReadyServer) {
  EXPECT_THAT(BodyOf("/livez"), HasSubstr(R"("status":"ok")"));
  EXPECT_THAT(BodyOf("/readyz"), HasSubstr(R"("status":"ok")"));
}

TEST(AdminApi, StatesThatADriveDoesNotTakeOrAnswerAreNamedByHealthAsWarningsAndErrors) {
  for (const bool worse : {false, true}) {
    Snapshot snapshot = TwoJobs();
    snapshot.nvme.pieces_waiting = worse ? 1 : 0;
    snapshot.nvme.unwritten[1].in_pool = !worse;
    snapshot.nvme.late[0].lost = worse;
    FakeLoop loop(snapshot);
    AdminApi api(Facts(), &loop.source, loop.mail());
    const std::string body = api.Answer({"GET", "/v1/health", "", kAdmin}).body,
                      severity = worse ? "error" : "warn";
    EXPECT_THAT(body, HasSubstr(R"("code":"NVME_WRITE_FAILED","severity":")" + severity));
    EXPECT_THAT(
        body,
        HasSubstr("job 3 (gpt), chunk 5, piece 1, /mnt/a at offset 1024: No space left on device" +
                  std::string(worse ? "; the job waits" : "\"")));
    EXPECT_THAT(body, HasSubstr(R"("code":"NVME_LATE","severity":")" + severity));
    EXPECT_THAT(
        body,
        HasSubstr("job 3 (gpt), chunk 1, piece 2, /mnt/b at offset 2048: a write, for 41.5 s"));
    // Another user's jobs are not named.
    const AdminAnswer other =
        api.Answer({"GET", "/v1/health", "", {.uid = 4321, .level = AdminLevel::kUser}});
    EXPECT_THAT(other.body, Not(HasSubstr("gpt")));
  }
}

TEST(AdminApi, HealthNamesGpusThatFailedWereNotPinnedOrFellBack) {
  Snapshot snapshot = TwoJobs();
  const auto health = [&snapshot] {
    FakeLoop loop(snapshot);
    AdminApi api(Facts(), &loop.source, loop.mail());
    return api.Answer({"GET", "/v1/health", "", kAdmin}).body;
  };
  for (const char* code : {"CUDA_FAILED", "PIN_FAILED", "CUDA_IPC_FALLBACK"}) {
    EXPECT_THAT(health(), HasSubstr("\"code\":\"" + std::string(code) + R"(","severity":"ok")"));
  }
  snapshot.gpus[0].failure = "code 700";
  snapshot.gpus[0].pin_failure = "out of memory";
  snapshot.gpus[0].form = "ipc";
  EXPECT_THAT(health(), HasSubstr(R"("code":"CUDA_FAILED","severity":"error")"));
  EXPECT_THAT(health(), HasSubstr("cuda:0: code 700"));
  EXPECT_THAT(health(), HasSubstr(R"("code":"PIN_FAILED","severity":"error")"));
  EXPECT_THAT(health(), HasSubstr("cuda:0: out of memory"));
  EXPECT_THAT(health(), HasSubstr(R"("code":"CUDA_IPC_FALLBACK","severity":"warn")"));
}

TEST(AdminApi, AServerThatDrainsOrStartsIsAliveButNotReady) {
  for (const bool draining : {true, false}) {
    Snapshot snapshot = TwoJobs();
    snapshot.ready = draining;
    snapshot.draining = draining;
    FakeLoop loop(snapshot);
    AdminApi api(Facts(), &loop.source, loop.mail());
    EXPECT_EQ(api.Answer({"GET", "/livez", "", kAdmin}).status, 200u);
    const AdminAnswer ready = api.Answer({"GET", "/readyz", "", kAdmin});
    EXPECT_EQ(ready.status, 503u);
    EXPECT_THAT(ready.body, HasSubstr(draining ? "draining" : "starting"));
    EXPECT_THAT(ready.body, HasSubstr("TP3103"));
  }
}

TEST(AdminApi, APercentEscapeCannotBreakTheAnswer) {
  FakeLoop loop;
  AdminApi api(Facts(), &loop.source, loop.mail());
  const AdminAnswer answer = api.Answer({"GET", "/v1/jobs/%22%2C%7B%0a%00%ff", "", kAdmin});
  EXPECT_EQ(answer.status, 404u);
  EXPECT_THAT(answer.body, HasSubstr(R"('\",{\n\u0000)"));
}

}  // namespace admin_api_test
}  // namespace tidepool::memserver
