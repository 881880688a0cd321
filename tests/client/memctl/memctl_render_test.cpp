#include "client/memctl/views/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/clock.h"
#include "base/units.h"
#include "client/memctl/views/residency_page.h"
#include "client/memctl/views/table.h"

namespace tidepool::client {
namespace memctl_render_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string Joined(const Lines& lines) {
  std::string text = "\n";
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// A residency document of one job with the given runs for rank 0 and for the pool.
std::string Residency(int chunks, const std::string& rcache_runs, const std::string& pool_runs) {
  return R"({"pool":{"bytes":68719476736,"bytes_used":35000000000},"legend":{"C":"in rCache","_":"empty",".":"resident","g":"gradients"},)"
         R"("jobs":[{"id":7,"name":"gpt2-xl","state":"training","version":412,"step_seconds":2.25,"chunks":)" +
         std::to_string(chunks) +
         R"(,"chunk_bytes_max":268435456,"step":{"phase":"backward","chunks_done":4,"micro_batch":1,"micro_batches":1},)" +
         R"("last_step":{"fetches":22,"fetches_waited":3,"bytes_fetched":1048576,"fetch_wait_seconds":0.12},"rows":[)" +
         R"({"kind":"rcache","rank":0,"chunks_held":2,"bytes_limit":2147483648,"runs":)" +
         rcache_runs + "}," +
         R"({"kind":"host_pool","bytes_used":35000000000,"bytes_limit":68719476736,"runs":)" +
         pool_runs + "}]}]}";
}

Lines Rendered(const std::string& json, const Style& style) {
  auto view = ReadResidency(json);
  EXPECT_TRUE(view.ok()) << view.status().Format();
  return view.ok() ? RenderResidency(*view, style) : Lines{};
}

TEST(MemctlResidency, OneColumnAChunkWhileThereIsRoom) {
  const std::string json =
      Residency(24, R"([["C",2],[".",2],[">",1],[".",19]])", R"([[".",12],["g",4],[".",8]])");
  EXPECT_EQ(Joined(Rendered(json, {})), R"(
job gpt2-xl (7)   training, step 412 backward: 4/24 chunks   24 chunks of up to 256 MiB   2.2 s a step
              0         10        20    used / limit
rank 0 rCache CC..>...................  2 held / 2.00 GiB
host pool     ............gggg........  32.6 GiB / 64.0 GiB
last step: 22 fetches, 1.00 MiB to ranks; 3 waited for their update, 120 ms together
C in rCache   _ empty   . resident   g gradients
)");
}

TEST(MemctlResidency, ChunksOfExpertsAreNamed) {
  ResidencyView view;
  ResidencyJob& job = view.jobs.emplace_back();
  job.name = "moe";
  job.state = "training";
  job.version = 41;
  job.chunks = 6;
  job.rows = {{.place = "", .rank = 0, .letters = "C.C..."}};
  job.experts = {{"h.0", 0, 1, 1, 2, 1}, {"h.2", 4, 5, 4, 4, 0}};
  const std::string text = Joined(RenderResidency(view, {}));
  EXPECT_THAT(text,
              HasSubstr("\nh.0: experts 0-1 in chunks 1-2, 1 of 2 chunks fetched in this step or "
                        "the last\n"
                        "h.2: experts 4-5 in chunk 4, 0 of 1 chunk fetched in this step or "
                        "the last\n"));
  const std::string svg = RenderSvg(view);
  for (const char* title : {"chunk 0", "chunk 1, expert 0 of h.0", "chunk 2, expert 1 of h.0",
                            "chunk 3", "chunk 4, experts 4-5 of h.2"})
    EXPECT_THAT(svg, HasSubstr("<title>" + std::string(title) + "</title>"));

  // As many lines as a person reads; the rest is counted.
  job.experts.assign(10, {"h.1", 0, 0, 3, 3, 1});
  EXPECT_THAT(Joined(RenderResidency(view, {})),
              HasSubstr("and experts in 2 more ranges of chunks: --by expert"));
  // Cells that stand for several chunks have no names.
  job.chunks = 1000;
  job.rows[0].letters.assign(1000, '.');
  EXPECT_EQ(RenderSvg(view).find("<title>chunk"), std::string::npos);
}

TEST(MemctlResidency, ByExpertEachHasALine) {
  ResidencyView view;
  view.by = "expert";
  ResidencyJob& job = view.jobs.emplace_back();
  job.name = "moe";
  job.chunks = 3;
  job.columns = {{"h.0", 1, 2048, 42}, {"h.0 expert 0", 1, 1024, 42}, {"h.0 expert 1", 1, 1024, 0}};
  job.rows = {{.place = "", .rank = 0, .letters = "CC."}, {.place = "host pool", .letters = "..."}};
  EXPECT_THAT(Joined(RenderResidency(view, {})),
              HasSubstr("EXPERT        CHUNKS     BYTES  FETCHED IN  RCACHES  HOST POOL\n"
                        "h.0                1  2.00 KiB     step 42  C        .\n"
                        "h.0 expert 0       1  1.00 KiB     step 42  C        .\n"
                        "h.0 expert 1       1  1.00 KiB           -  .        .\n"));
}

TEST(MemctlResidency, StatesOnNvmeHaveARowOfTheirOwn) {
  std::string json = Residency(24, R"([["C",2],[".",22]])", R"([[".",24]])");
  json.replace(
      json.rfind("]}]}"), 4,
      R"(,{"kind":"nvme","bytes_used":1073741824,"bytes_limit":4294967296,"runs":[["-",20],["N",4]]}]}]})");
  EXPECT_THAT(Rendered(json, {})[4],
              StartsWith("NVMe          --------------------NNNN  1.00 GiB / 4.00 GiB"));
}

TEST(MemctlResidency, ManyChunksAreFoldedToTheWidth) {
  const std::string json =
      Residency(1000, R"([["C",32],[".",968]])", R"([[".",500],["g",1],[".",499]])");
  for (const size_t width : {60, 80, 100, 200}) {
    const Lines lines = Rendered(json, {.width = width});
    ASSERT_THAT(lines, SizeIs(::testing::Ge(5u)));
    EXPECT_THAT(lines[0], HasSubstr("1 column = "));
    for (size_t row = 1; row < 4; ++row) EXPECT_LE(DisplayWidth(lines[row]), width) << lines[row];
    EXPECT_THAT(lines[3], HasSubstr("g")) << "one chunk that moves is never folded away";
  }
  const Lines lines = Rendered(json, {.width = 100});
  EXPECT_THAT(lines[0], EndsWith("1 column = 17 chunks"));
  EXPECT_THAT(lines[2], StartsWith("rank 0 rCache Cc."))
      << "32 chunks fill one column and most of a second";
}

TEST(MemctlResidency, TheTitleTellsWhereTheStepStands) {
  ResidencyJob job;
  job.name = "gpt";
  job.state = "training";
  job.chunks = 20;
  job.chunks_done = 7;
  const auto title = [&](const char* phase, uint64_t micro_batches) {
    job.phase = phase;
    job.micro_batch = micro_batches > 1 ? 2 : 1;
    job.micro_batches = micro_batches;
    ResidencyView view;
    view.jobs = {job};
    return RenderResidency(view, {})[0];
  };
  EXPECT_THAT(title("", 0), HasSubstr("training, step 0   20 chunks"));
  EXPECT_THAT(title("forward", 1), HasSubstr("training, step 0 forward   20 chunks"));
  EXPECT_THAT(title("backward", 4),
              HasSubstr("training, step 0 backward of micro-batch 2/4: 7/20 chunks   20 chunks"));
  job.state = "updating";
  EXPECT_THAT(title("updating", 0), HasSubstr("updating, step 0: 7/20 chunks   20 chunks"));
}

TEST(MemctlResidency, ColoursAreOnlyThereWhenAskedFor) {
  const std::string json = Residency(3, R"([["C",1],[".",2]])", R"([["g",3]])");
  EXPECT_EQ(Joined(Rendered(json, {})).find('\033'), std::string::npos);
  const Lines lines = Rendered(json, {.color = true});
  EXPECT_THAT(lines[2], HasSubstr("\033[32mC\033[0m.."));
  EXPECT_THAT(lines[3], HasSubstr("\033[33mggg\033[0m"));
}

TEST(MemctlResidency, WithoutHeaderOnlyTheRowsRemain) {
  const std::string json = Residency(3, R"([[".",3]])", R"([[".",3]])");
  EXPECT_THAT(Rendered(json, {.header = false}), SizeIs(3));
}

TEST(MemctlResidency, AJobWithoutChunksAndANarrowTerminalStillRender) {
  EXPECT_THAT(Rendered(Residency(0, "[]", "[]"), {}), SizeIs(6));
  EXPECT_THAT(Rendered(Residency(500, R"([[".",500]])", R"([[".",500]])"), {.width = 1})[2],
              HasSubstr("rank 0 rCache .........."));
}

TEST(MemctlResidency, HostileRunsAreErrors) {
  for (const char* runs :
       {R"([["C",5]])", R"([["C",4611686018427387904]])", R"([["C",-1]])", R"([["CC",24]])",
        R"([[7,24]])", R"(["C"])", "7", R"([["C",24],["C",1048576]])"}) {
    auto view = ReadResidency(Residency(24, R"([[".",24]])", runs));
    ASSERT_FALSE(view.ok()) << runs;
    EXPECT_EQ(view.status().id(), ErrorId::kHandshakeBad);
  }
}

TEST(MemctlPs, JobsAreATable) {
  auto jobs = ReadJobs(R"({"jobs":[
    {"id":1,"name":"gpt","uid":0,"state":"training","world":2,"ranks_attached":2,"dtype":"bf16","version":41,"parameters":124439808,
     "pool_bytes":1991036928,"frozen_bytes":0,"nvme_bytes":0,"rcache_bytes":134217728,"suspended":false,"optimizer_bytes":7,"step_seconds":0.5213,"grad_norm":1.25,"steps_skipped":0,
     "step_seconds_p50":0.5,"step_seconds_p99":0.75,"loss":2.41,"tokens_per_second":3938.4,"cpus_shared":true,"chunks":9},
    {"id":12,"name":"a-long-name","uid":0,"state":"detached","world":1,"ranks_attached":0,"dtype":"fp32","version":0,"parameters":900,
     "pool_bytes":4096,"frozen_bytes":0,"nvme_bytes":0,"rcache_bytes":0,"suspended":true,"optimizer_bytes":0,"step_seconds":0,
     "grad_norm":null,"steps_skipped":3,"chunks":1}]})");
  ASSERT_TRUE(jobs.ok()) << jobs.status().Format();
  EXPECT_EQ(Joined(RenderJobs(*jobs, {})), R"(
ID  NAME         STATE      RANKS  TYPE  STEPS  PARAMS      POOL   RCACHE    STEP    LOSS  TOK/S  GRAD NORM  SKIPPED
 1  gpt          training     2/2  bf16     41  124.4M  1.85 GiB  128 MiB  521 ms  2.4100   3938      1.250        0
12  a-long-name  suspended    0/1  fp32      0     900  4.00 KiB      0 B       -       -      -          -        3
)");
  EXPECT_THAT(RenderJobs(*jobs, {.header = false}), SizeIs(2));
}

