// The steps of a job leave it as they are sealed, and are made again in another job from what has
// left: the same bits, on any number of ranks. No chunk is updated before its gradients have left.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/checkpoint/step_log.h"
#include "base/system/futex.h"
#include "memserver/checkpoint/step_stream.h"
#include "shm/state_stream.h"
#include "tests/fakes/small_job.h"

namespace tidepool::memserver {
namespace steps_out_and_in_test {

struct Logged {
  LoggedStep step;
  std::map<ParameterId, std::vector<std::byte>> gradients;
};

std::shared_ptr<shm::Segment> Memory() {
  return std::move(shm::Segment::Create("t", shm::kStreamBytes, shm::PeerAccess::kReadWrite))
      .value();
}

uint64_t GradientBytes(const shm::JobSpec& spec, ParameterId id) {
  return spec.parameters[id].element_count *
         BytesOf(shm::GradientSlotType(spec, spec.parameters[id].chunk));
}

// Asks for the steps behind the trainer's version, and returns what the reading thread is given;
// nothing: refused.
std::optional<SaveRequest> Ask(ServeWorld* world, SmallTrainer* trainer, Version version) {
  world->Post(StreamSteps{trainer->rank(0).connection(), version, Memory()});
  world->Settle();
  std::vector<SaveRequest> saves = world->TakeSaves();
  if (saves.empty()) return {};
  EXPECT_TRUE(saves.front().steps.has_value());
  return std::move(saves.front());
}

// Both ends of a stream, on threads of their own: the one that reads for memserver, and the process
// that logs.
class Streaming {
 public:
  Streaming(const shm::JobSpec& spec, StepTask task)
      : spec_(spec), task_(std::move(task)), memory_(task_.memory->data()) {
    task_.opened = [] {};
    writer_ = std::thread([this] { ended_ = WriteSteps(task_, clock_, stop_, kNsPerSecond); });
    reader_ = std::thread([this] { Drain(); });
  }
  ~Streaming() {
    task_.feed->Close();
    writer_.join();
    reader_.join();
  }
  // Waits until so many steps have left.
  const std::vector<Logged>& Await(size_t steps) {
    while (true) {
      const std::scoped_lock lock(mutex_);
      if (steps_.size() >= steps) return steps_;
    }
  }
  StepFeed& feed() { return *task_.feed; }

 private:
  void Drain() {
    shm::StreamHead* const head = shm::HeadOf(memory_);
    Logged open;
    for (uint32_t taken = 0;;) {
      if (head->end.load() != 0 && (taken == head->pieces || head->given.load() == taken)) return;
      const uint32_t given = head->given.load();
      if (given == taken) {
        WaitOnWord(&head->given, given, kNsPerMs);
        continue;
      }
      Take(*shm::PieceOf(memory_, taken), shm::SlotOf(memory_, taken), &open);
      head->taken.store(++taken);
      WakeWord(&head->taken);
    }
  }

  void Take(const shm::StreamPiece& piece, const std::byte* bytes, Logged* open) {
    if (piece.plane == shm::kStreamStep) {
      ASSERT_EQ(piece.bytes, sizeof open->step);
      std::memcpy(&open->step, bytes, sizeof open->step);
      const std::scoped_lock lock(mutex_);
      steps_.push_back(std::exchange(*open, {}));
      return;
    }
    ASSERT_EQ(piece.plane, shm::kStreamGradients);
    uint64_t left = piece.bytes, first = piece.first;
    for (ParameterId id = piece.parameter; left > 0; ++id, first = 0) {
      std::vector<std::byte>& gradient = open->gradients[id];
      ASSERT_EQ(gradient.size(), first);
      const uint64_t some = std::min(left, GradientBytes(spec_, id) - first);
      gradient.insert(gradient.end(), bytes, bytes + some);
      bytes += some;
      left -= some;
    }
  }

