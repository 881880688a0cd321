// All states of a job leave it while it trains, and come into a new one: the bits of the step they
// are of, whatever was sealed meanwhile; and the bits of the run that was left alone afterwards.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/system/futex.h"
#include "memserver/checkpoint/state_stream.h"
#include "shm/state_stream.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace states_out_and_in_test {

using Plane = std::pair<ParameterId, uint32_t>;
using States = std::map<Plane, std::vector<std::byte>>;

// Takes everything out of the stream, as the process of the job's user does.
States Drain(std::byte* memory) {
  shm::StreamHead* const head = shm::HeadOf(memory);
  States states;
  for (uint32_t taken = 0;;) {
    const bool whole = head->end.load() == static_cast<uint32_t>(shm::StreamEnd::kWhole);
    if (whole && taken == head->pieces) return states;
    if (head->end.load() == static_cast<uint32_t>(shm::StreamEnd::kFailed)) return {};
    const uint32_t given = head->given.load();
    if (given == taken) {
      WaitOnWord(&head->given, given, kNsPerMs);
      continue;
    }
    const shm::StreamPiece piece = *shm::PieceOf(memory, taken);
    std::vector<std::byte>& bytes = states[{piece.parameter, piece.plane}];
    const std::byte* from = shm::SlotOf(memory, taken);
    bytes.insert(bytes.end(), from, from + piece.bytes);
    head->taken.store(++taken);
    WakeWord(&head->taken);
  }
}

std::shared_ptr<shm::Segment> Memory() {
  return std::move(shm::Segment::Create("t", shm::kStreamBytes, shm::PeerAccess::kReadWrite))
      .value();
}

// Asks for the states of the sealed version, and returns what the reading thread is given.
SaveRequest Ask(ServeWorld* world, SmallTrainer* trainer) {
  world->Post(
      SaveWeights{trainer->rank(0).connection(), {}, "a checkpoint", trainer->version(), Memory()});
  world->Settle();
  std::vector<SaveRequest> saves = world->TakeSaves();
  EXPECT_EQ(saves.size(), 1U);
  return std::move(saves.front());
}

States Take(SaveRequest* request) {
  request->stream->opened = [] {};
  const std::shared_ptr<shm::Segment> memory = request->stream->memory;
  States states;
  std::thread reader([&] { states = Drain(memory->data()); });
  const SteadyClock clock;
  const std::atomic<bool> stop{false};
  const Status written = WriteStream(*request->stream, clock, stop, kNsPerSecond);
  EXPECT_TRUE(written.ok()) << written.Format();
  reader.join();
  return states;
}

// A job begins at the step, and every rank puts its shards of the states: moments, then weights.
void Begin(ServeWorld* world, SmallTrainer* trainer, const StepRecord& step, const States& states) {
  shm::BeginAtRequest begin{};
  begin.op = static_cast<uint32_t>(shm::Op::kBeginAt);
  begin.version = step.version;
  begin.optimizer_step = step.optimizer_step;
  begin.loss_scale = step.loss_scale;
  const shm::JobSpec& spec = trainer->spec();
  for (const auto& rank : trainer->ranks())
    ASSERT_EQ(world->Await(rank.get(), rank->Send(shm::AsRequest(begin))).error, 0U);

  for (ChunkId chunk = 0; chunk < spec.chunks.size(); ++chunk) {
    for (const uint32_t plane : {shm::kPutMomentum, shm::kPutVariance, shm::kPutMaster}) {
      std::vector<float> values(spec.chunks[chunk].elements);
      for (ParameterId id = 0; id < spec.parameters.size(); ++id) {
        if (spec.parameters[id].chunk != chunk) continue;
        const std::vector<std::byte>& bytes = states.at({id, plane});
        std::memcpy(values.data() + spec.parameters[id].element_begin, bytes.data(), bytes.size());
      }

      const uint64_t count = spec.ShardElements(chunk);
      for (const auto& rank : trainer->ranks()) {
        const uint64_t first = spec.ShardIndex(chunk, rank->rank()) * count;
        std::copy_n(values.data() + first, count, rank->At<float>(0));
        shm::Request put = FakeRank::PutRequest(chunk, first, count, 0);
        put.micro_batch = plane;
        ASSERT_EQ(world->Await(rank.get(), rank->Send(put)).error, 0U);
      }
    }
  }
  trainer->set_version(step.version);
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

}  // namespace states_out_and_in_test
}  // namespace tidepool::memserver
