#include "bench/loops/update_ways.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>

#include "base/clock.h"
#include "base/formats/plane_slack.h"
#include "base/random.h"
#include "base/system/system_memory.h"
#include "bench/harness/row.h"
#include "memserver/update/tuning.h"
#include "optim/kernels/float_mode.h"
#include "optim/update_rule.h"
#include "shm/spec/job_spec.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kPiece = shm::kPieceElements;
// Two starts for each of the ten planes, plus one.
constexpr uint64_t kPlanesSlack = 20 * kApartBytes;
constexpr uint64_t kFillBlock = 4096;
constexpr uint64_t kCached = 16 * 1024, kCachedRepeats = 1000;  // 448 KiB per thread

uint16_t Bf16Of(float value) {
  return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16);
}

}  // namespace

struct UpdateWays::Pass {
  uint64_t count;
  Form form;
  bool safe;
};

UpdateWays::UpdateWays(uint64_t parameters, Crew* crew, bool spaced)
    : crew_(crew),
      parameters_(RoundUp(parameters, kPiece)),
      loops_(SelectLoops()),
      kernels_(optim::SelectKernels(optim::BestIsa())),
      areas_(2 * crew->size()),
      progress_(parameters_ / kPiece),
      team_areas_(2 * crew->size()),
      factors_(optim::MakeFactors(
          {}, {.lr = kBenchLr, .optimizer_step = 1000, .gradient_scale = 1.0F}, {1, kBenchDecay})),
      whole_{.begin = 0, .count = parameters_, .group = 0} {
  // Sizes of the planes in bytes, in the order of BenchPlanes.
  const uint64_t wide = parameters_ * sizeof(float), half = parameters_ * sizeof(uint16_t);
  const std::vector<uint64_t> sizes = {wide, wide, wide, half, half, wide, half, half, half, half};
  memserver::HostPoolOptions options;
  options.bytes = std::accumulate(sizes.begin(), sizes.end(), sizes.size() * kPlanesSlack);
  pool_ = OrDie(memserver::HostPool::Reserve(options, ReadMemoryBudget()));
  std::vector<memserver::Extent> extents;
  for (const uint64_t bytes : sizes) {
    // Placed as in the daemon for a large chunk, or contiguous.
    const uint64_t slack = spaced ? kPlanesSlack : 0;
    if (!pool_->Take(std::array{bytes + slack}, &extents))
      Die("the pool does not hold the planes that it was made for");
    if (spaced) extents.back() = spacing_.Place(extents.back(), slack);
  }

  const auto wide_plane = [&](size_t i) { return reinterpret_cast<float*>(extents[i].data); };
  const auto half_plane = [&](size_t i) { return reinterpret_cast<uint16_t*>(extents[i].data); };
  planes_ = {wide_plane(0),
             wide_plane(1),
             wide_plane(2),
             half_plane(3),
             half_plane(4),
             wide_plane(5),
             reinterpret_cast<int16_t*>(extents[6].data),
             half_plane(7),
             half_plane(8),
             half_plane(9)};

  const uint64_t scratch = std::min(wide, memserver::kTuningScratchWanted * crew->size());
  const memserver::TuningOptions tuning{.workers = crew->size()};
  tuning_ = memserver::MeasureTuning(tuning, {extents[5].data, scratch}, SteadyClock()).tuning;
}

void UpdateWays::RunPieces(const std::function<void(uint32_t, uint64_t, uint64_t)>& piece,
                           uint64_t count) {
  std::atomic<uint64_t> next{0};
  crew_->Run([&](uint32_t worker) {
    for (uint64_t begin = next.fetch_add(kPiece); begin < count; begin = next.fetch_add(kPiece)) {
      piece(worker, begin, std::min(kPiece, count - begin));
    }
  });
}

