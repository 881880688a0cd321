#include "tests/trainer/cache/toy_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <thread>

#include "base/check.h"
#include "base/random.h"
#include "base/units.h"
#include "tests/fakes/flag_chunk_service.h"
#include "tests/fakes/memory_chunk_service.h"
#include "tests/fakes/thread_collective.h"
#include "trainer/cache/weight_put.h"
#include "trainer/comm/nccl/registered_host.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {
namespace {

using testing::FlagChunkService;
using testing::MemoryChunkService;
using testing::MemoryServer;
using testing::ThreadCollective;
using testing::ThreadGroup;

float InitialValue(uint32_t note, uint64_t element) {
  return static_cast<float>((7 * note + element) % 13);
}

float GradientValue(const ToyModel& model, uint32_t note, uint64_t element, Rank rank,
                    uint64_t step_and_batch) {
  if (model.no_gradient[note]) return 0;
  return static_cast<float>((note + 3 * element + 7 * rank + step_and_batch) % 5) - 2.0f;
}

bool IsUsed(const ToyConfig& config, uint32_t note, uint32_t step, uint32_t batch) {
  const uint32_t unit = config.model.notes[note].unit;
  return unit == 0 || !config.uses || config.uses(step, batch, unit);
}

// values[version][note][element], by plain arithmetic.
using History = std::vector<std::vector<std::vector<float>>>;

History MakeHistory(const ToyConfig& config, const ChunkLayout& layout) {
  History history(config.steps + 1);
  for (uint32_t note = 0; note < config.model.notes.size(); ++note) {
    const ParameterPlace& place = layout.parameters[layout.of_note[note]];
    std::vector<float> values(place.element_count);
    for (uint64_t e = 0; e < values.size(); ++e) values[e] = InitialValue(note, e);
    history[0].push_back(values);
    for (uint32_t step = 0; step < config.steps; ++step) {
      for (const Rank rank : layout.data_groups[layout.chunks[place.chunk].data_group]) {
        for (uint32_t batch = 0; batch < config.micro_batches; ++batch) {
          if (!IsUsed(config, note, step, batch)) continue;
          for (uint64_t e = 0; e < values.size(); ++e)
            values[e] -= GradientValue(config.model, note, e, rank, 10 * step + batch);
        }
      }
      history[step + 1].push_back(values);
    }
  }
  return history;
}

// Time that moves a little with every look at it.
class TickingClock final : public Clock {
 public:
  int64_t NowNs() const override { return ++now_; }
  // Threads of the test act meanwhile.
  void SleepNs(int64_t duration_ns) override {
    now_ += duration_ns;
    SteadyClock().SleepNs(duration_ns);
  }

 private:
  mutable int64_t now_ = 0;
};

class ToyRank {
 public:
  ToyRank(const ToyConfig& config, const ChunkLayout& layout, const History& history,
          MemoryServer* server, Rank rank)
      : config_(config),
        layout_(layout),
        history_(history),
        server_(server),
        rank_(rank),
        storages_(layout.chunks.size(), nullptr),
        kept_(config.model.notes.size()) {
    const uint64_t bytes = layout.RcacheBytes(rank, config.blocks),
                   seed = 1000 * config.delay_seed + rank;
    if (!config.on_device) {
      auto service =
          std::make_unique<MemoryChunkService>(server, rank, bytes, seed, config.delay_max);
      if (!config.takes_zeros) service->TakeNoZeros();
      service_ = std::move(service);
      return;
    }
    const bool alone = layout.world == 1 && !config.threads && config.device == nullptr;
    auto flags = std::make_unique<FlagChunkService>(
        server, testing::FlagServiceSetup{rank, bytes, seed, alone, config.threads, config.device});
    if (config.device != nullptr)
      pinned_ = RegisteredHost::Create(config.device, kPinnedBytes).value();
    if (rank == 0) flags->FailFrom(config.fail_from);
    if (rank == 0) flags->FailAnswerOf(config.fail_answer_of);
    streams_ = {flags->device(), flags->OpenStream(), flags->OpenStream()};
    machine_ = flags.get();
    service_ = std::move(flags);
  }

  ~ToyRank() {
    if (machine_ != nullptr) machine_->Leave();
  }

  // On a device: null elsewhere.
  FlagChunkService* machine() { return machine_; }

