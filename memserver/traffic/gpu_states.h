// GpuShare: a rank's share of a job's states in GPU memory: its life cycle, and the streams for its
// updates.
//
// The memory is the server's, and the keeper holds its descriptor, so that it outlives both the
// rank and this server (decision 026).
//
//   kNone --(a rank attaches with memory made for it)--> kHolding
//   kHolding --(the keeper has it, the record says so)--> kReady
//   kImporting --(the preparation thread has mapped the former server's memory)--> kReady
//   kReady --(the job ends)--> kDropping --(the keeper has released it)--> kDropped
//
// MakeGpuStates and ImportGpuStates belong to the preparation thread and may block; a share belongs
// to the serve loop. The streams are the share's own, so that trainers' fetches do not queue behind
// updates.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "device/device.h"
#include "memserver/residency/job_states.h"
#include "memserver/traffic/gpu_streams.h"
#include "shm/spec/gpu_states.h"

namespace tidepool::memserver {

// Allocates `bytes` for states on a GPU where Adam runs. Errors: kCudaUnavailable (Adam is missing,
// the memory would not outlive this process, or MPS shares the GPU), kDeviceMemoryShort (bytes
// asked and free), and those of Device::CreateExportable.
Result<GpuStateMemory> MakeGpuStates(Gpu* gpu, uint64_t bytes);
// Maps the memory made by the former server. Errors: those of Device::Import; kCudaUnavailable
// (Adam is missing).
Result<GpuStateMemory> ImportGpuStates(Gpu* gpu, const UniqueFd& exported, uint64_t bytes);

struct GpuShare {
  enum class Life : uint8_t { kNone, kImporting, kHolding, kReady, kDropping, kDropped };
  Life life = Life::kNone;
  uint32_t slot = 0;  // at the keeper
  GpuStreams* gpu = nullptr;
  std::unique_ptr<device::Memory> memory;
  // All or none of them; destroyed before the memory.
  std::array<std::unique_ptr<device::Stream>, shm::kGpuUnitsInFlight> streams;

  // True when updates may run on it; its streams are open.
  bool ready() const { return life == Life::kReady; }
  bool has_streams() const { return streams.front() != nullptr; }
  // The first error of any of its streams, or of the GPU. Requires has_streams().
  Status status() const {
    for (const auto& stream : streams) {
      if (!stream->status().ok()) return stream->status();
    }
    return gpu->status();
  }
  // True when it is no longer used.
  bool failed() const { return has_streams() && !status().ok(); }
};

// Where each chunk of a share lies in its memory.
class GpuPlaces {
 public:
  explicit GpuPlaces(const shm::JobSpec& spec);

  // Offset of the slot for states of `epoch`, from the start of the share's memory.
  uint64_t SlotAt(ChunkId chunk, uint64_t epoch) const {
    return slots_[chunk] + epoch % 2 * sizes_[chunk];
  }
  // Offset of the n-th unit slot.
  uint64_t StagingAt(Rank share, uint32_t n) const {
    return staging_[share] + n * staging_sizes_[share];
  }

 private:
  std::vector<uint64_t> slots_, sizes_;            // by chunk
  std::vector<uint64_t> staging_, staging_sizes_;  // by rank
};

// Reads states of chunks on GPUs for a save or a checkpoint. One thread at a time, which blocks
// (one that reads for a save); made by the serve loop. Requires that the job stays, and that the
// slots of the epoch in which the reader was made are not written: each chunk may be updated at
// most once meanwhile. The serve loop ensures both.
class GpuStatesReader {
 public:
  GpuStatesReader(const JobStates& states, std::span<const GpuShare> shares);

  // Reads fp32 weights from `element` of `chunk` on. Errors: kStatesLost.
  Status Read(ChunkId chunk, uint64_t element, std::span<float> values) {
    return ReadPlane(chunk, 0, element, values);
  }
  // The same for the plane at offset `plane` of a slot, in bytes (shm::GpuSlot).
  Status ReadPlane(ChunkId chunk, uint64_t plane, uint64_t element, std::span<float> values);

 private:
  struct Source {
    device::Device* device = nullptr;
    const std::byte* memory = nullptr;
    std::unique_ptr<device::Stream> stream = nullptr;  // opened by the first read
  };
  const std::shared_ptr<const shm::JobSpec> spec_;
  std::optional<GpuPlaces> places_;  // set by the first read
  const uint64_t epoch_;
  std::vector<Source> sources_;  // by rank
};

}  // namespace tidepool::memserver
