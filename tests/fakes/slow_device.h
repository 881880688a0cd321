// SlowDevice: a device whose copies move only when the test says so, a few bytes at a time: what a
// DMA engine looks like to the loop.
//
// One thread. It opens streams only; memory comes from a HostDevice. Outlives its streams.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/host/copy_team.h"
#include "device/device.h"
#include "memserver/traffic/gpu.h"

namespace tidepool::memserver {

class SlowDevice final : public device::Device {
 public:
  std::string name() const override { return "slow"; }
  Result<std::unique_ptr<device::Stream>> OpenStream() override;
  Status Prepare(const device::Kernel&) override { return {}; }
  Result<std::unique_ptr<device::Registration>> Register(void* begin, uint64_t bytes) override;
  Result<std::unique_ptr<device::Memory>> CreateExportable(uint64_t bytes,
                                                           UniqueFd* exported) override;
  Result<std::unique_ptr<device::Memory>> Import(const UniqueFd& exported, uint64_t bytes) override;

  // Streams that were opened and are not closed.
  uint32_t open() const { return static_cast<uint32_t>(streams_.size()); }
  // Streams that have something to do.
  uint32_t busy() const;
  // From now on nothing is done, and each stream says so. (Its copies stay unfinished.)
  void Fail() { failure_ = Status(ErrorId::kCudaFailed, "the slow device failed"); }
  // Whether host memory can be registered.
  void SetRegisters(bool registers) { registers_ = registers; }
  // From now on copies are made by this team, which outlives them; null: by the caller alone.
  void SetTeam(device::CopyTeam* team) { team_ = team; }
  // Moves up to `bytes` on the `index`-th busy stream.
  void Move(uint32_t index, uint64_t bytes);

 private:
  class SlowStream;
  std::vector<SlowStream*> streams_;  // open ones, in order of opening
  Status failure_;
  bool registers_ = true;
  device::CopyTeam* team_ = nullptr;
};

// A GPU in front of a device that outlives it, behind a root complex of this name, or of its own.
std::unique_ptr<Gpu> GpuOf(SlowDevice* slow, std::span<const std::span<std::byte>> pool,
                           const std::string& root_complex = "", DoneBy done = DoneBy::kStream);

}  // namespace tidepool::memserver
