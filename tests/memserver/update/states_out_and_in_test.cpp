// All states of a job leave it while it trains, and come into a new one: the bits of the step they
// are of, whatever was sealed meanwhile; and the bits of the run that was left alone afterwards.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/system/futex.h"
#include "base/unique_fd.h"
#include "memserver/checkpoint/state_stream.h"
#include "memserver/traffic/spill_reader.h"
#include "shm/spec/state_footprint.h"
#include "tests/fakes/small_job.h"
#include "tests/memserver/update/states_taken.h"
#include "tests/memserver/paced_device.h"

namespace tidepool::memserver {
namespace states_out_and_in_test {

// The words that are put for a plane of a parameter (base/formats/moment_words.h).
std::vector<uint32_t> WordsOf(const shm::JobSpec& spec, ParameterId id, uint32_t plane,
                              const std::vector<std::byte>& bytes) {
  const shm::ParameterSpec& parameter = spec.parameters[id];
  const StateForm form = spec.StatesOf(parameter.chunk);
  std::vector<uint32_t> words(parameter.element_count);
  const bool moment = plane == shm::kPutMomentum || plane == shm::kPutVariance;
  for (size_t i = 0; i < words.size(); ++i) {
    if (shm::IsScales(plane)) {
      std::memcpy(&words[i], bytes.data() + i / kScaleBlockElements * 4, 4);
    } else if (moment && form == StateForm::kSplit8) {
      words[i] = std::to_integer<uint32_t>(bytes[i]);
    } else if (moment && form == StateForm::kSplitBf16) {
      uint16_t half = 0;
      std::memcpy(&half, bytes.data() + i * 2, 2);
      words[i] = uint32_t{half} << 16;
    } else {
      std::memcpy(&words[i], bytes.data() + i * 4, 4);
    }
  }
  return words;
}

// Every rank puts its shard of a plane of a chunk.
void PutPlane(ServeWorld* world, SmallTrainer* trainer, ChunkId chunk, uint32_t plane,
              const States& states) {
  const shm::JobSpec& spec = trainer->spec();
  std::vector<uint32_t> words(spec.chunks[chunk].elements);
  for (ParameterId id = 0; id < spec.parameters.size(); ++id) {
    if (spec.parameters[id].chunk != chunk) continue;
    const std::vector<uint32_t> own = WordsOf(spec, id, plane, states.at({id, plane}));
    std::copy(own.begin(), own.end(), words.begin() + spec.parameters[id].element_begin);
  }

  const uint64_t count = spec.ShardElements(chunk);
  for (const auto& rank : trainer->ranks()) {
    const uint64_t first = spec.ShardIndex(chunk, rank->rank()) * count;
    std::copy_n(words.data() + first, count, rank->At<uint32_t>(0));
    shm::Request put = FakeRank::PutRequest(chunk, first, count, 0);
    put.micro_batch = plane;
    ASSERT_EQ(world->Await(rank.get(), rank->Send(put)).error, 0U);
  }
}

// A job begins at the step, and every rank puts its shards of the states: moments, then weights.
void Begin(ServeWorld* world, SmallTrainer* trainer, const StepRecord& step, const States& states) {
  shm::BeginAtRequest begin{};
  begin.op = static_cast<uint32_t>(shm::Op::kBeginAt);
  begin.version = step.version;
  begin.optimizer_step = step.optimizer_step;
  begin.loss_scale = step.loss_scale;
  for (const auto& rank : trainer->ranks())
    ASSERT_EQ(world->Await(rank.get(), rank->Send(shm::AsRequest(begin))).error, 0U);

  for (ChunkId chunk = 0; chunk < trainer->spec().chunks.size(); ++chunk) {
    ParameterId first = 0;
    while (trainer->spec().parameters[first].chunk != chunk) ++first;
    for (const uint32_t plane : {shm::kPutMomentum, shm::kPutVariance, shm::kPutMomentumScales,
                                 shm::kPutVarianceScales, shm::kPutMaster}) {
      if (states.contains({first, plane})) PutPlane(world, trainer, chunk, plane, states);
    }
  }
  trainer->set_version(step.version);
  world->AwaitWeights(trainer->spec().name);
}

TEST(StatesOut, AreThoseOfTheirStepWhateverIsSealedMeanwhile) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.world = 2, .chunks = 3}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  for (uint64_t step = 1; step <= 3; ++step) trainer.Step({.seed = step});
  SaveRequest first = Ask(&world, &trainer);
  States before = Take(&first);
  ASSERT_EQ(before.size(), trainer.spec().parameters.size() * 3);
  world.AnswerSave(first.connection, {});
  world.Settle();

