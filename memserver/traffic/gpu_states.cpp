#include "memserver/traffic/gpu_states.h"

#include <string>
#include <utility>

#include "base/planted.h"
#include "base/units.h"
#include "optim/adam_stream.h"

namespace tidepool::memserver {
namespace {

const char* const kToTheHost =
    "start the job with its states on the host (trainer run --gpu-states off)";

}  // namespace

Result<GpuStateMemory> MakeGpuStates(Gpu* gpu, uint64_t bytes) {
  const std::string name = gpu->device().name();
  const Status adam = optim::PrepareAdam(&gpu->device());
  if (!adam.ok())
    return Status(adam.id(), "states cannot lie on " + name + ": Adam does not run there")
        .Why(adam.what())
        .Fix(kToTheHost);

  if (gpu->fell_back()) {
    return Status(ErrorId::kCudaUnavailable,
                  "states cannot lie on " + name + ": its memory would end with memserver")
        .Why("it leaves a process as a handle (ipc), which its maker must outlive")
        .Fix(kToTheHost);
  }

  if (gpu->facts().mps && !TP_PLANTED("traffic.states_under_mps")) {
    return Status(
               ErrorId::kCudaUnavailable,
               "states cannot lie on " + name + ": it is shared by the Multi-Process Service (MPS)")
        .Why(
            "a fault of any client of MPS ends the contexts of all, and with memserver's the "
            "states of every job there")
        .Fix(std::string(kToTheHost) +
             ", or run memserver without MPS (no CUDA_MPS_PIPE_DIRECTORY that leads to a control "
             "daemon)");
  }

  GpuStateMemory made{.gpu = gpu};
  auto memory = gpu->device().CreateExportable(bytes, &made.exported);
  if (!memory.ok()) {
    const uint64_t free = gpu->FreeNow();
    const std::string left = free == 0 ? "" : "; " + FormatBytes(free) + " of its memory are free";
    return Status(memory.status().id(),
                  "states of " + FormatBytes(bytes) + " are to lie on " + name + left)
        .Why(memory.status().what())
        .Fix(
            "give fewer chunks to the GPUs (trainer run --gpu-states), or more memory: a smaller "
            "rCache, fewer other programs");
  }

  made.memory = std::move(memory).value();
  return made;
}

Result<GpuStateMemory> ImportGpuStates(Gpu* gpu, const UniqueFd& exported, uint64_t bytes) {
  TP_RETURN_IF_ERROR(optim::PrepareAdam(&gpu->device()));
  GpuStateMemory found{.gpu = gpu};
  TP_ASSIGN_OR_RETURN(found.memory, gpu->device().Import(exported, bytes));
  return found;
}

GpuPlaces::GpuPlaces(const shm::JobSpec& spec)
    : slots_(spec.states_on_gpu), sizes_(spec.states_on_gpu) {
  for (Rank rank = 0; rank < spec.world; ++rank) {
    uint64_t end = 0;
    for (uint64_t id = rank; id < spec.states_on_gpu; id += spec.world) {
      slots_[id] = end;
      sizes_[id] = shm::GpuSlotOf(spec, static_cast<ChunkId>(id)).bytes;
      end += 2 * sizes_[id];
    }

    staging_.push_back(end);
    staging_sizes_.push_back(shm::GpuStagingOf(spec, rank).bytes);
  }
}

GpuStatesReader::GpuStatesReader(const JobStates& states, std::span<const GpuShare> shares)
    : spec_(states.shared_spec()), epoch_(states.epoch()) {
  for (const GpuShare& share : shares) {
    sources_.push_back({share.gpu != nullptr ? &share.gpu->gpu().device() : nullptr,
                        share.memory != nullptr ? share.memory->data() : nullptr});
  }
}

Status GpuStatesReader::ReadPlane(ChunkId chunk, uint64_t plane, uint64_t element,
                                  std::span<float> values) {
  Source& source = sources_[shm::GpuShareOf(*spec_, chunk)];
  const Status lost(ErrorId::kStatesLost, "the weights of chunk " + std::to_string(chunk) +
                                              " cannot be read from its GPU");
  if (source.memory == nullptr) return lost;
  if (source.stream == nullptr) {
    auto stream = source.device->OpenStream();
    if (!stream.ok()) return Status(lost).Why(stream.status().what());
    source.stream = std::move(stream).value();
  }

  if (!places_) places_.emplace(*spec_);
  const std::byte* from = source.memory + places_->SlotAt(chunk, epoch_) + plane;
  source.stream->Copy(values.data(), from + element * sizeof(float), values.size_bytes());
  source.stream->Synchronize(source.stream->Record());
  const Status after = source.stream->status();
  return after.ok() ? Status() : Status(lost).Why(after.what());
}

}  // namespace tidepool::memserver