TEST(MemctlPs, AJobWithoutRanksShowsUntilWhenItIsKept) {
  const int64_t until = WallSeconds() + 8 * 3600;
  const std::string common =
      R"("uid":0,"world":1,"ranks_attached":0,"dtype":"fp32","version":0,"parameters":900,"pool_bytes":4096,
    "frozen_bytes":0,"nvme_bytes":0,"rcache_bytes":0,"suspended":false,"optimizer_bytes":0,"step_seconds":0,"grad_norm":null,
    "steps_skipped":3,"chunks":1,"lease_seconds":28800,"kept_until":)";
  auto jobs = ReadJobs(R"({"jobs":[{"id":1,"name":"gone","state":"detached",)" + common +
                       std::to_string(until) + R"(},{"id":2,"name":"here","state":"training",)" +
                       common + "null}]}");
  ASSERT_TRUE(jobs.ok()) << jobs.status().Format();
  const Lines lines = RenderJobs(*jobs, {.header = false});
  EXPECT_THAT(lines[0], HasSubstr("detached until " + FormatWhen(until, WallSeconds())));
  EXPECT_THAT(lines[1], Not(HasSubstr("until")));
  EXPECT_EQ((*jobs)[0].lease_seconds, 28800);
}

TEST(MemctlPs, FrozenChunksStandBesideWhatIsTheJobsOwn) {
  const auto job = [](uint64_t id, uint64_t frozen) {
    JobView view;
    view.id = id;
    view.name = "lora";
    view.pool_bytes = 4096;
    view.frozen_bytes = frozen;
    return view;
  };
  const Lines lines = RenderJobs({job(1, 1 << 20), job(2, 0)}, {});
  EXPECT_THAT(lines[0], HasSubstr("POOL+FROZEN"));
  EXPECT_THAT(lines[1], HasSubstr("4.00 KiB + 1.00 MiB"));
  EXPECT_THAT(lines[2], HasSubstr("4.00 KiB + 0 B"));
  StatusView status;
  status.frozen_bytes = 1 << 20;
  status.frozen_chunks = 2;
  EXPECT_THAT(Joined(RenderStatus(status, {})),
              HasSubstr("\nfrozen    1.00 MiB of that in 2 frozen chunks, each counted once\n"));
}

