// Fuzz target: a whole serve loop with a job whose ranks write what they like into the memory that
// they share with it, die, come back, and lie to the control thread; beside it an honest job
// (attacks A4 and A5 of the reliability notes). Beside fuzzers every load of a
// client's word may give another value. The loop stays sound, the honest job keeps its bits, also
// those of a frozen chunk that the others list too, and every byte comes back.
#include <algorithm>
#include <array>
#include <memory>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "shm/shared_load.h"
#include "memserver/control/whole_order.h"
#include "tests/fakes/small_trainer.h"
#include "tests/fuzz/descriptor_watch.h"
#include "tests/fuzz/hostile_rank.h"

namespace tidepool::memserver {
namespace {

using fuzz::FuzzInput;

constexpr uint32_t kHostileRanksMax = 2;
// In one run: both cost a hundred times what a turn costs.
constexpr uint32_t kRestartsMax = 2, kJoinsMax = 3;
[[maybe_unused]] constexpr int kLooks = 64;

WorldOptions SmallWorld() {
  return {.pool_bytes = 512 * kKiB,
          .loop = {.times = {.lease_ns = kNsPerSecond}, .rcache_limit = 64 * kMiB}};
}

using Chunks = std::vector<std::vector<float>>;

// What the honest job does in every run.
Chunks TrainHonestly(SmallTrainer* trainer) {
  TP_CHECK(trainer->Step({.seed = 3}).error == 0, "an honest step is sealed");
  return trainer->FetchAll();
}

constexpr uint64_t kFrozenBytes = 1024;

std::vector<std::byte> FrozenContent() {
  std::vector<std::byte> bytes(kFrozenBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + 1);
  return bytes;
}

shm::JobSpec HonestSpec() {
  shm::JobSpec spec = MakeSpec({.name = "honest", .max_grad_norm = 1, .rcache_bytes = 4 * kKiB});
  spec.frozen = {{kFrozenBytes / 4, DType::kF32, HashOf(FrozenContent())}};
  return spec;
}

const Chunks& UndisturbedChunks() {
  static const Chunks chunks = [] {
    ServeWorld world(SmallWorld());
    SmallTrainer trainer(&world, HonestSpec());
    TP_CHECK(trainer.JoinAll(), "room for a job");
    trainer.PutWeights(4);
    return TrainHonestly(&trainer);
  }();
  return chunks;
}

shm::JobSpec HostileSpec(FuzzInput* input) {
  constexpr std::array<DType, 3> kTypes{DType::kF32, DType::kBF16, DType::kF16};
  SpecOptions options{.name = "hostile",
                      .world = 1 + input->Choice(kHostileRanksMax),
                      .dtype = kTypes[input->Choice(kTypes.size())]};
  options.chunks = 1 + input->Choice(2);
  options.chunk_elements = 192 * (1 + input->Choice(4));
  options.micro_batches = 1 + input->Choice(2);
  options.max_grad_norm = input->Choice(2) == 0 ? 0 : 1;
  options.loss_scaling = input->Choice(2);
  options.rcache_bytes = 16 * kKiB;
  shm::JobSpec spec = MakeSpec(options);
  // The honest job's, and one of zeros, which may be put rightly.
  const uint64_t elements = kFrozenBytes / BytesOf(spec.dtype);
  spec.frozen = {{elements, spec.dtype, HashOf(FrozenContent())},
                 {kFrozenBytes, DType::kRaw, HashOf(std::vector<std::byte>(kFrozenBytes))}};
  return spec;
}

// Every load of the hostile ranks' words during a turn: as it is; or some give other values, for as
// long as the input has bytes for it; or every one gives fresh bytes, to the end. The honest rank's
// ring is told by where it is mapped.
class Loads {
 public:
#if defined(TIDEPOOL_FUZZ_LOADS)
  explicit Loads(FuzzInput* input)
      : all_(input->Peek() / 4 % 4 == 3),
        stream_(input->SplitEnd(input->Left() / 8 * input->Choice(4))) {
    now_ = this;
  }
  ~Loads() {
    shm::fuzzed_load = nullptr;
  }

  // The honest rank's session is the only one. Its header is read once in kLooks looks at its empty
  // ring.
  void Learn(ServeWorld* world) {
    honest_ = UINTPTR_MAX;
    shm::fuzzed_load = [](const void* place, uint64_t value) {
      now_->honest_ =
          std::min(now_->honest_, reinterpret_cast<uintptr_t>(place) & ~uintptr_t{4095});
      return value;
    };
    for (int look = 0; look < kLooks; ++look) world->loop().Turn();
    shm::fuzzed_load = nullptr;
  }
  bool Turn(ServeWorld* world) {
    shm::fuzzed_load = [](const void* place, uint64_t value) {
      return now_->ValueOf(reinterpret_cast<uintptr_t>(place), value);
    };
    const bool worked = world->loop().Turn();
    shm::fuzzed_load = nullptr;
    return worked;
  }

