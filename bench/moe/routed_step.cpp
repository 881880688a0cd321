#include "bench/moe/routed_step.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "bench/harness/die.h"
#include "bench/harness/median.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::bench {
namespace {

using trainer::ChunkLayout;
using trainer::ParameterNote;

// One parameter a chunk: a block's dense part, then its experts, each a unit.
ChunkLayout LayoutOf(uint64_t chunk_bytes) {
  std::vector<ParameterNote> notes;
  for (uint32_t block = 0; block < kMoeBlocks; ++block) {
    const std::string name = "block" + std::to_string(block);
    notes.push_back({.name = name, .dims = {chunk_bytes / sizeof(float)}});
    for (uint32_t expert = 0; expert < kMoeExperts; ++expert) {
      notes.push_back({.name = name + ".expert" + std::to_string(expert),
                       .dims = {chunk_bytes / sizeof(float)},
                       .unit = 1 + block * kMoeExperts + expert});
    }
  }

  trainer::LayoutOptions options;
  options.chunk_bytes = chunk_bytes;
  return OrDie(BuildLayout(notes, options));
}

class Rank {
 public:
  Rank(const RoutedSetup& setup, const ChunkLayout* layout, PacedLinks* links, Clock* clock)
      : setup_(setup),
        layout_(*layout),
        clock_(clock),
        weights_(NumberedWeights(*layout)),
        service_({.layout = layout,
                  .weights = &weights_,
                  .rcache_bytes = layout->RcacheBytes(0, setup.blocks),
                  .links = links}) {
    trainer::CacheSetup cache;

    cache.layout = layout;
    cache.service = &service_;
    cache.groups = {nullptr};
    cache.clock = clock;
    cache.options.separate_while_recording = false;
    cache.options.leaves_out = setup.leaves_out;

    cache_ = OrDie(trainer::ParameterCache::Create(std::move(cache)));
    for (const auto& block : setup.trace->tokens) {
      tokens_ += kDenseTokens;
      for (const uint32_t tokens : block) tokens_ += tokens;
    }
  }

  void Step(Version version) {
    until_ns_ = clock_->NowNs();
    OrDie(cache_->BeginPass(trainer::PassKind::kTrain, version));
    for (uint32_t block = 0; block < kMoeBlocks; ++block) Forward(block);
    for (uint32_t block = kMoeBlocks; block-- > 0;) Backward(block);
    OrDie(cache_->FinishBackward(0));
    OrDie(cache_->FinishStep());
  }

  trainer::CacheCounters counters() const { return cache_->counters(); }

 private:
  // The dense part of a block computes as long as an expert with so many tokens.
  static constexpr uint32_t kDenseTokens = 64;

  static uint32_t UnitOf(uint32_t block, uint32_t expert) {
    return 1 + block * kMoeExperts + expert;
  }
  ParameterId ParameterOf(uint32_t block, uint32_t expert) const {
    return layout_.of_note[block * (kMoeExperts + 1) + 1 + expert];
  }

  void Forward(uint32_t block) {
    Compute(layout_.of_note[block * (kMoeExperts + 1)], kDenseTokens, 1);
    const auto& tokens = setup_.trace->tokens[block];
    std::vector<uint32_t> units;
    std::vector<bool> used;
    for (uint32_t expert = 0; expert < kMoeExperts; ++expert) {
      units.push_back(UnitOf(block, expert));
      used.push_back(tokens[expert] > 0);
    }

    leaves_out_ = cache_->RouteUnits({.units = units, .used = &used, .used_anywhere = &used});
    for (uint32_t expert = 0; expert < kMoeExperts; ++expert) {
      if (leaves_out_ && tokens[expert] == 0) {
        OrDie(cache_->PassBy(UnitOf(block, expert)));
      } else {
        Compute(ParameterOf(block, expert), tokens[expert], 1);
      }
    }
  }