TEST(MemctlChunks, EachHasALineThatSaysWhereItsStatesLie) {
  auto chunks = ReadChunks(
      R"({"chunks":[{"job":3,"chunk":0,"state":"updating","data_group":0,"elements":1024,"dtype":"bf16","bytes":16384,"version":41,
    "fetches":5,"states_on_nvme":true,"ranks_cached":[0,1]},{"job":3,"chunk":1,"state":"empty","data_group":0,"elements":1024,
    "bytes":16384,"version":0,"fetches":0,"states_on_nvme":false,"ranks_cached":[]}],"next_cursor":"3:2"})");
  ASSERT_TRUE(chunks.ok()) << chunks.status().Format();
  EXPECT_EQ(chunks->next_cursor, "3:2");
  EXPECT_EQ(Joined(RenderChunks(*chunks, {})), R"(
JOB  CHUNK  STATE     GROUP  ELEMENTS   WEIGHTS  WITH STATES  VERSION  FETCHES  STATES  CACHED BY
  3      0  updating      0      1024  2.00 KiB     16.0 KiB       41        5  nvme    0,1
  3      1  empty         0      1024         -     16.0 KiB        0        0  host    -
)");
}

TEST(MemctlStatus, OneScreen) {
  auto status = ReadStatus(
      R"({"state":"ready","version":"0.1.0","pid":77,"socket_dir":"/run/tidepool","uptime_seconds":90,
    "snapshot_age_seconds":0.01,"serve_loop":{"turns":12,"silent_seconds":0},"pool":{"bytes":1073741824,"bytes_used":268435456,"frozen_bytes":0,"frozen_chunks":0,"bytes_free":1,"huge_page_bytes":536870912,"touch_seconds":1.5},
    "nvme":{"bytes":0,"bytes_used":0,"bytes_read":0,"bytes_written":0,"repetitions":0,"transfers":0,"blocks_stalled":0,"failed_directory":"","directories":[]},
    "rcache":{"bytes_limit":0,"bytes_used":0},"transfers":{"host_to_device_bytes":5242880,"device_to_host_bytes":0},
    "optimizer":{"workers":1,"parameters_updated":12345678,"prefetch":1024},"jobs":1,"sessions":2,"sessions_ended_badly":0})");
  ASSERT_TRUE(status.ok()) << status.status().Format();
  EXPECT_EQ(Joined(RenderStatus(*status, {})), R"(
memserver 0.1.0  ready   pid 77   up 1:30 min   /run/tidepool
pool      [#####...............] 25 %   256 MiB of 1.00 GiB, 768 MiB free
pages     2 MiB for 512 MiB; touched in 1.5 s (1.5 s a GiB)
rCache    [....................] 0 %   0 B of 0 B granted to ranks
jobs      1 job, 2 ranks attached, 0 sessions ended badly since start
moved     5.00 MiB to ranks, 0 B from ranks
updated   12.3M parameters by 1 worker, fetched 1024 elements ahead
)");
  status->pool_huge_bytes = 0;
  status->pool_touch_seconds = 0;
  EXPECT_EQ(RenderStatus(*status, {})[2],
            "pages     4 KiB; the pool was there when the server started");
  status->nvme_bytes = 4 * 1073741824ULL;
  status->nvme_used = status->nvme_read = 1073741824;
  status->nvme_repetitions = 2;
  EXPECT_EQ(RenderStatus(*status, {})[3],
            "NVMe      [#####...............] 25 %   1.00 GiB of 4.00 GiB; 1.00 GiB read, 0 B "
            "written, 2 repetitions");
  status->nvme_stalled = 1;
  status->nvme_failed = "/mnt/a";
  EXPECT_THAT(RenderStatus(*status, {}),
              Contains("WARNING   the drive has not answered 1 request for 10 s"));
  EXPECT_THAT(RenderStatus(*status, {}),
              Contains("WARNING   a flush of /mnt/a failed: it takes no new jobs"));
  status->silent_seconds = 4;
  EXPECT_THAT(RenderStatus(*status, {}).back(),
              StartsWith("WARNING   the serve loop has not answered for 4.0 s"));
}

