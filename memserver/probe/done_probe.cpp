#include "memserver/probe/done_probe.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "memserver/probe/gpu_load.h"

namespace tidepool::memserver {
namespace {

constexpr size_t kProbeRounds = 15;
constexpr uint64_t kProbeCopyBytes = 256 * kKiB;
constexpr uint64_t kProbeFlagBytes = 4096;
constexpr int64_t kProbeLateNs = 500 * kNsPerMs;  // longer than any time slice: an error
constexpr int64_t kProbeSlowNs = 200'000;         // beyond twice the time of a plain copy

DoneChoice NotMeasured(const Status& why) {
  return {DoneBy::kLoop, "not measured" + (why.ok() ? std::string() : ": " + why.what())};
}

int64_t Median(std::span<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Memory at both ends, and a stream between them.
class Probe {
 public:
  static Result<std::unique_ptr<Probe>> Open(device::Device* device, const Clock* clock) {
    auto probe = std::make_unique<Probe>();
    probe->clock_ = clock;
    probe->host_.resize(kProbeCopyBytes + kProbeFlagBytes + kPage);
    auto* const begin = probe->host_.data();
    probe->page_ = begin + (kPage - reinterpret_cast<uintptr_t>(begin) % kPage) % kPage;

    TP_ASSIGN_OR_RETURN(probe->registered_,
                        device->Register(probe->page_, kProbeCopyBytes + kProbeFlagBytes));
    UniqueFd exported;
    TP_ASSIGN_OR_RETURN(probe->memory_, device->CreateExportable(kProbeCopyBytes, &exported));
    TP_ASSIGN_OR_RETURN(probe->stream_, device->OpenStream());
    return probe;
  }
  ~Probe() {
    if (stream_ != nullptr) stream_->Synchronize(stream_->Record());
  }

  // Time until a copy has ended, as the loop sees it: by its marker, or by the word that its stream
  // writes. Negative: not in time.
  int64_t Time(bool writes) {
    device::Flag& word = *reinterpret_cast<device::Flag*>(page_ + kProbeCopyBytes);
    const uint64_t value = ++last_;
    const int64_t begin = clock_->NowNs();
    stream_->Copy(memory_->data(), page_, kProbeCopyBytes);
    if (writes) stream_->WriteFlag(&word, value);
    const device::Stream::Marker marker = stream_->Record();

    for (;;) {
      const bool there =
          writes ? word.load(std::memory_order_acquire) == value : stream_->Passed(marker);
      const int64_t took = clock_->NowNs() - begin;
      if (there) return took;
      if (took > kProbeLateNs || !stream_->status().ok()) return -1;
    }
  }
  Status status() const { return stream_->status(); }

 private:
  static constexpr uint64_t kPage = 4096;
  const Clock* clock_ = nullptr;
  std::vector<std::byte> host_;
  std::byte* page_ = nullptr;
  std::unique_ptr<device::Registration> registered_;
  std::unique_ptr<device::Memory> memory_;
  std::unique_ptr<device::Stream> stream_;
  uint64_t last_ = 0;
};

}  // namespace

DoneChoice ChooseDone(std::span<int64_t> alone, std::span<int64_t> written) {
  const int64_t copy_ns = Median(alone), write_ns = Median(written);
  const bool slow = write_ns > 2 * copy_ns + kProbeSlowNs;
  const std::string times =
      FormatNs(write_ns) + " with a stream's word behind it, " + FormatNs(copy_ns) + " without";
  return {slow ? DoneBy::kLoop : DoneBy::kStream,
          "a copy beside another process's kernels took " + times};
}

DoneChoice ProbeDone(device::Device* device, const device::Gpu& gpu, Clock* clock) {
  auto opened = Probe::Open(device, clock);
  if (!opened.ok()) return NotMeasured(opened.status());
  Probe& probe = **opened;
  if (probe.Time(false) < 0 || probe.Time(true) < 0) return NotMeasured(probe.status());
  auto load = GpuLoad::Start(gpu.uuid);
  if (!load.ok()) return NotMeasured(load.status());

  std::vector<int64_t> alone, written;
  for (size_t round = 0; round < kProbeRounds; ++round) {
    clock->SleepNs(kLoadKernelNs);  // so that the other process gets its time slices in between
    alone.push_back(probe.Time(false));
    written.push_back(probe.Time(true));
    if (written.back() < 0)
      return {DoneBy::kLoop, "a stream's word did not come while another process's kernels ran"};
    if (alone.back() < 0)
      return NotMeasured(
          Status(ErrorId::kCudaFailed, "a copy did not end while another process's kernels ran"));
  }

  return ChooseDone(alone, written);
}

}  // namespace tidepool::memserver
