#include "trainer/advice/device_memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "trainer/model/input_window.h"

namespace tidepool::trainer {
namespace {

constexpr size_t kChangesShown = 3;

// The needs of a step, to which each change is compared.
struct Need {
  uint64_t total, used;  // used: with the failed request
  uint64_t activations;  // part of `used`
  uint64_t sequences;    // of this rank
  uint64_t tokens;       // of a sequence
  uint64_t boundaries;   // bytes of all layers' block inputs

  bool Fits(uint64_t less) const { return used - std::min(used, less) <= total; }
};

Need NeedOf(const ShortRun& run, const RunPlan& plan, const DataOptions& data) {
  Need need{};
  need.total = run.shares.total;
  need.used = run.shares.total - std::min(run.shares.total, run.shares.free) + run.wanted;
  need.activations = run.shares.activations() + run.wanted;
  need.sequences = std::max<uint64_t>(1, data.batch / std::max(1U, plan.layout.world));
  need.tokens = data.context > 0 ? data.context : plan.shape.context;
  need.boundaries = uint64_t{plan.shape.layers} * need.sequences * need.tokens * plan.shape.hidden *
                    BytesOf(plan.layout.dtype);
  return need;
}

constexpr uint32_t kVocabTilesOffered = 8;

// The logits of a micro-batch with their fp32 copy.
uint64_t LogitsBytes(const Need& need, const RunPlan& plan) {
  return need.sequences * need.tokens * plan.shape.vocab *
         (BytesOf(plan.layout.dtype) + sizeof(float));
}

// With checkpointing: the blocks' inputs, one block's share of the rest, and the logits, which are
// outside the blocks.
uint64_t CheckpointedActivations(const Need& need, const RunPlan& plan) {
  const uint64_t logits = LogitsBytes(need, plan);
  const uint64_t blocks = need.activations - std::min(need.activations, logits);
  return std::min(need.activations,
                  need.boundaries + blocks / std::max(1U, plan.shape.layers) + logits);
}

class Changes {
 public:
  explicit Changes(const Need& need) : need_(need) {}
  void Offer(const std::string& flags, uint64_t less) {
    if (less > 0 && need_.Fits(less) && list_.size() < kChangesShown)
      list_.push_back({flags, need_.used - std::min(need_.used, less)});
  }
  std::vector<MemoryChange> Take() { return std::move(list_); }

 private:
  const Need& need_;
  std::vector<MemoryChange> list_;
};

// Changes for a run that stopped before its first step: each is evaluated as a plan of its own.
class BeforeSteps {
 public:
  BeforeSteps(const ShortRun& run, const RunPlan& plan, const RunOptions& options)
      : run_(run), plan_(plan), options_(options) {
    const DeviceShares& s = run.shares;
    others_ = s.total - std::min(s.total, s.free + s.rcache + s.resident);
    // The fallback block is allocated with the engine.
    others_ += run.at == ShortAt::kBuild ? run.wanted : 0;
  }

  std::vector<MemoryChange> Take() {
    OfferRcache();
    OfferType();
    OfferChunks();
    return std::move(list_);
  }

 private:
  uint64_t InUse(const RunPlan& plan) const {
    return others_ + plan.rcache.bytes +
           (run_.at == ShortAt::kRcache ? SpareBytes(plan.layout) : 0);
  }
  // Adds the change to the list if the plan with these options fits.
  bool Offer(const std::string& flags, const RunOptions& options) {
    const Result<RunPlan> plan =
        MakeRunPlan(plan_.shape, options, plan_.layout.world, run_.rank, plan_.spec.name);
    if (!plan.ok()) return false;
    const uint64_t bytes = InUse(plan.value());
    if (bytes > run_.shares.total || bytes >= InUse(plan_)) return false;
    list_.push_back({flags, bytes});
    return true;
  }
  // Offers the largest rCache that fits.
  void OfferRcache() {
    const uint64_t rest = InUse(plan_) - plan_.rcache.bytes;
    const uint64_t room = run_.shares.total - std::min(run_.shares.total, rest);
    if (room < plan_.layout.RcacheBytes(run_.rank, 1)) return;
    RunOptions options = options_;
    options.memory.rcache =
        std::to_string(plan_.layout.RcacheBytes(run_.rank, plan_.layout.BlocksIn(run_.rank, room)));
    Offer("--rcache " + options.memory.rcache, options);
  }
  void OfferType() {
    if (plan_.layout.dtype != DType::kF32) return;
    RunOptions options = options_;
    options.model.dtype = "bf16";
    Offer("--dtype bf16", options);
  }
  // Offers the largest chunk size that fits of a half, a quarter, ... of the present one.
  void OfferChunks() {
    for (uint64_t bytes = plan_.layout.BlockBytes() / 2; bytes >= kMiB; bytes /= 2) {
      RunOptions options = options_;
      options.memory.chunk_size = std::to_string(RoundUp(bytes, kPageBytes));
      if (Offer("--chunk-size " + options.memory.chunk_size, options)) return;
    }
  }