  void Backward(uint32_t block) {
    const auto& tokens = setup_.trace->tokens[block];
    for (uint32_t expert = kMoeExperts; expert-- > 0;) {
      if (leaves_out_ && tokens[expert] == 0) {
        OrDie(cache_->PassBy(UnitOf(block, expert)));
        continue;
      }
      Compute(ParameterOf(block, expert), tokens[expert], 2);
      HandIn(ParameterOf(block, expert));
    }

    Compute(layout_.of_note[block * (kMoeExperts + 1)], kDenseTokens, 2);
    HandIn(layout_.of_note[block * (kMoeExperts + 1)]);
  }

  // A thread that wakes late does not lengthen the step: a computation begins when the one before
  // has ended, unless its chunk came later.
  void Compute(ParameterId parameter, uint32_t tokens, uint32_t parts) {
    const ChunkId chunk = layout_.parameters[parameter].chunk;
    const int64_t before = clock_->NowNs();
    OrDie(cache_->Acquire({&chunk, 1}));
    const int64_t now = clock_->NowNs();
    if (now - before > kLookNs) until_ns_ = std::max(until_ns_, now);
    CheckContent(chunk);

    const std::span<const ParameterId> used(&parameter, 1);
    OrDie(cache_->BeginUse(used));
    const double share = static_cast<double>(tokens) * parts / (3 * static_cast<double>(tokens_));
    until_ns_ += static_cast<int64_t>(static_cast<double>(setup_.compute_ns) * share);
    // Each wait is in parts, because transfers move on whenever an operator ends.
    for (int64_t left = until_ns_ - clock_->NowNs(); left > 0; left = until_ns_ - clock_->NowNs()) {
      clock_->SleepNs(std::min<int64_t>(left, kLookNs));
      OrDie(cache_->Progress());
    }
    OrDie(cache_->EndUse(used));
    OrDie(cache_->Release({&chunk, 1}));
  }

  void HandIn(ParameterId parameter) {
    OrDie(cache_->GradientPlace(parameter).status());
    OrDie(cache_->GradientDone(parameter));
  }

  void CheckContent(ChunkId chunk) {
    std::vector<trainer::Move> moves;
    cache_->TakeMoves(&moves);
    places_.resize(layout_.chunks.size());
    for (const trainer::Move& move : moves) places_[move.chunk] = move.block;
    if (places_[chunk] == nullptr || !HasNumber({places_[chunk], layout_.ChunkBytes(chunk)}, chunk))
      Die("a chunk's weights are not where it is used");
  }

  static constexpr int64_t kLookNs = 100'000;

  const RoutedSetup setup_;
  const ChunkLayout& layout_;
  Clock* const clock_;
  const std::vector<std::vector<std::byte>> weights_;
  LinkedChunks service_;
  std::unique_ptr<trainer::ParameterCache> cache_;
  std::vector<std::byte*> places_;
  uint64_t tokens_ = 0;
  int64_t until_ns_ = 0;
  bool leaves_out_ = false;
};

}  // namespace

uint64_t FetchedTheory(const RoutingTrace& trace, uint64_t chunk_bytes, bool all) {
  uint64_t chunks = kMoeBlocks;
  for (const auto& block : trace.tokens) {
    for (const uint32_t tokens : block) chunks += all || tokens > 0 ? 1 : 0;
  }
  return 2 * chunks * chunk_bytes;
}

RoutedResult RunRouted(const RoutedSetup& setup, Clock* clock) {
  const ChunkLayout layout = LayoutOf(setup.chunk_bytes);
  PacedLinks links({setup.bytes_per_ns}, clock);
  Rank rank(setup, &layout, &links, clock);
  rank.Step(0);
  rank.Step(1);

  const trainer::CacheCounters before = rank.counters();
  std::vector<double> times;
  for (uint32_t step = 0; step < setup.steps; ++step) {
    const int64_t begin_ns = clock->NowNs();
    rank.Step(2 + step);
    times.push_back(static_cast<double>(clock->NowNs() - begin_ns));
  }
  const trainer::CacheCounters after = rank.counters();
  return {.step_ns = Median(times),
          .fetched_bytes = (after.bytes_h2d - before.bytes_h2d) / setup.steps,
          .handed_in_bytes = (after.bytes_d2h - before.bytes_d2h) / setup.steps};
}

}  // namespace tidepool::bench
