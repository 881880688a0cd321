// PacedDevice: a host device in the place of a GPU, whose streams do so many bytes at a look, and
// which fails when the test says so; and GpuWorld, a serve loop with two of them.
//
// One thread.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/host/host_device.h"
#include "memserver/traffic/gpu.h"
#include "tests/fakes/real_clock.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {

// A host device in the place of a GPU: its streams do so many bytes at a look, and it fails when
// the test says so.
class PacedDevice final : public device::Device {
 public:
  struct Mood {
    uint64_t pace = UINT64_MAX;
    Status failure;
    Status no_memory;
    std::vector<std::span<const std::byte>> memory;  // that was made
    uint64_t bytes_inside = 0;                       // copied from there to there
    std::set<const void*> computing;                 // streams that were given kernels
    bool IsInside(const void* at) const {
      const auto* byte = static_cast<const std::byte*>(at);
      return std::any_of(memory.begin(), memory.end(), [byte](const auto& one) {
        return byte >= one.data() && byte < one.data() + one.size();
      });
    }
  };
  explicit PacedDevice(Mood* mood) : mood_(mood) {}
  std::string name() const override { return "paced"; }
  Result<std::unique_ptr<device::Registration>> Register(void* begin, uint64_t bytes) override {
    return host_.Register(begin, bytes);
  }
  Result<std::unique_ptr<device::Stream>> OpenStream() override {
    auto stream = host_.OpenStream();
    return std::unique_ptr<device::Stream>(
        std::make_unique<PacedStream>(mood_, std::move(stream).value()));
  }
  Status Prepare(const device::Kernel& kernel) override { return host_.Prepare(kernel); }
  Result<std::unique_ptr<device::Memory>> CreateExportable(uint64_t bytes,
                                                           UniqueFd* exported) override {
    if (!mood_->no_memory.ok()) return mood_->no_memory;
    auto made = host_.CreateExportable(bytes, exported);
    if (made.ok()) mood_->memory.push_back({(*made)->data(), bytes});
    return made;
  }
  Result<std::unique_ptr<device::Memory>> Import(const UniqueFd& exported,
                                                 uint64_t bytes) override {
    return host_.Import(exported, bytes);
  }

 private:
  class PacedStream final : public device::Stream {
   public:
    PacedStream(Mood* mood, std::unique_ptr<device::Stream> to) : mood_(mood), to_(std::move(to)) {}
    void Copy(void* dst, const void* src, uint64_t bytes) override {
      if (mood_->IsInside(dst) && mood_->IsInside(src)) mood_->bytes_inside += bytes;
      to_->Copy(dst, src, bytes);
    }
    void Zero(void* dst, uint64_t bytes) override { to_->Zero(dst, bytes); }
    void Launch(const device::Kernel& kernel, const void* arguments, uint64_t items) override {
      mood_->computing.insert(this);
      to_->Launch(kernel, arguments, items);
    }
    void WaitFlag(const device::Flag* flag, uint64_t value) override { to_->WaitFlag(flag, value); }
    void WriteFlag(device::Flag* flag, uint64_t value) override { to_->WriteFlag(flag, value); }
    Marker Record() override { return to_->Record(); }
    bool Passed(Marker marker) override { return to_->Passed(marker); }
    void WaitMarker(Stream* other, Marker marker) override {
      to_->WaitMarker(static_cast<PacedStream*>(other)->to_.get(), marker);
    }
    Status status() const override { return mood_->failure; }
    bool Progress(uint64_t bytes_max) override {
      return mood_->failure.ok() && to_->Progress(std::min(bytes_max, mood_->pace));
    }
    void Synchronize(Marker marker) override { to_->Synchronize(marker); }

   private:
    Mood* const mood_;
    const std::unique_ptr<device::Stream> to_;
  };
  Mood* const mood_;
  device::HostDevice host_{device::HostDeviceOptions{.clock = RealClock()}};
};

// A world with two such GPUs, which outlive its servers.
class GpuWorld {
 public:
  explicit GpuWorld(WorldOptions options = WithLease()) : world_(std::move(options)) {
    for (uint8_t number = 1; number <= 2; ++number) {
      OpenedGpu opened;
      opened.device = std::make_unique<PacedDevice>(&moods_[number - 1]);
      opened.free_bytes = [] { return Result<uint64_t>(3 * kMiB); };
      device::Gpu facts;
      facts.uuid = {number};
      gpus_.push_back(std::make_unique<Gpu>(facts, std::move(opened), world_.pool().mapped()));
    }
    world_.BringFromEach({gpus_[0].get(), gpus_[1].get()});
  }
  ServeWorld& operator*() { return world_; }
  ServeWorld* operator->() { return &world_; }
  PacedDevice::Mood& mood(size_t gpu) { return moods_[gpu]; }
  void Pace(uint64_t bytes) {
    for (PacedDevice::Mood& mood : moods_) mood.pace = bytes;
  }
  Gpu* gpu(size_t number) { return gpus_[number].get(); }

 private:
  std::array<PacedDevice::Mood, 2> moods_;
  ServeWorld world_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
};

}  // namespace tidepool::memserver