  const shm::JobSpec& spec_;
  StepTask task_;
  std::byte* const memory_;
  const SteadyClock clock_;
  const std::atomic<bool> stop_{false};
  Status ended_;
  std::mutex mutex_;
  std::vector<Logged> steps_;
  std::thread writer_, reader_;
};

// Every rank submits its shards of the step's sums, and ends the step with its numbers.
void Replay(ServeWorld* world, SmallTrainer* trainer, const Logged& logged) {
  const shm::JobSpec& spec = trainer->spec();
  world->AwaitWeights(spec.name);
  const Version version = logged.step.version - 1;
  for (ChunkId chunk = 0; chunk < spec.chunks.size(); ++chunk) {
    const uint64_t element = BytesOf(shm::GradientSlotType(spec, chunk));
    std::vector<std::byte> all(spec.chunks[chunk].elements * element);
    if (logged.step.skipped != 0) {
      for (size_t at = 0; at < all.size(); at += element) {
        const uint32_t infinite = element == 4 ? 0x7f800000 : 0x7f80;
        std::memcpy(all.data() + at, &infinite, element);
      }
    }
    for (const auto& [id, bytes] : logged.gradients) {
      if (spec.parameters[id].chunk == chunk)
        std::copy(
            bytes.begin(), bytes.end(),
            all.begin() + static_cast<ptrdiff_t>(spec.parameters[id].element_begin * element));
    }
    const uint64_t count = spec.ShardElements(chunk);
    for (const auto& rank : trainer->ranks()) {
      const uint64_t begin = spec.ShardIndex(chunk, rank->rank()) * count;
      std::memcpy(rank->rcache(), all.data() + begin * element, count * element);
      ASSERT_EQ(
          world->Await(rank.get(), rank->Submit({chunk, begin, count, 0, version, shm::kSummed}))
              .error,
          0U);
    }
  }

  std::vector<uint64_t> ends;
  for (const auto& rank : trainer->ranks())
    ends.push_back(rank->EndStep(version, logged.step.learning_rate, logged.step.loss_scale));
  for (size_t i = 0; i < ends.size(); ++i) {
    const shm::Completion end = world->Await(trainer->ranks()[i].get(), ends[i]);
    ASSERT_EQ(end.error, 0U);
    ASSERT_EQ(end.version, logged.step.version);
    ASSERT_EQ(end.skipped, logged.step.skipped);
    if (end.skipped == 0) {
      ASSERT_EQ(end.grad_norm, logged.step.grad_norm);
    }
  }
  trainer->set_version(logged.step.version);
}

struct Case {
  std::string name;
  SpecOptions spec;
  uint32_t to = 1;  // ranks that make the steps again
  bool on_nvme = false;
};

class Steps : public ::testing::TestWithParam<Case> {};

WorldOptions OptionsOf(const Case& each, const shm::JobSpec& spec) {
  return each.on_nvme ? WithStatesOnNvme(spec) : WithLease();
}

TEST_P(Steps, AreMadeAgainWithTheSameBits) {
  const Case& each = GetParam();
  SpecOptions to = each.spec;
  to.world = each.to;
  const shm::JobSpec spec = MakeSpec(each.spec), spec_there = MakeSpec(to);
  ServeWorld here(OptionsOf(each, spec)), there(OptionsOf(each, spec_there));
  SmallTrainer trained(&here, spec), again(&there, spec_there);
  ASSERT_TRUE(trained.JoinAll() && again.JoinAll());
  trained.PutWeights(3);
  again.PutWeights(3);
  here.AwaitWeights(spec.name);
  here.Settle();

  constexpr size_t kSteps = 4;
  std::optional<SaveRequest> request = Ask(&here, &trained, 0);
  ASSERT_TRUE(request);
  {
    Streaming streaming(spec, *request->steps);
    for (size_t step = 1; step <= kSteps; ++step) {
      trained.Step({.learning_rate = 0.05F,
                    .loss_scale = each.spec.loss_scaling != 0 ? 4.0F : 1.0F,
                    .seed = step,
                    .poisoned = each.spec.loss_scaling != 0 && step == 3});
      const Logged logged = streaming.Await(step)[step - 1];
      here.Post(SnapshotWanted{});
      here.Settle();
      EXPECT_EQ(logged.step.version, step);
      EXPECT_EQ(logged.gradients.size(), logged.step.skipped != 0 ? 0 : spec.parameters.size());
      Replay(&there, &again, logged);
      there.Settle();
    }
  }

  EXPECT_EQ(again.FetchParameters(), trained.FetchParameters());
  EXPECT_EQ(there.tables().jobs.front()->states->last_step().optimizer_step,
            here.tables().jobs.front()->states->last_step().optimizer_step);
  here.AnswerSteps(request->connection, {});
  here.Settle();
  EXPECT_TRUE(here.TakeReply<StepsDone>()->result.ok());
  trained.Step({.seed = 9});
  again.Step({.seed = 9});
  EXPECT_EQ(again.FetchParameters(), trained.FetchParameters()) << "the moments are equal, too";
}

INSTANTIATE_TEST_SUITE_P(
    All, Steps,
    ::testing::Values(
        Case{"F32", {.max_grad_norm = 1}},
        Case{"F32On2To3", {.world = 2, .chunk_elements = 192, .max_grad_norm = 1}, 3},
        Case{"Bf16", {.dtype = DType::kBF16, .f32_chunks = 1}},
        Case{"Bf16Sums", {.dtype = DType::kBF16, .micro_batches = 3, .max_grad_norm = 1}, 2},
        Case{"F16Skips", {.world = 2, .dtype = DType::kF16, .loss_scaling = 1}, 2},
        Case{"OnNvme", {.dtype = DType::kBF16, .chunks = 5, .max_grad_norm = 1}, 1, true}),
    [](const auto& each) { return each.param.name; });

TEST(StepsOut, AChunkIsUpdatedWhenItsGradientsHaveLeft) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.chunks = 3}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  const std::optional<SaveRequest> request = Ask(&world, &trainer, 0);
  ASSERT_TRUE(request);
  trainer.Submit({.seed = 1});
  EXPECT_EQ(trainer.EndStep({.seed = 1}).version, 1U) << "the seal waits for nobody";
  world.Settle();
  const JobStates& states = *world.tables().jobs.front()->states;
  for (ChunkId id = 0; id < 3; ++id) EXPECT_EQ(states.saved(id).version, 0U);