  const ShortRun& run_;
  const RunPlan& plan_;
  const RunOptions& options_;
  uint64_t others_ = 0;  // used beside the rCache
  std::vector<MemoryChange> list_;
};

std::string WantedText(const ShortRun& run, const RunPlan& plan) {
  if (run.at == ShortAt::kRcache)
    return "the rCache of " + FormatBytes(plan.rcache.bytes) + ", before the first step";
  const std::string what = run.at == ShortAt::kBuild
                               ? "what training needs beside the rCache, before the first step"
                               : "tensors of LibTorch";
  return run.wanted > 0 ? "another " + FormatBytes(run.wanted) + " for " + what : what;
}

// Offers the largest batch that fits; if it divides the failed one, accumulation keeps the tokens
// per step.
void OfferBatch(const Need& need, const RunPlan& plan, uint32_t micro_batches, Changes* changes) {
  for (uint64_t fewer = need.sequences - 1; fewer > 0; --fewer) {
    const uint64_t less = need.activations / need.sequences * (need.sequences - fewer);
    if (!need.Fits(less)) continue;
    std::string flags = "--batch " + std::to_string(fewer * plan.layout.world);
    if (need.sequences % fewer == 0)
      flags += " --accumulate " + std::to_string(micro_batches * (need.sequences / fewer));
    return changes->Offer(flags, less);
  }
}

}  // namespace

uint64_t SpareBytes(const ChunkLayout& layout) {
  uint64_t largest = 0;
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk)
    largest = std::max(largest, layout.ChunkBytes(chunk));
  return RoundUp(largest, kPageBytes);
}

std::vector<MemoryChange> ChangesThatFit(const ShortRun& run, const RunPlan& plan,
                                         const RunOptions& options) {
  if (run.at != ShortAt::kStep) return BeforeSteps(run, plan, options).Take();

  const Need need = NeedOf(run, plan, options.data);
  Changes changes(need);
  changes.Offer("--gpu-states off", run.shares.states);

  const uint64_t rcache = run.shares.rcache + run.shares.resident;
  if (run.rcache_smallest > 0 && run.rcache_smallest < rcache) {
    changes.Offer("--rcache " + std::to_string(run.rcache_smallest), rcache - run.rcache_smallest);
  }

  OfferBatch(need, plan, options.training.micro_batches, &changes);
  if (!options.model.activation_checkpointing) {
    changes.Offer("--checkpoint-activations",
                  need.activations - CheckpointedActivations(need, plan));
  } else if (!options.model.offload_activations && plan.shape.layers > kInputsOnDevice) {
    const uint64_t away =
        need.boundaries / plan.shape.layers * (plan.shape.layers - kInputsOnDevice);
    changes.Offer("--offload-activations", std::min(need.activations, away));
  }

  if (options.model.vocab_tiles == 1) {
    const uint64_t all = LogitsBytes(need, plan);
    changes.Offer("--vocab-tiles " + std::to_string(kVocabTilesOffered),
                  std::min(need.activations, all - all / kVocabTilesOffered));
  }

  for (uint64_t tokens = need.tokens / 2; tokens >= 64; tokens /= 2) {
    const uint64_t less = need.activations / need.tokens * (need.tokens - tokens);
    if (!need.Fits(less)) continue;
    changes.Offer("--context " + std::to_string(tokens), less);
    break;
  }
  return changes.Take();
}