  // Order of groups: by data group. Each rank of a group has its own ThreadCollective.
  Status Run(std::vector<std::unique_ptr<ThreadCollective>>* groups, ToyRankResult* result) {
    TP_RETURN_IF_ERROR(PutWeights());
    if (config_.cache.exchange == Exchange::kReplicated) TP_RETURN_IF_ERROR(server_->WaitPut());
    CacheSetup setup;
    setup.layout = &layout_;
    setup.rank = rank_;
    setup.service = service_.get();
    setup.streams = streams_;
    for (const auto& group : *groups) setup.groups.push_back(group.get());
    groups_ = groups;
    setup.clock = &clock_;
    setup.options = config_.cache;
    if (config_.limit) setup.limit = config_.limit(rank_);
    result_ = result;
    TP_ASSIGN_OR_RETURN(cache_, ParameterCache::Create(std::move(setup)));
    if (!config_.declared.moments.empty()) cache_->Declare(PassKind::kTrain, config_.declared);
    const Status trained = Train();
    if (trained.ok()) CompareFound();
    result->requests = machine_ == nullptr ? 0 : machine_->requests();
    result->smallest_bytes = cache_->SmallestRcacheBytes();
    result->schedule = cache_->schedule(PassKind::kTrain);
    return trained;
  }

 private:
  Status PutWeights() {
    WeightPut put(&layout_, rank_, service_.get(), streams_);
    for (ParameterId id = 0; id < layout_.parameters.size(); ++id) {
      TP_RETURN_IF_ERROR(put.Put(id, history_[0][layout_.parameters[id].note].data()));
    }
    return put.Finish();
  }

  Status Train() {
    for (step_ = 0; step_ < config_.steps; ++step_) {
      TP_RETURN_IF_ERROR(server_->WaitVersion(step_));
      result_->before_step.push_back(cache_->counters());
      TP_RETURN_IF_ERROR(cache_->BeginPass(PassKind::kTrain, step_));
      result_->followed.push_back(cache_->following());
      for (uint32_t batch = 0; batch < config_.micro_batches; ++batch) {
        TP_RETURN_IF_ERROR(Forward(batch));
        TP_RETURN_IF_ERROR(Backward(batch));
      }
      result_->planned.push_back(cache_->plan() != nullptr ? TrafficOf(*cache_->plan(), layout_)
                                                           : StepTraffic());
      result_->planned_groups.push_back(
          cache_->plan() != nullptr ? cache_->PlannedTraffic()
                                    : std::vector<GroupTraffic>(layout_.data_groups.size()));
      TP_RETURN_IF_ERROR(cache_->FinishStep());
      result_->after_step.push_back(cache_->counters());
      NoteSent();
      CompareFound();
      TP_RETURN_IF_ERROR(server_->EndStep(config_.micro_batches));
      TP_RETURN_IF_ERROR(server_->WaitVersion(step_ + 1));
      if (config_.evaluate) TP_RETURN_IF_ERROR(Evaluate());
    }
    return {};
  }

  void NoteSent() {
    std::vector<uint64_t> gathers, reductions;
    for (const auto& group : *groups_) {
      gathers.push_back(group == nullptr ? 0 : group->sent_in_gathers());
      reductions.push_back(group == nullptr ? 0 : group->sent_in_reductions());
    }
    result_->sent_in_gathers.push_back(std::move(gathers));
    result_->sent_in_reductions.push_back(std::move(reductions));
  }

  std::vector<std::vector<uint32_t>> Operators() const {
    std::vector<std::vector<uint32_t>> operators;
    for (const auto& notes : config_.model.forward) {
      std::vector<uint32_t> mine;
      for (const uint32_t note : notes) {
        if (layout_.IsMember(ChunkOf(note), rank_)) mine.push_back(note);
      }
      if (!mine.empty()) operators.push_back(mine);
    }
    if (config_.shuffle_second_half && step_ >= 2)
      std::swap(operators[1], operators[operators.size() - 2]);
    return operators;
  }

  uint32_t UnitOf(const std::vector<uint32_t>& notes) const {
    return config_.model.notes[notes.front()].unit;
  }

  // Before the first of several operators of units: their router has run.
  void Route(const std::vector<std::vector<uint32_t>>& operators, size_t first, uint32_t batch,
             uint32_t step) {
    if (!config_.uses || UnitOf(operators[first]) == 0) return;
    if (first > 0 && UnitOf(operators[first - 1]) != 0) return;
    std::vector<uint32_t> units;
    std::vector<bool> used, anywhere;
    const auto is_used = [&](uint32_t unit) { return config_.uses(step, batch, unit); };
    for (size_t i = first; i < operators.size() && UnitOf(operators[i]) != 0; ++i) {
      const uint32_t unit = UnitOf(operators[i]);
      if (!units.empty() && units.back() == unit) continue;
      units.push_back(unit);
      used.push_back(is_used(unit));
      const std::vector<uint32_t>& like = config_.model.like[unit];
      anywhere.push_back(std::any_of(like.begin(), like.end(), is_used));
    }
    const bool leaves_out =
        cache_->RouteUnits({.units = units, .used = &used, .used_anywhere = &anywhere});
    ApplyMoves();
    for (size_t i = 0; i < units.size(); ++i) {
      if (leaves_out && !used[i]) left_out_.insert(units[i]);
    }
  }