TEST(MemctlStatus, GpusAndWhatIsWrongWithThem) {
  StatusView status;
  GpuView gpu;
  gpu.name = "cuda:0";
  gpu.model = "a GPU";
  gpu.bytes = 4 * kGiB;
  gpu.taken = 512 * kMiB;
  gpu.pool_bytes = gpu.pinned_bytes = kGiB;
  gpu.sessions = 1;
  gpu.bytes_h2d = kMiB;
  status.gpus = {gpu};
  EXPECT_THAT(RenderStatus(status, {}),
              Contains("cuda:0    a GPU, 4.00 GiB, 1 rank; 512 MiB taken by memserver; the whole "
                       "pool is registered; 1.00 MiB to it, 0 B from it"));
  EXPECT_THAT(RenderStatus(status, {}), Not(Contains(StartsWith("WARNING"))));
  gpu.taken = 0;
  gpu.pinned_bytes = 0;
  gpu.pin_failure = "out of locks";
  gpu.copies_unpinned = 3;
  gpu.failure = "it fell off the bus";
  status.gpus = {gpu};
  EXPECT_THAT(RenderStatus(status, {}),
              Contains("cuda:0    a GPU, 4.00 GiB, 1 rank; 0 B of 1.00 GiB of the pool registered; "
                       "1.00 MiB to it, 0 B from it"));
  EXPECT_THAT(RenderStatus(status, {}), Contains("WARNING   cuda:0: not registered: out of locks"));
  EXPECT_THAT(RenderStatus(status, {}),
              Contains("WARNING   cuda:0: 3 slow copies, of memory that is not registered"));
  EXPECT_THAT(RenderStatus(status, {}),
              Contains("WARNING   cuda:0: nothing more is done on it: it fell off the bus"));
}