 private:
  uint64_t ValueOf(uintptr_t place, uint64_t value) {
    if (place - honest_ < shm::kChannelBytes) return value;
    if (all_ && stream_.Left() == 0) DrawMore();
    if (stream_.Left() == 0) return value;
    return all_ || stream_.Byte() >= 200 ? OddNumber(&stream_, value) : value;
  }
  void DrawMore() {
    for (uint8_t& byte : drawn_) byte = static_cast<uint8_t>(random_.Next() >> 56);
    stream_ = FuzzInput(drawn_.data(), drawn_.size());
  }
  static inline Loads* now_ = nullptr;
  const bool all_;
  FuzzInput stream_;
  SplitMix64 random_{1};
  std::array<uint8_t, 64> drawn_{};
  uintptr_t honest_ = 0;
#else
  explicit Loads(FuzzInput* input) {
    input->SplitEnd(input->Left() / 8 * input->Choice(4));
  }
  void Learn(ServeWorld* world) {
    world->loop().Turn();
  }
  bool Turn(ServeWorld* world) {
    return world->loop().Turn();
  }
#endif
};

class Run {
 public:
  explicit Run(FuzzInput* input)
      : input_(input), loads_(input), honest_(&world_, HonestSpec()), spec_(HostileSpec(input)) {
    TP_CHECK(honest_.JoinAll(), "room for the honest job");
    loads_.Learn(&world_);
    honest_.PutWeights(4);
    PutFrozen();
    for (Rank rank = 0; rank < spec_.world; ++rank)
      ranks_.push_back(std::make_unique<HostileRank>(&world_, rank));
    for (const auto& rank : ranks_) Join(rank.get());
  }

  void Go() {
    while (input_->Left() > 0) {
      HostileRank* rank = ranks_[input_->Choice(static_cast<uint32_t>(ranks_.size()))].get();
      switch (input_->Choice(16)) {
        case 0:
          if (restarts_++ < kRestartsMax) Restart();
          break;
        case 1: Lie(rank); break;
        case 2: Leave(rank); break;
        case 3:
          if (!rank->here() && joins_++ < kJoinsMax) Join(rank);
          break;
        default:
          if (rank->here()) Act(rank);
      }
      Turns(1 + input_->Choice(2));
    }
    CheckHonest();
    End();
  }

 private:
  void Join(HostileRank* rank) {
    rank->Join(spec_);
    DropReplies();
  }

  void PutFrozen() {
    FakeRank& rank = honest_.rank(0);
    TP_CHECK(world_.Await(&rank, rank.Claim(kFrozen)).bytes == 0, "nobody has put it");
    const std::vector<std::byte> content = FrozenContent();
    std::copy(content.begin(), content.end(), rank.rcache());
    TP_CHECK(world_.Await(&rank, rank.Put(kFrozen, 0, kFrozenBytes / 4, 0)).error == 0,
             "an honest put succeeds");
    TP_CHECK(world_.Await(&rank, rank.Claim(kFrozen)).bytes == kFrozenBytes,
             "and is found to be right");
  }

  void Act(HostileRank* rank) {
    switch (input_->Choice(12)) {
      case 0: return rank->WriteSlot(input_);
      case 1: return rank->WriteHeader(input_);
      case 2: return rank->FillRcache(input_);
      case 3: return rank->TakeSome(input_->Choice(8));
      case 4: return Turns(8);
      default: return rank->SendRequest(input_);
    }
  }

  // What a control thread may pass on, in any order.
  void Lie(HostileRank* rank) {
    const ConnectionId connection = rank->here() ? rank->rank_side().connection() : input_->Byte();
    const auto chunks = static_cast<ChunkId>(spec_.chunks.size());
    switch (input_->Choice(7)) {
      case 0: {
        const std::vector<ChunkId> declared{input_->Choice(3) % chunks, input_->Choice(2) % chunks};
        // A control thread makes an order of the session's own job: of no other one's chunks.
        if (!rank->here()) return;
        return world_.Post(DeclareSchedule{connection, WholeOrder(declared, chunks)});
      }
      case 1: return world_.Post(SaveWeights{connection, UniqueFd(), "weights", input_->Choice(3)});
      case 2: return AnswerSaves();
      case 3: return world_.Post(SnapshotWanted{});
      case 4:
        return world_.Post(AwaitedRankLost{input_->Choice(3), input_->Choice(3),
                                           ServeWorld::NonceOf(input_->Choice(8))});
      case 5: return world_.clock().Advance(kNsPerSecond / 4);
      default: world_.Reserve(spec_, input_->Choice(4), 1000 + input_->Choice(2)); return Turns(1);
    }
  }

