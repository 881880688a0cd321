#include "device/host/host_device.h"

#include "base/check.h"
#include "device/host/host_memory.h"
#include "device/host/inline_stream.h"
#include "device/host/thread_stream.h"

namespace tidepool::device {

HostDevice::HostDevice(const HostDeviceOptions& options)
    : options_(options),
      team_(options.copy_threads > 1 ? std::make_shared<CopyTeam>(
                                           options.clock, options.copy_threads - 1, options.spin_ns)
                                     : nullptr) {
  TP_CHECK(options.clock != nullptr, "a host device is given a clock");
}

CopyTuning HostDevice::Tune(std::span<std::byte> scratch, int64_t budget_ns) {
  CopyTuning tuning =
      TuneCopies(scratch, options_.together ? nullptr : team_.get(), budget_ns, *options_.clock);
  if (options_.together && team_ != nullptr) tuning.threads = team_->helpers() + 1;
  return tuning;
}

Result<std::unique_ptr<Stream>> HostDevice::OpenStream() {
  if (options_.copy_threads == 0)
    return std::unique_ptr<Stream>(std::make_unique<InlineStream>(options_.clock));
  return ThreadStream::Open(options_.clock, options_.spin_ns, team_);
}

Result<std::unique_ptr<Registration>> HostDevice::Register(void*, uint64_t) {
  return std::make_unique<Registration>();
}

Result<std::unique_ptr<Memory>> HostDevice::CreateExportable(uint64_t bytes, UniqueFd* exported) {
  return HostMemory::Create(bytes, exported);
}

Result<std::unique_ptr<Memory>> HostDevice::Import(const UniqueFd& exported, uint64_t bytes) {
  return HostMemory::Map(exported, bytes);
}

}  // namespace tidepool::device