TEST(MemctlTopo, NodesThenDevicesThenThePlan) {
  auto topology = ReadTopology(
      R"({"source":"this machine","nodes":[{"id":0,"cpus":"0-3","memory_bytes":1073741824,"pool_bytes":536870912,"workers":1},)"
      R"({"id":1,"cpus":"4-7","memory_bytes":1073741824,"pool_bytes":536870912,"workers":1}],)"
      R"("root_complexes":[{"name":"pci0000:15","node":1,"devices":[{"kind":"gpu","name":"H200","address":"0000:16:00.0"}]},)"
      R"({"name":"pci0000:37","node":null,"devices":[{"kind":"nvme","name":"nvme0n1","address":"0000:38:00.0"}]}],)"
      R"("plan":{"pool_nodes":[0,1],"pool_spread":"interleave","worker_cpus":[3,7],)"
      R"("staging":[{"gpu":"0000:16:00.0","root_complex":"pci0000:15","node":1,)"
      R"("nearest":true}]}})");
  ASSERT_TRUE(topology.ok()) << topology.status().Format();
  EXPECT_EQ(Joined(RenderTopology(*topology, {})), R"(
NODE    MEMORY     POOL  WORKERS  CPUS
   0  1.00 GiB  512 MiB        1  0-3
   1  1.00 GiB  512 MiB        1  4-7

ROOT        NODE  KIND  ADDRESS       STAGING  NAME
pci0000:15     1  gpu   0000:16:00.0        1  H200
pci0000:37     ?  nvme  0000:38:00.0        -  nvme0n1

pool: interleave   workers: CPUs 3,7   topology: this machine
)");
  EXPECT_FALSE(ReadTopology("{}").ok());
}