  // Passes by an operator of a unit that is left out.
  Result<bool> PassedBy(const std::vector<uint32_t>& notes) {
    if (UnitOf(notes) == 0 || !left_out_.contains(UnitOf(notes))) return false;
    const Status passed = cache_->PassBy(UnitOf(notes));
    ApplyMoves();
    TP_RETURN_IF_ERROR(passed);
    return true;
  }

  Status Forward(uint32_t batch) {
    const auto operators = Operators();
    left_out_.clear();
    for (size_t i = 0; i < operators.size(); ++i) {
      Route(operators, i, batch, step_);
      TP_ASSIGN_OR_RETURN(const bool passed, PassedBy(operators[i]));
      if (!passed) TP_RETURN_IF_ERROR(Use(operators[i], step_));
    }
    return {};
  }

  Status Backward(uint32_t batch) {
    const auto operators = Operators();
    std::vector<int> uses(config_.model.notes.size(), 0);
    for (const auto& notes : operators) {
      for (const uint32_t note : notes) ++uses[note];
    }
    for (size_t i = operators.size(); i-- > 0;) {
      TP_ASSIGN_OR_RETURN(const bool passed, PassedBy(operators[i]));
      if (passed) continue;
      TP_RETURN_IF_ERROR(Use(operators[i], step_));
      for (const uint32_t note : operators[i]) {
        const bool fires = --uses[note] == 0 || config_.model.fires_twice[note];
        if (fires && !config_.model.no_gradient[note])
          TP_RETURN_IF_ERROR(Gradient(note, batch, uses[note] == 0));
      }
    }
    for (const ChunkId chunk : cache_->SeparateChunks()) TP_RETURN_IF_ERROR(HandIn(chunk));
    const Status finished = cache_->FinishBackward(batch);
    ApplyMoves();
    return finished;
  }

  Status Evaluate() {
    TP_RETURN_IF_ERROR(cache_->BeginPass(PassKind::kEvaluation, step_ + 1));
    auto operators = Operators();
    operators.resize((operators.size() + 1) / 2);
    left_out_.clear();
    for (size_t i = 0; i < operators.size(); ++i) {
      Route(operators, i, /*batch=*/99, step_);
      TP_ASSIGN_OR_RETURN(const bool passed, PassedBy(operators[i]));
      if (!passed) TP_RETURN_IF_ERROR(Use(operators[i], step_ + 1));
    }
    return cache_->AwaitOperators();
  }

  ChunkId ChunkOf(uint32_t note) const { return layout_.parameters[layout_.of_note[note]].chunk; }

  // One operator, with an inner operator on its first parameter.
  Status Use(const std::vector<uint32_t>& notes, uint64_t version) {
    std::vector<ChunkId> chunks;
    for (const uint32_t note : notes) {
      if (std::find(chunks.begin(), chunks.end(), ChunkOf(note)) == chunks.end())
        chunks.push_back(ChunkOf(note));
    }
    TP_RETURN_IF_ERROR(cache_->Acquire(chunks));
    ApplyMoves();
    const ChunkId inner = chunks.front();
    TP_RETURN_IF_ERROR(cache_->Acquire({&inner, 1}));
    std::vector<ParameterId> used;
    for (const uint32_t note : notes) used.push_back(layout_.of_note[note]);
    TP_RETURN_IF_ERROR(cache_->BeginUse(used));
    TP_RETURN_IF_ERROR(cache_->BeginUse({used.data(), 1}));
    for (const uint32_t note : notes) CheckValues(note, version);
    TP_RETURN_IF_ERROR(cache_->EndUse({used.data(), 1}));
    TP_RETURN_IF_ERROR(cache_->EndUse(used));
    TP_RETURN_IF_ERROR(cache_->Release({&inner, 1}));
    return cache_->Release(chunks);
  }

