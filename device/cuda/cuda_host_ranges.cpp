#include "device/cuda/cuda_host_ranges.h"

#include "base/units.h"

namespace tidepool::device {

CudaHostRanges& CudaHostRanges::OfProcess() {
  static CudaHostRanges ranges;
  return ranges;
}

Status CudaHostRanges::Add(const std::shared_ptr<CudaContext>& context, void* begin,
                           uint64_t bytes) {
  const std::lock_guard changing(changes_);
  const auto key = reinterpret_cast<uintptr_t>(begin);

  {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find(key);
    if (found != pieces_.end() && found->second.bytes == bytes) {
      ++found->second.users;
      return {};
    }
  }

  const CudaDriver& cuda = context->cuda();
  TP_RETURN_IF_ERROR(context->MakeCurrent());
  const std::string doing = "registering " + FormatBytes(bytes) + " of host memory";
  TP_RETURN_IF_ERROR(cuda.Try(doing, cuda.host_register, begin, bytes,
                              kCudaRegisterPortable | kCudaRegisterDeviceMap));
  CudaAddress address = 0;
  if (Status status = cuda.Try(doing, cuda.host_address, &address, begin, 0u); !status.ok()) {
    (void)cuda.host_unregister(begin);
    return status;
  }

  const std::lock_guard lock(mutex_);
  pieces_[key] = {.bytes = bytes, .address = address, .users = 1, .context = context};
  return {};
}

void CudaHostRanges::Remove(void* begin) {
  const std::lock_guard changing(changes_);
  std::shared_ptr<CudaContext> context;

  {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find(reinterpret_cast<uintptr_t>(begin));
    if (found == pieces_.end() || --found->second.users > 0) return;
    context = std::move(found->second.context);
    pieces_.erase(found);
  }

  (void)context->MakeCurrent();
  (void)context->cuda().host_unregister(begin);
}

std::optional<CudaHostRanges::Place> CudaHostRanges::Find(const void* at) const {
  const auto address = reinterpret_cast<uintptr_t>(at);
  const std::lock_guard lock(mutex_);
  auto piece = pieces_.upper_bound(address);
  if (piece == pieces_.begin()) return std::nullopt;
  --piece;
  const uint64_t before = address - piece->first;
  if (before >= piece->second.bytes) return std::nullopt;
  return Place{piece->second.address + before, piece->second.bytes - before};
}

}  // namespace tidepool::device