  SaveRequest second = Ask(&world, &trainer);
  const StreamGate& gate = *second.stream->gate;
  trainer.Submit({.seed = 4});
  trainer.EndStep({.seed = 4});
  world.Settle();
  const JobStates& states = *world.tables().jobs.front()->states;
  EXPECT_EQ(states.sealed_version(), 4U) << "the next step is sealed while the states are copied";
  for (ChunkId id = 0; id < 3; ++id) {
    EXPECT_EQ(states.saved(id).version, 3U) << "chunk " << id << " waits until it is copied";
    EXPECT_FALSE(gate.IsOpen(id));
  }

  EXPECT_EQ(Take(&second), before);
  world.AnswerSave(second.connection, {});
  world.Settle();
  for (ChunkId id = 0; id < 3; ++id) EXPECT_EQ(states.saved(id).version, 4U);
}

TEST(StatesOut, AChunkThatIsCopiedIsUpdatedWhileOthersWait) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.chunks = 3}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  SaveRequest request = Ask(&world, &trainer);
  trainer.Submit({.seed = 1});
  trainer.EndStep({.seed = 1});
  world.Settle();
  const JobStates& states = *world.tables().jobs.front()->states;
  request.stream->gate->Open(0);
  world.Post(SnapshotWanted{});
  world.Settle();
  EXPECT_EQ(states.saved(0).version, 1U);
  EXPECT_EQ(states.saved(1).version, 0U);
}

TEST(StatesOut, AReaderThatLiesOrStandsStillEndsItsStreamAlone) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.chunks = 8}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  const SteadyClock clock;
  const std::atomic<bool> stop{false};
  for (const uint32_t taken : {0U, 99U}) {
    SaveRequest request = Ask(&world, &trainer);
    request.stream->opened = [] {};
    shm::HeadOf(request.stream->memory->data())->taken.store(taken);
    const Status written = WriteStream(*request.stream, clock, stop, 20 * kNsPerMs);
    EXPECT_EQ(written.id(), ErrorId::kSaveFailed);
    world.AnswerSave(request.connection, written);
    world.Settle();
    EXPECT_EQ(world.TakeReply<SaveDone>()->result.id(), ErrorId::kSaveFailed);
  }
  trainer.Step({.seed = 1});
  EXPECT_EQ(trainer.Compare(1e-5), "");
}

// The program that was to read is not started any more, where its trainer was killed before.
TEST(StatesOut, AStreamEndsSoonWhereItsRankIsGoneBeforeAnybodyReads) {
  for (const bool comes : {false, true}) {
    ServeWorld world;
    SmallTrainer trainer(&world, MakeSpec({.chunks = 8}));
    ASSERT_TRUE(trainer.JoinAll());
    trainer.PutWeights(3);
    SaveRequest request = Ask(&world, &trainer);
    request.stream->opened = [] {};
    shm::HeadOf(request.stream->memory->data())->here.store(comes ? 1 : 0);
    world.Lose(trainer.rank(0));
    world.Settle();
    FakeClock clock;
    clock.AdvanceAtEachLook(kNsPerSecond);
    const std::atomic<bool> stop{false};
    const Status written = WriteStream(*request.stream, clock, stop, 10 * kNsPerSecond);
    EXPECT_EQ(written.id(), ErrorId::kSaveFailed);
    EXPECT_EQ(written.why().find("nobody reads") != std::string::npos, !comes) << written.Format();
  }
}

// Save on some ranks, go on with others, in odd and even versions.
TEST(StatesIn, LaterStepsHaveTheBitsOfTheRunThatWasLeftAlone) {
  for (const uint32_t from : {1U, 2U, 4U}) {
    for (const uint32_t to : {1U, 2U, 3U}) {
      const uint64_t saved_at = 2 + to % 2;
      ServeWorld alone, anew;
      SmallTrainer left(&alone, MakeSpec({.world = from}));
      ASSERT_TRUE(left.JoinAll());
      left.PutWeights(3);
      for (uint64_t step = 1; step <= saved_at; ++step) left.Step({.seed = step});
      SaveRequest request = Ask(&alone, &left);
      const States states = Take(&request);
      const StepRecord step = request.stream->step;
      alone.AnswerSave(request.connection, {});
      alone.Settle();

      SmallTrainer resumed(&anew, MakeSpec({.world = to}));
      ASSERT_TRUE(resumed.JoinAll());
      Begin(&anew, &resumed, step, states);
      EXPECT_EQ(resumed.FetchParameters(), left.FetchParameters());
      left.Step({.seed = 9});
      resumed.Step({.seed = 9});
      EXPECT_EQ(resumed.FetchParameters(), left.FetchParameters()) << from << " to " << to;
      const StepRecord& after = anew.tables().jobs.front()->states->last_step();
      EXPECT_EQ(after.version, saved_at + 1);
      EXPECT_EQ(after.optimizer_step, saved_at + 1);
    }
  }
}