  void Leave(HostileRank* rank) {
    if (!rank->here()) return;
    if (input_->OneIn(2)) {
      world_.Lose(rank->rank_side());
    } else {
      world_.Leave(rank->rank_side());
    }
    Turns(1);
    rank->Forget();
  }

  void Restart() {
    world_.Restart();
    TP_CHECK(world_.Resume(&honest_.rank(0), honest_.spec()), "the honest rank comes back");
    loads_.Learn(&world_);
    for (const auto& rank : ranks_) {
      if (!input_->OneIn(4)) rank->Resume(spec_);
    }
    DropReplies();
  }

  void AnswerSaves() {
    for (const SaveRequest& save : world_.TakeSaves()) world_.AnswerSave(save.connection, Status());
  }

  void Turns(uint32_t count) {
    for (; count > 0; --count) {
      loads_.Turn(&world_);
      CheckTables();
    }
    // Whoever was ended is gone.
    for (const auto& rank : ranks_) {
      if (rank->here() && world_.tables().FindSlot(rank->rank_side().connection()) == nullptr)
        rank->Forget();
    }
    DropReplies();
  }

  void CheckTables() {
    uint64_t taken = 0;
    for (const auto& job : world_.tables().jobs) taken += job->states->pool_bytes();
    taken += world_.tables().frozen->pool_bytes();
    TP_CHECK(taken + world_.pool().free_bytes() == world_.pool().total_bytes(),
             "the bytes of the pool add up");
    const SessionSlot* slot = world_.tables().FindSlot(honest_.rank(0).connection());
    TP_CHECK(slot != nullptr && slot->session != nullptr && slot->violation == nullptr,
             "the honest session goes on");
    TP_CHECK(!honest_.rank(0).Ended(), "nobody ends the honest session");
  }

  void CheckHonest() {
    // A save may have been asked for in the honest rank's name too; it holds updates until it has
    // ended.
    AnswerSaves();
    TP_CHECK(TrainHonestly(&honest_) == UndisturbedChunks(),
             "the honest job's weights have the bits that they have alone");
    FakeRank& rank = honest_.rank(0);
    TP_CHECK(world_.Await(&rank, rank.Fetch(kFrozen, 0, kFrozenBytes / 4, 0, 0)).error == 0,
             "a frozen chunk stays there");
    const std::vector<std::byte> content = FrozenContent();
    TP_CHECK(std::equal(content.begin(), content.end(), rank.rcache()), "and nobody writes to it");
  }

  void End() {
    for (const auto& rank : ranks_) {
      if (rank->here()) world_.Lose(rank->rank_side());
    }
    honest_.LeaveAll();
    // Slots that were reserved and never taken: their connections end too.
    while (!world_.tables().slots.empty()) {
      world_.Post(ConnectionLost{world_.tables().slots.front()->connection, "the run is over"});
      world_.Settle();
    }
    // A save that waited for an update is begun now; then the lease of what is left ends.
    for (int i = 0; i < 2; ++i) {
      world_.Settle();
      AnswerSaves();
      world_.clock().Advance(3600 * kNsPerSecond);
      world_.Settle();
    }
    TP_CHECK(
        world_.tables().jobs.empty() && world_.pool().free_bytes() == world_.pool().total_bytes(),
        "every byte comes back");
  }

  template <typename Reply>
  void Drop() {
    while (world_.TakeReply<Reply>()) {
    }
  }
  void DropReplies() {
    Drop<ReserveGranted>();
    Drop<AwaitRank>();
    Drop<Refused>();
    Drop<Attached>();
    Drop<SessionOver>();
    Drop<PeerGone>();
    Drop<SaveDone>();
    Drop<SnapshotReady>();
  }

  static constexpr ChunkId kFrozen = 2;  // of the honest job
  FuzzInput* const input_;
  Loads loads_;
  ServeWorld world_{SmallWorld()};
  SmallTrainer honest_;
  const shm::JobSpec spec_;
  std::vector<std::unique_ptr<HostileRank>> ranks_;
  uint32_t restarts_ = 0, joins_ = 0;
};

}  // namespace
}  // namespace tidepool::memserver

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::SetLogLevel(tidepool::LogLevel::kError);
  tidepool::memserver::UndisturbedChunks();
  const tidepool::fuzz::DescriptorWatch watch;
  tidepool::fuzz::FuzzInput input(data, size);
  tidepool::memserver::Run(&input).Go();
  watch.CheckSame();
  return 0;
}