Status ExplainShortage(Status ended, const ShortRun& run, const RunPlan& plan,
                       const RunOptions& options) {
  const DeviceShares& s = run.shares;
  const bool step = run.at == ShortAt::kStep;
  std::string fix;

  for (const MemoryChange& change : ChangesThatFit(run, plan, options)) {
    fix += (fix.empty() ? "each of these alone would have fitted so far: " : ", or ") +
           change.flags + " (" + FormatBytes(change.bytes) + " in use)";
  }
  if (fix.empty()) {
    fix = step ? "no single change would fit: take a smaller --batch, --checkpoint-activations, a "
                 "shorter --context and a smaller --rcache "
                 "together"
               : "no single change would fit: end what else uses this GPU, or take another one, a "
                 "smaller model or --device cpu";
  }

  return std::move(ended)
      .Where(WantedText(run, plan))
      .Why("of " + FormatBytes(s.total) + ": rCache " + FormatBytes(s.rcache) +
           ", resident chunks " + FormatBytes(s.resident) +
           (s.states > 0 ? ", optimizer states " + FormatBytes(s.states) : "") +
           ", parameters outside " + FormatBytes(s.outside) + ", activations " +
           FormatBytes(s.activations()) + ", held by LibTorch unused " + FormatBytes(s.unused()) +
           ", framework (contexts, kernels) and other processes " + FormatBytes(s.framework()) +
           ", free " + FormatBytes(s.free))
      .Fix(fix);
}

uint64_t WantedBytes(const std::string& text) {
  constexpr std::string_view kTold = "Tried to allocate ";
  constexpr std::array<std::pair<std::string_view, uint64_t>, 4> kUnits{
      {{"bytes", 1}, {"KiB", kKiB}, {"MiB", kMiB}, {"GiB", kGiB}}};

  const size_t found = text.find(kTold);
  if (found == std::string::npos) return 0;
  const char* begin = text.c_str() + found + kTold.size();
  char* end = nullptr;
  const double number = std::strtod(begin, &end);
  if (end == begin || *end != ' ' || number < 0) return 0;

  const std::string_view unit = std::string_view(end + 1);
  for (const auto& [name, bytes] : kUnits) {
    if (unit.starts_with(name)) return static_cast<uint64_t>(number * static_cast<double>(bytes));
  }
  return 0;
}

GpuEstimate EstimateGpu(const RunPlan& plan, uint32_t sharers,
                        std::optional<device::DeviceBytes> now, ServerContext server) {
  return {.rank_bytes = plan.rcache.bytes + SpareBytes(plan.layout),
          .sharers = sharers,
          .states_bytes = plan.gpu_states.gpu_bytes,
          .now = now,
          .server = std::move(server)};
}

ServerContext ServerContextOf(const Result<std::vector<client::GpuView>>& gpus,
                              const std::string& uuid) {
  if (!gpus.ok()) return {.why_not = "no memserver could be asked: " + gpus.status().what()};
  const std::vector<client::GpuView>& all = gpus.value();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&uuid](const client::GpuView& gpu) { return gpu.uuid == uuid; });

  if (found == all.end())
    return {.why_not =
                "memserver has not opened this GPU yet; it does for the first rank that brings "
                "memory of it"};
  if (found->taken == 0)
    return {.why_not =
                "memserver could not measure it: the driver's management library is missing there"};
  return {.bytes = found->taken, .why_not = {}};
}

std::string DescribeGpu(const GpuEstimate& estimate) {
  const ServerContext& server = estimate.server;

  std::string text =
      "gpu       " + FormatBytes(estimate.bytes()) + " of each GPU that is used, for " +
      std::to_string(estimate.sharers) + (estimate.sharers == 1 ? " rank" : " ranks") +
      ": rCache with resident chunks, and one chunk that stands in after a failure" +
      (estimate.states_bytes > 0
           ? "; " + FormatBytes(estimate.states_bytes) + " of optimizer states"
           : "") +
      (server.bytes > 0
           ? "; and " + FormatBytes(server.bytes) + " that memserver has taken, as it measured"
           : "") +
      "; beside it activations, and a context of the trainer for each rank (";

  if (!estimate.now) {
    text += "measured where a GPU is; none is here)\n";
  } else {
    text += "in use on that GPU now, one context included: " +
            FormatBytes(estimate.now->total - std::min(estimate.now->total, estimate.now->free)) +
            " of " + FormatBytes(estimate.now->total) + ")\n";
  }

  if (server.bytes == 0)
    text += "          what memserver takes of it is not known and not counted: " + server.why_not +
            "\n";
  return text;
}

}  // namespace tidepool::trainer
