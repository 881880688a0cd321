#include "memserver/update/tuning.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "optim/kernels/float_mode.h"
#include "optim/update_rule.h"

namespace tidepool::memserver {
namespace {

constexpr std::array<optim::Tuning, 5> kCandidates{
    {{optim::kPrefetchElements}, {384}, {768}, {1024}, {2048}}};
constexpr uint64_t kSampleElements = 64 * 1024;
// fp32 master, momentum and variance, bf16 gradient and copy: the most common form.
constexpr uint64_t kElementBytes = 16;
constexpr uint32_t kRoundsMin = 3;
// A candidate replaces the default only if it is clearly better: equal candidates would vary from
// start to start.
constexpr double kGainMin = 1.02;

using Samples = std::array<std::vector<int64_t>, kCandidates.size()>;

// One worker's share of the measurement: candidates take turns, each time on bytes that no earlier
// turn used.
class Share {
 public:
  Share(const TuningOptions& options, std::span<std::byte> scratch, const Clock& clock)
      : kernels_(optim::SelectKernels(options.isa)),
        scratch_(scratch),
        clock_(clock),
        end_ns_(clock.NowNs() + options.limit_ns) {}

  void Run() {
    const optim::FlushDenormals mode;
    const uint64_t places = scratch_.size() / (kSampleElements * kElementBytes);
    for (uint64_t round = 0, place = 0; round == 0 || clock_.NowNs() < end_ns_; ++round) {
      for (size_t i = 0; i < kCandidates.size(); ++i, place = (place + 1) % places)
        samples_[i].push_back(Measure(kCandidates[i], place));
    }
  }
  const Samples& samples() const { return samples_; }

 private:
  int64_t Measure(const optim::Tuning& tuning, uint64_t place) {
    const uint64_t plane = kSampleElements * sizeof(float);
    std::byte* const at = scratch_.data() + place * kSampleElements * kElementBytes;
    optim::UpdateSpan span{
        at, at + plane, at + 2 * plane, at + 3 * plane, DType::kBF16, at + 3 * plane + plane / 2};
    span.count = kSampleElements;
    const optim::GroupRun run{0, kSampleElements, factors_};
    optim::TileUpdate update(kernels_, std::span<optim::UndoArea, 2>(areas_.get(), 2), tuning);
    const int64_t begin = clock_.NowNs();
    update.Run({1, ++version_, span, {&run, 1}, &progress_});
    return clock_.NowNs() - begin;
  }

  const optim::Kernels& kernels_;
  const std::span<std::byte> scratch_;
  const Clock& clock_;
  const int64_t end_ns_;
  const optim::StepFactors factors_ = optim::MakeFactors({}, {}, {});
  const std::unique_ptr<optim::UndoArea[]> areas_ = std::make_unique<optim::UndoArea[]>(2);
  optim::ProgressWord progress_;
  uint64_t version_ = 0;
  Samples samples_;
};

int64_t MedianOf(std::vector<int64_t> samples) {
  const auto middle = samples.begin() + static_cast<ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

TuningResult Judge(std::span<const std::unique_ptr<Share>> shares) {
  TuningResult result;
  std::array<int64_t, kCandidates.size()> sums{};
  result.rounds = UINT32_MAX;
  for (const auto& share : shares) {
    for (size_t i = 0; i < kCandidates.size(); ++i) sums[i] += MedianOf(share->samples()[i]);
    result.rounds = std::min(result.rounds, static_cast<uint32_t>(share->samples().front().size()));
  }
  if (result.rounds < kRoundsMin) return result;

  const auto best = static_cast<size_t>(std::min_element(sums.begin(), sums.end()) - sums.begin());
  const double gain =
      static_cast<double>(sums[0]) / static_cast<double>(std::max<int64_t>(sums[best], 1));
  if (gain < kGainMin) return result;
  result.gain = gain;
  result.tuning = kCandidates[best];
  return result;
}

}  // namespace

TuningResult MeasureTuning(const TuningOptions& options, std::span<std::byte> scratch,
                           const Clock& clock) {
  const int64_t begin = clock.NowNs();
  const uint64_t own = scratch.size() / options.workers / kPageBytes * kPageBytes;
  if (own < kTuningScratchMin) return {};

  std::vector<std::unique_ptr<Share>> shares;
  for (uint32_t i = 0; i < options.workers; ++i)
    shares.push_back(std::make_unique<Share>(options, scratch.subspan(i * own, own), clock));
  std::vector<std::thread> helpers;
  for (uint32_t i = 1; i < options.workers; ++i)
    helpers.emplace_back([&shares, i] { shares[i]->Run(); });
  shares.front()->Run();
  for (std::thread& helper : helpers) helper.join();

  TuningResult result = Judge(shares);
  result.took_ns = clock.NowNs() - begin;
  return result;
}

Result<std::optional<optim::Tuning>> TuningFromText(const std::string& text) {
  if (text == "auto") return std::optional<optim::Tuning>();
  optim::Tuning tuning;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, tuning.prefetch_elements);
  if (rest == end && error == std::errc() && tuning.prefetch_elements <= 65536)
    return std::optional<optim::Tuning>(tuning);
  return Status(ErrorId::kConfigBadValue, "'" + text + "' is not a value for this setting")
      .Why("accepted are auto, and a number of elements from 0 to 65536, such as 512");
}

}  // namespace tidepool::memserver