TEST(MemctlViews, MissingAndMistypedFieldsAreNamed) {
  EXPECT_THAT(ReadVersion(R"({"version":"1","build":"","pid":1})").status().what(),
              HasSubstr("'abi'"));
  EXPECT_THAT(ReadVersion(R"({"version":"1","build":"","abi":"9","pid":1})").status().what(),
              HasSubstr("'abi'"));
  EXPECT_THAT(ReadVersion(R"({"version":"1","build":"","abi":-9,"pid":1})").status().what(),
              HasSubstr("'abi'"));
  for (const char* text :
       {"", "[]", "7", "{", "null", R"({"jobs":{}})", R"({"jobs":[7]})", R"({"jobs":[{}]})"}) {
    EXPECT_FALSE(ReadJobs(text).ok()) << text;
  }
}

TEST(MemctlViews, AProblemBecomesItsError) {
  const Status status = ReadProblem(
      R"({"type":"about:blank","status":404,"detail":"no job 'x'","code":"TP3101","remedy":"try y"})");
  EXPECT_EQ(status.id(), ErrorId::kAdminNotFound);
  EXPECT_EQ(status.exit_code(), kExitNotFound);
  EXPECT_THAT(status.Format(), HasSubstr("no job 'x'"));
  EXPECT_THAT(status.Format(), HasSubstr("try y"));
  EXPECT_EQ(ReadProblem(R"({"detail":"d","code":"TP8888","remedy":"r"})").id(), ErrorId::kInternal);
  EXPECT_EQ(ReadProblem("<html>").id(), ErrorId::kHandshakeBad);
}

TEST(MemctlTable, ControlCharactersCannotReachTheTerminal) {
  Table table({{"A"}, {"B"}});
  table.Add({"x\033[2Jy", "ä"});
  EXPECT_THAT(table.Lines(false), ElementsAre("x?[2Jy  ä"));
  EXPECT_EQ(DisplayWidth("äöü"), 3u);
}

}  // namespace memctl_render_test
}  // namespace tidepool::client