  void CheckValues(uint32_t note, uint64_t version) {
    const ParameterPlace& place = layout_.parameters[layout_.of_note[note]];
    const std::byte* storage = storages_[place.chunk];
    const auto& expected = history_[version][note];
    if (storage == nullptr) {
      result_->wrong.push_back(place.name + " is nowhere");
    } else if (streams_.compute != nullptr) {
      found_.push_back({note, version, Keep(std::vector<float>(expected.size(), -1.0f))});
      streams_.compute->Copy(found_.back().values, storage + place.element_begin * 4,
                             expected.size() * 4);
    } else if (std::memcmp(storage + place.element_begin * 4, expected.data(),
                           expected.size() * 4) != 0) {
      result_->wrong.push_back(place.name + " has wrong values at version " +
                               std::to_string(version));
    }
  }

  // On a device: what operators found, when they have ended.
  void CompareFound() {
    if (streams_.compute == nullptr) return;
    const auto end = streams_.compute->Record();
    if (!machine_->Drive([&] { return streams_.compute->Passed(end); }))
      result_->wrong.push_back("operators never end");
    for (const Found& found : found_) {
      const std::vector<float>& expected = history_[found.version][found.note];
      if (std::memcmp(found.values, expected.data(), expected.size() * 4) == 0) continue;
      result_->wrong.push_back(layout_.parameters[layout_.of_note[found.note]].name +
                               " had wrong values at version " + std::to_string(found.version));
    }
    found_.clear();
    kept_values_.clear();
    pinned_used_ = 0;
  }

  // Where copies of the compute stream find them, or leave theirs, until CompareFound. From and to
  // memory that is not pinned a driver copies before it returns, so that this thread would wait for
  // a stream which waits for it.
  float* Keep(std::vector<float> values) {
    if (pinned_.data() == nullptr) {
      kept_values_.push_back(std::move(values));
      return kept_values_.back().data();
    }
    TP_CHECK(pinned_used_ + values.size() <= kPinnedBytes / 4,
             "kPinnedBytes hold what operators of one step read and write");
    float* const kept = reinterpret_cast<float*>(pinned_.data()) + pinned_used_;
    pinned_used_ += values.size();
    std::copy(values.begin(), values.end(), kept);
    return kept;
  }

  // The values of a gradient into its place, by the CPU or by the compute stream, which may come to
  // it much later.
  void CopyTo(std::byte* place, std::vector<float> values) {
    if (streams_.compute == nullptr) {
      std::memcpy(place, values.data(), values.size() * 4);
      return;
    }
    const uint64_t bytes = values.size() * 4;
    streams_.compute->Copy(place, Keep(std::move(values)), bytes);
  }

  // The first of two gradients carries 100 more, the second 100 less: only their sum is right.
  std::vector<float> GradientOf(uint32_t note, uint32_t batch, bool last) const {
    std::vector<float> values(history_[0][note].size());
    for (uint64_t e = 0; e < values.size(); ++e) {
      const float whole = IsUsed(config_, note, step_, batch)
                              ? GradientValue(config_.model, note, e, rank_, 10 * step_ + batch)
                              : 0;
      values[e] = !config_.model.fires_twice[note] ? whole : last ? whole - 100 : 100;
    }
    return values;
  }

  Status Gradient(uint32_t note, uint32_t batch, bool last) {
    const std::vector<float> values = GradientOf(note, batch, last);
    TP_ASSIGN_OR_RETURN(std::byte * place, cache_->GradientPlace(layout_.of_note[note]));
    ApplyMoves();
    if (place != nullptr) {
      CopyTo(place, values);
      const Status done = cache_->GradientDone(layout_.of_note[note]);
      ApplyMoves();
      return done;
    }
    kept_[note].resize(values.size(), 0.0f);
    for (uint64_t e = 0; e < values.size(); ++e) kept_[note][e] += values[e];
    return {};
  }

  Status HandIn(ChunkId chunk) {
    TP_ASSIGN_OR_RETURN(const SeparateBlock block, cache_->BorrowBlock(chunk));
    ApplyMoves();
    for (const SeparatePlace& place : block.places) {
      std::vector<float>& kept = kept_[layout_.parameters[place.parameter].note];
      if (!kept.empty()) CopyTo(place.data, kept);
      kept.clear();
    }
    const Status submitted = cache_->SubmitBorrowed(chunk);
    ApplyMoves();
    return submitted;
  }

  void ApplyMoves() {
    std::vector<Move> moves;
    cache_->TakeMoves(&moves);
    for (const Move& move : moves) {
      storages_[move.chunk] = move.block;
      const auto offset = move.block == nullptr ? -1 : move.block - service_->attachment().rcache;
      result_->decisions += std::to_string(move.chunk) + "@" + std::to_string(offset) + " ";
    }
  }