  request->steps->feed->Open(1, 1);
  world.Post(SnapshotWanted{});
  world.Settle();
  EXPECT_EQ(states.saved(0).version, 0U);
  request->steps->feed->Open(0, 1);
  world.Post(SnapshotWanted{});
  world.Settle();
  EXPECT_EQ(states.saved(0).version, 1U);
  EXPECT_EQ(states.saved(1).version, 1U);
  EXPECT_EQ(states.saved(2).version, 0U);

  // The stream fails: nothing waits for it any more.
  world.AnswerSteps(request->connection, Status(ErrorId::kSaveFailed, "the drive is full"));
  world.Settle();
  EXPECT_EQ(states.saved(2).version, 1U);
  EXPECT_EQ(world.TakeReply<StepsDone>()->result.id(), ErrorId::kSaveFailed);
  trainer.set_version(1);
  trainer.Step({.seed = 2});
}

TEST(StepsOut, AReaderThatLiesOrStandsStillEndsItsStreamAlone) {
  for (const uint32_t taken : {0U, 99U}) {
    ServeWorld world;
    SmallTrainer trainer(&world, MakeSpec({.chunks = 8}));
    ASSERT_TRUE(trainer.JoinAll());
    trainer.PutWeights(3);
    std::optional<SaveRequest> request = Ask(&world, &trainer, 0);
    ASSERT_TRUE(request);
    request->steps->opened = [] {};
    shm::HeadOf(request->steps->memory->data())->taken.store(taken);
    trainer.Submit({.seed = 1});
    trainer.EndStep({.seed = 1});
    const SteadyClock clock;
    const std::atomic<bool> stop{false};
    EXPECT_EQ(WriteSteps(*request->steps, clock, stop, 20 * kNsPerMs).id(), ErrorId::kSaveFailed);
  }
}

TEST(StepsOut, TheEndOfTheRankEndsTheStreamBehindItsLastStep) {
  ServeWorld world(WithLease());
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  std::optional<SaveRequest> request = Ask(&world, &trainer, 0);
  ASSERT_TRUE(request);
  trainer.Submit({.seed = 1});
  trainer.EndStep({.seed = 1});
  world.Lose(trainer.rank(0));
  world.Settle();
  EXPECT_EQ(world.tables().jobs.size(), 1U);
  EXPECT_FALSE(request->steps->feed->ended()) << "a sealed step is still to be copied";

  const shm::JobSpec& spec = trainer.spec();
  shm::HeadOf(request->steps->memory->data())->here.store(1);
  {
    Streaming streaming(spec, *request->steps);
    EXPECT_EQ(streaming.Await(1)[0].gradients.size(), spec.parameters.size());
  }
  EXPECT_TRUE(request->steps->feed->ended());
}