TEST(StatesIn, AServerThatIsKilledOnTheWayGoesOn) {
  ServeWorld world(WithLease());
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  shm::BeginAtRequest begin{};
  begin.op = static_cast<uint32_t>(shm::Op::kBeginAt);
  begin.version = 4;
  begin.optimizer_step = 3;
  begin.loss_scale = 1;
  FakeRank& rank = trainer.rank(0);
  ASSERT_EQ(world.Await(&rank, rank.Send(shm::AsRequest(begin))).error, 0U);
  world.Restart();
  ASSERT_TRUE(world.recovered().ok()) << world.recovered().Format();
  ASSERT_TRUE(world.Resume(&rank, trainer.spec()));
  begin.flags = shm::kResubmitted;
  ASSERT_EQ(world.Await(&rank, rank.Send(shm::AsRequest(begin))).error, 0U);
  trainer.PutWeights(3);
  trainer.set_version(4);
  trainer.Step({.seed = 1});
  EXPECT_EQ(world.tables().jobs.front()->states->last_step().optimizer_step, 4U);
}

TEST(StatesIn, WhatBreaksTheOrderEndsTheSession) {
  const auto ends = [](const shm::Request& request, bool weights_first) {
    ServeWorld world;
    SmallTrainer trainer(&world, MakeSpec({}));
    if (!trainer.JoinAll()) return false;
    if (weights_first) trainer.PutWeights(1);
    trainer.rank(0).Send(request);
    world.Settle();
    return trainer.rank(0).Ended().has_value();
  };
  shm::BeginAtRequest begin{};
  begin.op = static_cast<uint32_t>(shm::Op::kBeginAt);
  begin.version = 4;
  begin.optimizer_step = 3;
  begin.loss_scale = 1;
  EXPECT_FALSE(ends(shm::AsRequest(begin), false));
  EXPECT_TRUE(ends(shm::AsRequest(begin), true)) << "the job has weights of another step";
  begin.optimizer_step = 5;
  EXPECT_TRUE(ends(shm::AsRequest(begin), false)) << "more updates than steps";
  begin.optimizer_step = 3;
  begin.loss_scale = 0;
  EXPECT_TRUE(ends(shm::AsRequest(begin), false));

  shm::Request put = FakeRank::PutRequest(0, 0, 16, 0);
  put.micro_batch = shm::kPutVariance;
  EXPECT_FALSE(ends(put, false));
  EXPECT_TRUE(ends(put, true)) << "a moment of a job that has its weights";
  put.micro_batch = shm::kPutVariance + 1;
  EXPECT_TRUE(ends(put, false)) << "a plane that there is not";
}

TEST(StatesIn, WhatBreaksTheOrderOfOneRangeEndsTheSession) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  FakeRank& rank = trainer.rank(0);
  rank.Send(FakeRank::PutRequest(0, 0, 16, 0));
  shm::Request moment = FakeRank::PutRequest(0, 16, 16, 0);
  moment.micro_batch = shm::kPutMomentum;
  rank.Send(moment);
  world.Settle();
  EXPECT_FALSE(rank.Ended().has_value()) << "a moment of the range that comes next";
  moment.element_begin = 15;
  rank.Send(moment);
  world.Settle();
  EXPECT_TRUE(rank.Ended().has_value()) << "a moment behind the weights of its range";
}

// --- every form of states, in every place ---

enum class Place { kHost, kNvme, kGpu };

struct Shape {
  DType dtype = DType::kBF16;
  StateForm states = StateForm::kF32;
  uint32_t f32_chunks = 0;
  OptimizerRule rule = OptimizerRule::kAdamW;
  Place from = Place::kHost, to = Place::kHost;
  uint32_t world = 1;
  uint64_t chunk_elements = 224;
  uint32_t chunks = 3;
};

shm::JobSpec SpecOf(const Shape& shape, Place place, uint32_t world) {
  shm::JobSpec spec = SmallJob({.dtype = shape.dtype,
                                .world = world,
                                // In as many as 2 or 3 shards.
                                .chunk_elements = shape.chunk_elements * 6 / world,
                                .chunks = shape.chunks,
                                .f32_chunks = shape.f32_chunks});
  spec.optimizer.rule = shape.rule;
  spec.optimizer.states = shape.states;
  spec.optimizer.momentum = 0.9;
  spec.states_on_gpu = place == Place::kGpu ? shape.chunks : 0;
  return spec;
}

