// `trainer run --checkpoint-every` by the real programs: all of them are killed, and the run goes
// on behind its newest checkpoint with the bits of the run that nobody disturbed; also where the
// process that writes, the trainer or memserver dies at any point of a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/checkpoint/checkpoint_files.h"
#include "base/error_catalog.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/trainer/program/trainer_runs.h"

namespace tidepool::testing {
namespace checkpoint_run_test {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// The bytes of all tensors of a safetensors file: what it says of its writer is left out.
std::string TensorsIn(const std::string& path) {
  const std::string file = ReadText(path);
  uint64_t head = 0;
  if (file.size() < sizeof head) return {};
  file.copy(reinterpret_cast<char*>(&head), sizeof head);
  return file.substr(sizeof head + head);
}

class CheckpointRun : public TrainerRuns {
 protected:
  // Flags of a run with a server of its own, whose checkpoints are in a folder of this test.
  Flags Alone(Flags more = {}) const {
    more.insert({{"--standalone", ""}, {"--job", "j"}});
    return more;
  }
  Flags Saving(Flags more = {}) const {
    more.insert({{"--checkpoint-every", "2"}, {"--checkpoint-dir", Folder()}, {"--keep", "0"}});
    return Alone(more);
  }
  std::string Folder() const { return Out("checkpoints"); }
  std::string Checkpoint(uint64_t version) const {
    return Folder() + "/" + CheckpointName(version);
  }
  // Steps of the checkpoints that are there; each of them has to be whole.
  std::vector<uint64_t> Saved() const {
    std::vector<uint64_t> versions;
    auto found = FindCheckpoints(Folder());
    EXPECT_TRUE(found.ok());
    for (const FoundCheckpoint& one : *found) {
      EXPECT_TRUE(VerifyCheckpoint(one.path).ok()) << VerifyCheckpoint(one.path).Format();
      versions.push_back(one.version);
    }
    return versions;
  }
  // The run dies by SIGKILL at this point.
  void RunUntilKilled(const std::string& name, const Flags& flags, const std::string& point) const {
    const auto trainer = Start(Words(name, flags), {"TIDEPOOL_KILL_AT=" + point});
    const auto end = trainer->Wait(kRunNs);
    ASSERT_TRUE(end) << trainer->Output();
    ASSERT_EQ(end->signal, SIGKILL) << point << "\n" << trainer->Output();
  }
  void RunToTheEnd(const std::string& name, const Flags& flags,
                   const std::vector<std::string>& environment = {}) const {
    const auto trainer = Start(Words(name, flags), environment);
    ExpectDone(trainer.get());
  }
  // The checkpoint of step 2, and no other, of a run of as many steps as `flags` say.
  void BeginTwoSteps(const std::string& name, const Flags& flags = {}) const {
    fs::remove_all(Folder());
    RunUntilKilled(name, Saving(flags), "client.stream_sent:2");
    EXPECT_EQ(Saved(), std::vector<uint64_t>{2});
  }
  static std::vector<std::string> OnRanks(uint32_t ranks, const std::vector<std::string>& run) {
    std::vector<std::string> words{"launch", "-n", std::to_string(ranks), "--"};
    words.insert(words.end(), run.begin(), run.end());
    return words;
  }
};

TEST_F(CheckpointRun, AllProcessesAreKilledAndTheRunGoesOnWithTheSameBits) {
  RunToTheEnd("whole", Alone());
  for (const uint64_t lines : {6, 20}) {
    const auto killed = Start(Words("killed", Saving({{"--resume", "auto"}})));
    ASSERT_TRUE(WaitForLines("killed", lines, killed.get())) << killed->Output();
    // Its private server ends with it.
    killed->Signal(SIGKILL);
    ASSERT_TRUE(killed->Wait(kRunNs));
    EXPECT_THAT(Saved(), ::testing::Contains(::testing::Ge(2U)));
  }
  const auto last = Start(Words("killed", Saving({{"--resume", "latest"}})));
  ExpectDone(last.get());
  EXPECT_THAT(last->Output(), HasSubstr("resume    behind step "));
  ExpectSame("killed", "whole");
}

// On any number of ranks the states are those that were saved, and the next batches those that
// follow.
TEST_F(CheckpointRun, SavedOnSomeRanksItGoesOnOnOthers) {
  for (const auto& [from, others] :
       std::map<uint32_t, std::vector<uint32_t>>{{1, {2}}, {4, {1, 3}}}) {
    fs::remove_all(Folder());
    const std::string name = "from-" + std::to_string(from);
    const auto saved = Start(
        OnRanks(from, Words(name, Saving({{"--steps", "3"}, {"--batch", "12"}, {"--keep", "2"}}))));
    ExpectDone(saved.get());
    ASSERT_EQ(Saved(), std::vector<uint64_t>{2});
    const std::vector<std::string> losses = Losses(name);
    for (const uint32_t to : others) {
      const std::string at = name + "-to-" + std::to_string(to);
      Flags flags = Alone({{"--resume", Checkpoint(2)}, {"--steps", "2"}, {"--batch", "12"}});
      const auto loaded = Start(OnRanks(to, Words(at, flags)));
      ExpectDone(loaded.get());
      EXPECT_TRUE(TensorsIn(Out(at) + "/weights/model.safetensors") ==
                  TensorsIn(Checkpoint(2) + "/model.safetensors"))
          << at;

      flags["--steps"] = "3";
      const auto further = Start(OnRanks(to, Words(at, flags)));
      ExpectDone(further.get());
      const auto loss = [](const std::string& line) {
        return std::stod(line.substr(line.find("\"loss\":") + 7));
      };
      ASSERT_FALSE(Losses(at).empty());
      EXPECT_NEAR(loss(Losses(at).back()), loss(losses.back()), 1e-4) << at;
    }
  }
}

TEST_F(CheckpointRun, OneOfOtherDataIsRefused) {
  RunToTheEnd("saved", Saving({{"--steps", "2"}}));
  const auto refused = Start(Words("again", Alone({{"--resume", Checkpoint(2)}, {"--seed", "7"}})));
  const auto end = refused->Wait(kRunNs);
  ASSERT_TRUE(end) << refused->Output();
  EXPECT_EQ(end->exit_code, kExitRefused) << refused->Output();
  EXPECT_THAT(refused->Output(), HasSubstr("--seed 1, now 7"));
}

TEST_F(CheckpointRun, ADamagedOneIsNamedAndNothingIsLoaded) {
  RunToTheEnd("saved", Saving({{"--steps", "4"}}));
  const std::string path = Checkpoint(4) + "/optimizer.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-3, std::ios::end);
  file.put('x');
  file.close();
  const auto refused =
      Start(Words("again", Alone({{"--checkpoint-dir", Folder()}, {"--resume", "latest"}})));
  const auto end = refused->Wait(kRunNs);
  ASSERT_TRUE(end) << refused->Output();
  EXPECT_EQ(end->exit_code, kExitCorrupt) << refused->Output();
  EXPECT_THAT(refused->Output(), HasSubstr("step-00000004/optimizer.safetensors"));
  EXPECT_THAT(refused->Output(), HasSubstr("the bytes of tensor ln_f.bias.exp_avg_sq do not fit"));
  RunToTheEnd("before", Alone({{"--resume", Checkpoint(2)}, {"--steps", "4"}}));
  EXPECT_TRUE(Weights("before") == Weights("saved"));
}

TEST_F(CheckpointRun, ItIsASavedModelToo) {
  RunToTheEnd("saved", Saving({{"--steps", "2"}}));
  std::vector<std::string> exported;
  for (const std::string& from : {Checkpoint(2), Out("saved") + "/weights"}) {
    const std::string to = Out("hf-" + std::to_string(exported.size()));
    const auto trainer = Start({"export", from, to});
    ExpectDone(trainer.get());
    exported.push_back(ReadText(to + "/model.safetensors"));
  }
  EXPECT_GT(exported[0].size(), 400'000U);
  EXPECT_TRUE(exported[0] == exported[1]);
}

// A job that memserver holds needs no checkpoint, whole or not.
TEST_F(CheckpointRun, AHeldJobIsGoneOnWithWhereTheCheckpointIsDamaged) {
  const MemserverProcess server({"--lease", "60s"});
  Flags flags = Saving({{"--resume", "auto"}, {"--socket-dir", server.socket_dir()}});
  flags.erase("--standalone");
  RunUntilKilled("held", flags, "client.stream_sent:3");
  std::fstream file(Checkpoint(4) + "/optimizer.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-3, std::ios::end);
  file.put('x');
  file.close();
  const auto trainer = Start(Words("held", flags));
  ExpectDone(trainer.get());
  EXPECT_THAT(trainer->Output(), HasSubstr("goes on behind its sealed step 6"));
}

// `memctl snapshot` of job j, with its exit code.
struct SnapshotEnd {
  int exit_code = -1;
  std::string output;
};
SnapshotEnd TakeSnapshot(const std::string& socket_dir, std::vector<std::string> more) {
  std::vector<std::string> words{TIDEPOOL_MEMCTL, "-s", socket_dir, "snapshot"};
  words.insert(words.end(), more.begin(), more.end());
  ChildProcess memctl(words);
  const auto end = memctl.Wait(120 * kNsPerSecond);
  return {end ? end->exit_code : -1, memctl.Output()};
}

TEST_F(CheckpointRun, ASnapshotOfAJobWithoutItsRanksIsACheckpoint) {
  RunToTheEnd("whole", Alone());
  const MemserverProcess server({"--lease", "60s"});
  const Flags there{{"--job", "j"}, {"--socket-dir", server.socket_dir()}};
  RunUntilKilled("killed", there, "trainer.step_sealed:7");
  const SnapshotEnd bare = TakeSnapshot(server.socket_dir(), {"j", "--to", Folder()});
  ASSERT_EQ(bare.exit_code, 0) << bare.output;
  EXPECT_THAT(bare.output, HasSubstr("saved " + Checkpoint(7)));
  EXPECT_THAT(bare.output, HasSubstr("it has no config.json"));
  ASSERT_EQ(Saved(), std::vector<uint64_t>{7});

  // The same job, with what describes its model; it takes the other one's place.
  const SnapshotEnd like = TakeSnapshot(
      server.socket_dir(), {"j", "--to", Folder(), "--like", Out("whole") + "/weights"});
  ASSERT_EQ(like.exit_code, 0) << like.output;
  const auto exported = Start({"export", Checkpoint(7), Out("hf")});
  ExpectDone(exported.get());
  const SnapshotEnd third =
      TakeSnapshot(server.socket_dir(), {"j", "--to", Folder(), "-o", "json"});
  EXPECT_THAT(third.output, HasSubstr("\"described\":true")) << "as the one before in the folder";

  const auto resumed = Start(Words("resumed", Alone({{"--resume", Checkpoint(7)}})));
  ExpectDone(resumed.get());
  EXPECT_TRUE(Weights("resumed") == Weights("whole"));
  const auto held = Start(
      Words("held", {{"--job", "j"}, {"--socket-dir", server.socket_dir()}, {"--resume", "auto"}}));
  ExpectDone(held.get());
  EXPECT_THAT(held->Output(), HasSubstr("goes on behind its sealed step 7"));
  EXPECT_TRUE(Weights("held") == Weights("whole"));

  const SnapshotEnd none = TakeSnapshot(server.socket_dir(), {"j", "--to", Folder()});
  EXPECT_EQ(none.exit_code, kExitNotFound) << none.output;
  EXPECT_THAT(none.output, HasSubstr("no job has the number or name 'j'"));
  EXPECT_EQ(Saved(), std::vector<uint64_t>{7});
}

// The states are those of one step, whatever the job does meanwhile.
TEST_F(CheckpointRun, ASnapshotOfAJobThatTrainsHoldsTheBitsOfOneStep) {
  const MemserverProcess server({"--lease", "0s"});
  const Flags same{{"--job", "j"}, {"--schedule", "constant"}, {"--warmup", "0"}};
  Flags there = same;
  there.insert({{"--socket-dir", server.socket_dir()}, {"--steps", "100000"}});
  const auto live = Start(Words("live", there));
  ASSERT_TRUE(WaitForLines("live", 3, live.get())) << live->Output();
  const SnapshotEnd taken = TakeSnapshot(server.socket_dir(), {"j", "--to", Folder()});
  ASSERT_EQ(taken.exit_code, 0) << taken.output;
  ASSERT_EQ(Saved().size(), 1U);
  const uint64_t version = Saved().front();
  ASSERT_TRUE(WaitForLines("live", version + 2, live.get())) << "it trains on";
  live->Signal(SIGKILL);
  ASSERT_TRUE(live->Wait(kRunNs));

  Flags further = Alone(same);
  further["--steps"] = std::to_string(version + 2);
  RunToTheEnd("whole", further);
  further["--resume"] = Checkpoint(version);
  RunToTheEnd("resumed", further);
  EXPECT_TRUE(Weights("resumed") == Weights("whole")) << version;
}

// Points that a checkpoint passes, of the process that writes it, the trainer and memserver.
constexpr const char* kPoints[] = {
    "writer.file_created",    "writer.piece_written",  "writer.files_synced",
    "writer.manifest_synced", "writer.renamed",        "writer.done",
    "client.stream_sent",     "client.begin_sent",     "server.stream_started",
    "server.chunk_streamed",  "server.begin_recorded", "server.begun_at_step"};

std::vector<std::string> PointsOf(const std::string& place) {
  std::vector<std::string> points;
  for (const char* point : kPoints) {
    if (std::string(point).starts_with(place)) points.emplace_back(point);
  }
  return points;
}

// Each writer inherits the point, so five die in a run.
TEST_F(CheckpointRun, AWriterThatIsKilledCostsItsCheckpointAlone) {
  RunToTheEnd("whole", Alone({{"--steps", "12"}}));
  for (const std::string& point : PointsOf("writer.")) {
    BeginTwoSteps("killed", {{"--steps", "12"}});
    const auto trainer = Start(Words("killed", Saving({{"--resume", "latest"}, {"--steps", "12"}})),
                               {"TIDEPOOL_KILL_AT=" + point});
    ExpectDone(trainer.get());
    uint64_t killed = 0;
    for (size_t at = 0; (at = trainer->Output().find("exit_code=137", at)) != std::string::npos;
         ++at)
      ++killed;
    EXPECT_EQ(killed, 5U) << point << "\n" << trainer->Output();
    EXPECT_TRUE(Weights("killed") == Weights("whole")) << point;
    EXPECT_THAT(Saved(), ::testing::Contains(2U)) << point;
    // What they left is in nobody's way.
    RunToTheEnd("killed", Saving({{"--resume", Checkpoint(2)}, {"--steps", "12"}}));
    EXPECT_EQ(Saved().size(), 6U) << point;
    EXPECT_TRUE(Weights("killed") == Weights("whole")) << point;
  }
}

TEST_F(CheckpointRun, ATrainerThatIsKilledGoesOnBehindTheOneBefore) {
  RunToTheEnd("whole", Alone());
  BeginTwoSteps("killed");
  for (int round = 0; round < 5; ++round) {
    for (const std::string& point : PointsOf("client.")) {
      const bool counts = point == "client.stream_sent";
      RunUntilKilled("killed", Saving({{"--resume", "latest"}}), point + (counts ? ":2" : ""));
    }
    EXPECT_EQ(Saved().back(), 2U + 2 * (round + 1));
  }
  RunToTheEnd("killed", Saving({{"--resume", "latest"}}));
  ExpectSame("killed", "whole");
}

TEST_F(CheckpointRun, AServerThatIsKilledCostsNoBit) {
  RunToTheEnd("whole", Alone());
  BeginTwoSteps("begun");
  for (const std::string& point : PointsOf("server.")) {
    const TemporaryDirectory sockets;
    const auto serve = [&](const std::vector<std::string>& environment) {
      auto server = std::make_unique<ChildProcess>(
          MemserverCommand(sockets.path(),
                           {"--keeper", "process", "--lease", "60s", "--no-respawn"}),
          environment);
      EXPECT_TRUE(server->WaitForOutput("\"message\":\"ready\"", kRunNs)) << server->Output();
      return server;
    };
    fs::remove_all(Out("killed"));
    fs::copy(Out("begun"), Out("killed"), fs::copy_options::recursive);
    Flags flags = Saving({{"--resume", Checkpoint(2)}, {"--socket-dir", sockets.path()}});
    flags.erase("--standalone");
    const std::vector<std::string> armed{"TIDEPOOL_KILL_AT=" + point};
    auto server = serve(armed);
    const auto trainer = Start(Words("killed", flags));
    for (int kills = 0; kills < 5; ++kills) {
      const auto end = server->Wait(kRunNs);
      ASSERT_TRUE(end) << point << "\n" << trainer->Output();
      ASSERT_EQ(end->signal, SIGKILL) << server->Output();
      server = serve(kills < 4 ? armed : std::vector<std::string>{});
    }
    ExpectDone(trainer.get());
    ExpectSame("killed", "whole");
    EXPECT_FALSE(Saved().empty());
    server.reset();
    KillDaemon(sockets.path());
  }
}

}  // namespace checkpoint_run_test
}  // namespace tidepool::testing