  const ToyConfig& config_;
  const ChunkLayout& layout_;
  const History& history_;
  MemoryServer* server_;
  Rank rank_;
  struct Found {
    uint32_t note;
    uint64_t version;
    float* values;
  };
  static constexpr uint64_t kPinnedBytes = kMiB;

  RegisteredHost pinned_;  // of a device of the configuration's
  size_t pinned_used_ = 0;
  std::unique_ptr<client::ChunkService> service_;
  FlagChunkService* machine_ = nullptr;  // service_, on a device
  CacheStreams streams_;
  std::deque<Found> found_;                     // by operators in the compute stream
  std::deque<std::vector<float>> kept_values_;  // see Keep
  TickingClock clock_;
  std::unique_ptr<ParameterCache> cache_;
  ToyRankResult* result_ = nullptr;
  std::vector<std::unique_ptr<ThreadCollective>>* groups_ = nullptr;
  uint32_t step_ = 0;
  std::set<uint32_t> left_out_;           // units, in this micro-batch
  std::vector<std::byte*> storages_;      // by chunk, as the moves say
  std::vector<std::vector<float>> kept_;  // by note: gradients in separate mode
};

bool WeightsRight(const ChunkLayout& layout, const History& history, const MemoryServer& server) {
  for (const ParameterPlace& place : layout.parameters) {
    const float* values = server.values[place.chunk].data() + place.element_begin;
    if (std::memcmp(values, history.back()[place.note].data(), place.element_count * 4) != 0)
      return false;
  }
  return true;
}

}  // namespace

ToyResult RunToy(const ToyConfig& config) {
  ToyResult result;
  result.layout = BuildLayout(config.model.notes, config.layout).value();
  const ChunkLayout& layout = result.layout;
  const History history = MakeHistory(config, layout);
  MemoryServer server(&layout);
  for (const ParameterPlace& place : layout.parameters) {
    if (!layout.chunks[place.chunk].frozen) continue;
    std::copy(
        history[0][place.note].begin(), history[0][place.note].end(),
        server.values[place.chunk].begin() + static_cast<std::ptrdiff_t>(place.element_begin));
  }
  const bool on_streams = config.on_device && config.streams_of_groups;
  std::vector<std::unique_ptr<ThreadGroup>> groups;
  for (const auto& members : layout.data_groups) {
    groups.push_back(std::make_unique<ThreadGroup>(static_cast<uint32_t>(members.size()),
                                                   on_streams, config.device));
    if (config.fail_from != UINT64_MAX || config.fail_answer_of != UINT64_MAX)
      groups.back()->ExpectFailure();
  }
  result.ranks.resize(layout.world);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < layout.world; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<std::unique_ptr<ThreadCollective>> own;
      ToyRank run(config, layout, history, &server, rank);
      // One stream for all groups, as groups need it whose kernels must not meet.
      device::Stream* stream = on_streams ? run.machine()->OpenStream() : nullptr;
      for (size_t g = 0; g < groups.size(); ++g) {
        const auto& members = layout.data_groups[g];
        const auto found = std::find(members.begin(), members.end(), rank);
        own.push_back(found == members.end()
                          ? nullptr
                          : std::make_unique<ThreadCollective>(
                                groups[g].get(), static_cast<uint32_t>(found - members.begin()),
                                77 * config.delay_seed + rank, config.delay_max, stream));
        if (on_streams && own.back() != nullptr)
          run.machine()->AddActor([group = groups[g].get()] { return group->Poll(); });
      }
      result.ranks[rank].status = run.Run(&own, &result.ranks[rank]);
      if (result.ranks[rank].status.ok()) return;
      server.Break();
      for (const auto& group : groups) group->Break();
    });
  }
  for (std::thread& thread : threads) thread.join();
  result.weights_right = server.version == config.steps && WeightsRight(layout, history, server);
  result.declared = server.declared;
  return result;
}

uint64_t SmallestFor(ToyConfig config) {
  config.blocks = 1000;
  const ToyResult result = RunToy(config);
  return SmallestRcache(result.ranks[0].schedule, EvictableMask(result.layout));
}

void ExpectGood(const ToyResult& result) {
  for (const ToyRankResult& rank : result.ranks) {
    // The first cause, not that a peer has left.
    for (const ToyRankResult& other : result.ranks) {
      const bool follows = other.status.id() == ErrorId::kCollectiveFailed;
      ASSERT_TRUE(other.status.ok() || follows) << other.status.Format();
    }
    ASSERT_TRUE(rank.status.ok()) << rank.status.Format();
    ASSERT_TRUE(rank.wrong.empty()) << rank.wrong.front();
  }
  EXPECT_TRUE(result.weights_right);
}

}  // namespace tidepool::trainer