// A world whose jobs have all their states in a place.
class World {
 public:
  World(Place place, const shm::JobSpec& spec) : place_(place) {
    if (place == Place::kGpu) {
      gpus_.emplace(OptionsOf(place, spec));
    } else {
      plain_.emplace(OptionsOf(place, spec));
    }
  }
  ServeWorld* get() { return gpus_ ? &**gpus_ : &*plain_; }

  // In place of the reader of a directory's file, which the simulated disk does not have: reads
  // what is on the disk when Fill is called.
  void Replace(StreamTask* task) {
    if (place_ != Place::kNvme) return;
    drive_ = UniqueFd(memfd_create("drive", MFD_CLOEXEC));
    const SpillReader::File file{drive_.get(), get()->tier().store_nonce(0)};
    task->spilled = std::make_shared<SpillReader>(*task->states, std::vector{file});
  }
  void Fill() {
    if (place_ != Place::kNvme) return;
    const std::span<const std::byte> bytes = get()->disk().bytes(0);
    ASSERT_EQ(write(drive_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }

 private:
  static WorldOptions OptionsOf(Place place, const shm::JobSpec& spec) {
    WorldOptions options = WithLease();
    options.pool_bytes = 32 * kMiB;
    if (place != Place::kNvme) return options;
    options.nvme_directories = 1;
    options.nvme_bytes = shm::NvmeBytesOf(spec, 0);
    options.loop.live.states_on = StatesOn::kNvme;
    return options;
  }

  const Place place_;
  std::optional<GpuWorld> gpus_;
  std::optional<ServeWorld> plain_;
  UniqueFd drive_;
};

class EveryForm : public ::testing::TestWithParam<Shape> {};

TEST_P(EveryForm, LeavesAsItWasAndComesInWithTheBitsOfLaterSteps) {
  const Shape& shape = GetParam();
  const bool off_host = shape.from != Place::kHost;
  const shm::JobSpec spec = SpecOf(shape, shape.from, 1);
  World there(shape.from, spec);
  SmallTrainer left(there.get(), spec);
  ASSERT_TRUE(left.JoinAll());
  left.PutWeights(7);
  for (uint64_t step = 1; step <= 3; ++step) ASSERT_EQ(left.Step({.seed = step}).error, 0U);
  left.FetchAll();

  SaveRequest request = Ask(there.get(), &left);
  ASSERT_TRUE(request.stream.has_value());
  there.Replace(&*request.stream);
  const JobStates& job = *there.get()->tables().jobs.front()->states;
  ASSERT_EQ(left.Step({.seed = 4}).error, 0U);
  there.get()->Settle();
  EXPECT_EQ(job.saved(0).version, off_host ? 4U : 3U) << "off the host there are two slots";
  if (off_host) {
    ASSERT_EQ(left.Step({.seed = 5}).error, 0U);
    there.get()->Settle();
    EXPECT_EQ(job.sealed_version(), 5U);
    EXPECT_EQ(job.saved(0).version, 4U) << "the second update waits";
  }

  there.Fill();
  const States states = Take(&request);
  there.get()->AnswerSave(request.connection, {});
  there.get()->Settle();
  EXPECT_EQ(job.saved(0).version, job.sealed_version());

  for (const uint32_t world : {1U, shape.world}) {
    const shm::JobSpec as = SpecOf(shape, shape.to, world);
    World here(shape.to, as);
    SmallTrainer resumed(here.get(), as);
    ASSERT_TRUE(resumed.JoinAll());
    Begin(here.get(), &resumed, request.stream->step, states);
    for (uint64_t seed = 4; seed <= (off_host ? 5U : 4U); ++seed)
      ASSERT_EQ(resumed.Step({.seed = seed}).error, 0U);
    EXPECT_TRUE(Same(resumed.FetchParameters(), left.FetchParameters())) << world;
  }
}

constexpr uint64_t kOfTwoPieces = 43'776;  // of 6: a little more than one piece

INSTANTIATE_TEST_SUITE_P(
    OnTheHost, EveryForm,
    ::testing::Values(Shape{.states = StateForm::kSplit}, Shape{.states = StateForm::kSplitBf16},
                      Shape{.states = StateForm::kSplit8, .world = 2},
                      Shape{.states = StateForm::kSplit8, .f32_chunks = 1, .world = 3},
                      Shape{.states = StateForm::kSplit8, .rule = OptimizerRule::kLion},
                      Shape{.rule = OptimizerRule::kSgd}));

INSTANTIATE_TEST_SUITE_P(
    OnNvme, EveryForm,
    ::testing::Values(
        Shape{.dtype = DType::kF32, .from = Place::kNvme, .to = Place::kNvme, .world = 2},
        Shape{.from = Place::kNvme, .to = Place::kHost},
        Shape{.from = Place::kHost, .to = Place::kNvme},
        Shape{.states = StateForm::kSplit, .from = Place::kNvme, .to = Place::kNvme, .world = 3},
        Shape{.states = StateForm::kSplitBf16, .from = Place::kNvme, .to = Place::kNvme},
        Shape{.states = StateForm::kSplit8, .from = Place::kNvme, .to = Place::kNvme, .world = 2},
        Shape{.states = StateForm::kSplit8,
              .f32_chunks = 1,
              .rule = OptimizerRule::kLion,
              .from = Place::kHost,
              .to = Place::kNvme},
        Shape{.states = StateForm::kSplit8,
              .from = Place::kNvme,
              .to = Place::kHost,
              .chunk_elements = kOfTwoPieces,
              .chunks = 1},
        Shape{.from = Place::kNvme,
              .to = Place::kNvme,
              .chunk_elements = kOfTwoPieces,
              .chunks = 1}));

INSTANTIATE_TEST_SUITE_P(
    OnGpus, EveryForm,
    ::testing::Values(
        Shape{.dtype = DType::kF32, .from = Place::kGpu, .to = Place::kGpu, .world = 2},
        Shape{.from = Place::kGpu, .to = Place::kGpu, .world = 3},
        Shape{.from = Place::kHost, .to = Place::kGpu},
        Shape{.f32_chunks = 1, .from = Place::kGpu, .to = Place::kNvme},
        Shape{
            .from = Place::kGpu, .to = Place::kGpu, .chunk_elements = kOfTwoPieces, .chunks = 1}));

// A rank that is ahead waits with its moments, so that few chunks have landed at once.
TEST(StatesIn, ARankHasTwoChunksOfMomentsOnTheirWay) {
  const Shape shape{.dtype = DType::kF32, .to = Place::kNvme, .world = 2};
  const shm::JobSpec spec = SpecOf(shape, Place::kNvme, 2);
  World world(Place::kNvme, spec);
  SmallTrainer trainer(world.get(), spec);
  ASSERT_TRUE(trainer.JoinAll());
  FakeRank& rank = trainer.rank(0);
  std::vector<uint64_t> counters;
  for (ChunkId chunk = 0; chunk < 3; ++chunk) {
    const uint64_t shard = spec.ShardElements(chunk);
    shm::Request put = FakeRank::PutRequest(chunk, spec.ShardIndex(chunk, 0) * shard, shard, 0);
    put.micro_batch = shm::kPutMomentum;
    counters.push_back(rank.Send(put));
    rank.Send(FakeRank::PutRequest(chunk, put.element_begin, shard, 0));
  }
  world.get()->Settle();
  for (int answered = 0; answered < 4; ++answered) ASSERT_TRUE(rank.Take().has_value());
  EXPECT_FALSE(rank.Take().has_value()) << "the third chunk waits for the other rank";

  FakeRank& other = trainer.rank(1);
  const uint64_t shard = spec.ShardElements(0);
  other.Send(FakeRank::PutRequest(0, spec.ShardIndex(0, 1) * shard, shard, 0));
  world.get()->Settle();
  const auto answer = rank.Take();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->counter, counters[2]);
}

// What has landed beside the pool is gone with its server: the job is not gone on with.
TEST(StatesIn, AServerThatIsKilledWithMomentsOnTheirWayToNvmeGivesTheJobUpByName) {
  const shm::JobSpec spec = SpecOf({}, Place::kNvme, 1);
  World world(Place::kNvme, spec);
  SmallTrainer trainer(world.get(), spec);
  ASSERT_TRUE(trainer.JoinAll());
  shm::BeginAtRequest begin{};
  begin.op = static_cast<uint32_t>(shm::Op::kBeginAt);
  begin.version = begin.optimizer_step = 3;
  begin.loss_scale = 1;
  FakeRank& rank = trainer.rank(0);
  ASSERT_EQ(world.get()->Await(&rank, rank.Send(shm::AsRequest(begin))).error, 0U);
  world.get()->Restart();
  EXPECT_TRUE(world.get()->tables().jobs.empty());
  EXPECT_FALSE(world.get()->Resume(&rank, spec));
  const auto refused = world.get()->TakeReply<Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->why.id(), ErrorId::kStatesLost);
  EXPECT_EQ(world.get()->pool().free_bytes(), world.get()->pool().total_bytes());
}

}  // namespace states_out_and_in_test
}  // namespace tidepool::memserver