TEST(StepsOut, NumbersOfAStepsOwnEndTheStream) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  const std::optional<SaveRequest> request = Ask(&world, &trainer, 0);
  ASSERT_TRUE(request);
  trainer.Step({.seed = 1, .untouched = {0}});
  world.Settle();
  EXPECT_NE(request->steps->feed->abandoned(), "");
  EXPECT_EQ(world.tables().jobs.front()->states->saved(0).version, 1U) << "nothing waits";
}

TEST(StepsOut, AnotherVersionThanTheSealedOneIsRefused) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  EXPECT_FALSE(Ask(&world, &trainer, 0)) << "there are no weights yet";
  trainer.PutWeights(3);
  trainer.Step({.seed = 1});
  EXPECT_FALSE(Ask(&world, &trainer, 0));
  EXPECT_EQ(world.TakeReply<StepsDone>()->result.id(), ErrorId::kSaveFailed);
  EXPECT_TRUE(Ask(&world, &trainer, 1));
}

TEST(StepsIn, ASumBehindAMicroBatchOrTwiceEndsTheSession) {
  for (const bool sum_first : {false, true}) {
    ServeWorld world;
    SmallTrainer trainer(&world, MakeSpec({.dtype = DType::kBF16, .micro_batches = 2}));
    ASSERT_TRUE(trainer.JoinAll());
    trainer.PutWeights(3);
    world.AwaitWeights(trainer.spec().name);
    FakeRank& rank = trainer.rank(0);
    const uint64_t count = trainer.spec().ShardElements(0);
    ASSERT_EQ(
        world.Await(&rank, rank.Submit({0, 0, count, 0, 0, sum_first ? shm::kSummed : 0})).error,
        0U);
    EXPECT_FALSE(rank.Ended().has_value());
    rank.Submit({0, 0, count, 0, 0, sum_first ? 0 : shm::kSummed});
    world.Settle();
    EXPECT_TRUE(rank.Ended().has_value());
  }
}

// The next server knows from kept memory that the sum is in.
TEST(StepsIn, AServerThatIsKilledHasTheSumsThatWereAnswered) {
  ServeWorld world(WithLease()), alone;
  const shm::JobSpec spec = MakeSpec({.dtype = DType::kBF16, .micro_batches = 3});
  SmallTrainer trainer(&world, spec), left(&alone, spec);
  ASSERT_TRUE(trainer.JoinAll() && left.JoinAll());
  trainer.PutWeights(3);
  left.PutWeights(3);
  alone.Settle();
  std::optional<SaveRequest> request = Ask(&alone, &left, 0);
  ASSERT_TRUE(request);
  Streaming streaming(spec, *request->steps);
  left.Step({.seed = 1});
  const Logged logged = streaming.Await(1)[0];

  world.AwaitWeights(spec.name);
  FakeRank& rank = trainer.rank(0);
  std::vector<shm::Request> sent;
  for (ChunkId chunk = 0; chunk < spec.chunks.size(); ++chunk) {
    std::vector<std::byte> all(spec.chunks[chunk].elements * sizeof(float));
    for (const auto& [id, bytes] : logged.gradients) {
      if (spec.parameters[id].chunk == chunk)
        std::copy(bytes.begin(), bytes.end(),
                  all.begin() + static_cast<ptrdiff_t>(spec.parameters[id].element_begin * 4));
    }
    std::memcpy(rank.rcache(), all.data(), all.size());
    sent.push_back(
        FakeRank::SubmitRequest({chunk, 0, spec.chunks[chunk].elements, 0, 0, shm::kSummed}));
    ASSERT_EQ(world.Await(&rank, rank.Send(sent.back())).error, 0U);
  }
  world.Restart();
  ASSERT_TRUE(world.recovered().ok()) << world.recovered().Format();
  ASSERT_TRUE(world.Resume(&rank, spec));
  for (shm::Request& request_again : sent) {
    request_again.flags |= shm::kResubmitted;
    ASSERT_EQ(world.Await(&rank, rank.Send(request_again)).error, 0U);
  }
  ASSERT_EQ(world.Await(&rank, rank.EndStep(0, logged.step.learning_rate)).version, 1U);
  trainer.set_version(1);
  alone.Post(SnapshotWanted{});
  alone.Settle();
  EXPECT_EQ(trainer.FetchParameters(), left.FetchParameters());
}

}  // namespace steps_out_and_in_test
}  // namespace tidepool::memserver