void UpdateWays::Fill(const Filling& filling) {
  RunPieces(
      [&](uint32_t, uint64_t begin, uint64_t count) {
        SplitMix64 random(begin);
        for (uint64_t at = begin; at < begin + count; ++at) {
          // New numbers at a block's start, then the same again: filling is not measured.
          if (at % kFillBlock < kFillBlock / 8) {
            planes_.master[at] = static_cast<float>(random.Unit() - 0.5);
            planes_.gradient32[at] = static_cast<float>(random.Unit() - 0.5) * filling.gradient;
          } else {
            planes_.master[at] = planes_.master[at - kFillBlock / 8];
            planes_.gradient32[at] = planes_.gradient32[at - kFillBlock / 8];
          }

          planes_.momentum[at] = planes_.master[at] * 1e-3F;
          planes_.variance[at] = filling.variance;
          planes_.gradient16[at] = Bf16Of(planes_.gradient32[at]);
          planes_.param16[at] = 0;
          planes_.split16[at] = Bf16Of(planes_.master[at]);
          planes_.rest16[at] = 0;
          planes_.momentum16[at] = Bf16Of(planes_.momentum[at]);
          planes_.variance16[at] = Bf16Of(filling.variance);
        }
      },
      filling.count == 0 ? parameters_ : filling.count);
}

void UpdateWays::Probe(uint64_t ahead) {
  RunPieces(
      [&](uint32_t, uint64_t begin, uint64_t count) {
        for (float* plane : {planes_.master, planes_.momentum, planes_.variance}) {
          loops_.modify(reinterpret_cast<std::byte*>(plane + begin), count * sizeof(float), ahead);
        }
      },
      parameters_);
}

optim::UpdateSpan UpdateWays::SpanOf(uint64_t begin, uint64_t count, Form form) const {
  optim::UpdateSpan span;
  span.count = count;
  span.gradient = form == Form::kF32 ? static_cast<const void*>(planes_.gradient32 + begin)
                                     : planes_.gradient16 + begin;
  span.gradient_dtype = form == Form::kF32 ? DType::kF32 : DType::kBF16;
  span.prefetch = tuning_.prefetch_elements;

  if (form == Form::kSmall) {
    span.states = StateForm::kSplitBf16;
    span.master = planes_.rest16 + begin;
    span.momentum = planes_.momentum16 + begin;
    span.variance = planes_.variance16 + begin;
    span.param16 = planes_.split16 + begin;
    return span;
  }

  span.master = planes_.master + begin;
  span.momentum = planes_.momentum + begin;
  span.variance = planes_.variance + begin;
  span.param16 = form == Form::kHalf ? planes_.param16 + begin : nullptr;
  return span;
}

void UpdateWays::UpdatePiece(const Pass& pass, uint32_t worker, uint64_t begin, uint64_t count) {
  const optim::FlushDenormals mode;
  const optim::UpdateSpan span = SpanOf(begin, count, pass.form);
  if (!pass.safe) return kernels_.update(factors_, span);
  optim::TileUpdate tiles(kernels_, std::span<optim::UndoArea, 2>(&areas_[2 * worker], 2), tuning_);
  optim::GroupRun run = {0, count, factors_};
  run.random = {optim::RandomKey(1, version_), begin};
  optim::ProgressWord* word = &progress_[begin / kPiece].word;
  word->Store({version_ - 1, 0, optim::Progress::State::kFinished});
  tiles.Run({begin + 1, version_, span, std::span(&run, 1), word});
}

void UpdateWays::Update(const Pass& pass) {
  ++version_;
  RunPieces([&](uint32_t worker, uint64_t begin,
                uint64_t count) { UpdatePiece(pass, worker, begin, count); },
            pass.count);
}

void UpdateWays::UpdateCached(bool safe) {
  ++version_;
  crew_->Run([&](uint32_t worker) {
    const uint64_t begin = worker * kPiece;
    for (uint64_t i = 0; i < kCachedRepeats && begin < parameters_; ++i)
      UpdatePiece({0, Form::kHalf, safe}, worker, begin, kCached);
  });
}

