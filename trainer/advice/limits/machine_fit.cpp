#include "trainer/advice/limits/machine_fit.h"

#include "base/units.h"

namespace tidepool::trainer {
namespace {

std::string No(const std::string& because, const std::string& what_would) {
  return "fits      this machine: no: " + because + "\n" + std::string(10, ' ') +
         "would fit: " + what_would + "\n";
}

std::string NoGpu() {
  return No("no GPU is here", "without --device, on the host's CPUs, as far as its memory goes");
}

// Beside what is in use there now, memserver's part included.
uint64_t MoreOfGpu(const GpuEstimate& gpu) {
  return gpu.bytes() - gpu.server.bytes;
}

std::string GpuTooSmall(const GpuEstimate& gpu) {
  return No(FormatBytes(MoreOfGpu(gpu)) + " of a GPU are needed beside activations, and " +
                FormatBytes(gpu.now->free) + " of " + FormatBytes(gpu.now->total) + " are free",
            "what --rcache auto --device-memory " + std::to_string(gpu.now->free / gpu.sharers) +
                " chooses, or fewer ranks on each GPU");
}

std::string BatchTooLarge(const RunLimits& limits, uint64_t batch) {
  const std::string because = "the activations of --batch " + std::to_string(batch) +
                              " are too large for " + FormatBytes(limits.room_bytes) + " of " +
                              limits.room_name;
  return No(because, limits.batch > 0 ? "--batch " + std::to_string(limits.batch)
                                      : "a smaller --context, or --checkpoint-activations");
}

}  // namespace

std::string DescribeVerdict(const HostFit& fit, const GpuEstimate* gpu, const RunLimits* limits,
                            uint64_t batch) {
  if (!fit.fits) return DescribeFit(fit);
  if (gpu != nullptr && !gpu->now) return NoGpu();
  if (gpu != nullptr && MoreOfGpu(*gpu) > gpu->now->free) return GpuTooSmall(*gpu);
  if (limits != nullptr && limits->batch < batch) return BatchTooLarge(*limits, batch);
  return DescribeFit(fit);
}

}  // namespace tidepool::trainer