void UpdateWays::UpdateSafe(uint64_t count) {
  Update({count, Form::kHalf, true});
}
void UpdateWays::UpdatePlain(uint64_t count) {
  Update({count, Form::kHalf, false});
}
void UpdateWays::UpdatePart(UndoPart part) {
  const UndoPartLoop loop = SelectUndoPart();
  RunPieces(
      [&](uint32_t worker, uint64_t begin, uint64_t count) {
        const optim::FlushDenormals mode;
        optim::UpdateSpan span = SpanOf(begin, count, Form::kHalf);

        for (size_t i = 0; i < 2; ++i)
          span.undo.areas[i] = reinterpret_cast<uint64_t*>(&areas_[2 * worker + i]);
        span.undo.progress = reinterpret_cast<uint64_t*>(&progress_[begin / kPiece].word);
        span.undo.identity = begin + 1;
        loop(part, factors_, span);
      },
      parameters_);
}
void UpdateWays::UpdateF32() {
  Update({parameters_, Form::kF32, true});
}
void UpdateWays::UpdateSmall() {
  Update({parameters_, Form::kSmall, true});
}

void UpdateWays::UpdateByTeam() {
  if (team_ == nullptr) {
    const std::span<std::byte> undo(reinterpret_cast<std::byte*>(team_areas_.data()),
                                    team_areas_.size() * sizeof(optim::UndoArea));
    memserver::WorkerTeamOptions options;
    options.threads = crew_->size();
    options.clock = &clock_;
    for (const int cpu : AllowedCpus()) options.cpus.push_back(static_cast<uint32_t>(cpu));
    options.tuning = tuning_;
    team_ = std::make_unique<memserver::WorkerTeam>(options, undo);
  }

  ++version_;
  uint64_t begin = 0, done = 0;

  while (done < progress_.size()) {
    for (; begin < parameters_ && team_->HasRoom(); begin += kPiece) {
      memserver::Work work;
      work.name.kind = memserver::WorkKind::kUpdate;
      work.runs = std::span(&whole_, 1);
      work.begin = begin;
      work.planes = SpanOf(begin, kPiece, Form::kHalf);
      work.factors = {.all = &factors_};

      work.progress = &progress_[begin / kPiece].word;
      work.progress->Store({version_ - 1, 0, optim::Progress::State::kFinished});
      work.identity = begin + 1;
      work.version = version_;
      team_->Push(work);
    }

    pollfd ready{team_->done_fd(), POLLIN, 0};
    poll(&ready, 1, 1000);
    team_->ArmDoneEvent();
    if (team_->TakeDone(&done_)) done += done_.size();
  }
}

// Like OpenMP's static schedule: one part per thread, one pass after another.
void UpdateWays::RunPass(const std::function<void(uint64_t, uint64_t)>& part) {
  crew_->Run([&](uint32_t index) {
    const auto [begin, end] = crew_->Share(index, parameters_, kPiece);
    part(begin, end - begin);
  });
}

void UpdateWays::DeepSpeedPasses() {
  RunPass([&](uint64_t begin, uint64_t count) {
    loops_.scale(planes_.gradient32 + begin, 1.0F, count);
  });
  DeepSpeedAdam();
  RunPass([&](uint64_t begin, uint64_t count) {
    loops_.narrow(planes_.param16 + begin, planes_.master + begin, count);
  });
}

void UpdateWays::DeepSpeedAdam() {
  const PeerAdam numbers = MakePeerAdam(kBenchLr, kBenchDecay, 1000);
  RunPass([&](uint64_t begin, uint64_t count) {
    float* const planes[] = {planes_.master + begin, planes_.momentum + begin,
                             planes_.variance + begin};
    loops_.adam(numbers, planes, planes_.gradient32 + begin, count);
  });
}

}  // namespace tidepool::bench
