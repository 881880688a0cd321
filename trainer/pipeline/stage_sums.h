// StageSums: accumulates the gradients of a stage over its micro-batches, in memory behind the
// blocks of the rCache, and submits each chunk once.
//
// One thread (the trainer's main thread); host memory. Sums are fp32, added in micro-batch order
// from the gradients that autograd returned: bit for bit what a memory server gets by adding one
// micro-batch after another. A chunk is submitted with the last gradient of its parameters; its
// room belongs to the server until the submission is answered.
// A parameter used by several stages gets a part of each micro-batch's gradient from each: the
// parts wait, and are added in the parameter's dtype, as autograd accumulates at a leaf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/pipeline/stage_plan.h"

namespace tidepool::trainer {

class StageSums {
 public:
  // Both outlive the object.
  StageSums(const ChunkLayout* layout, const StagePlan* plan);
  // Call before the first step. `cache` submits the sums; `sums` is their memory in the cache's
  // tail (StagePlan::tail_bytes).
  void Attach(ParameterCache* cache, std::byte* sums);

  // Call when a training pass of the cache begins; nothing of the previous one may be in flight.
  void BeginStep();
  // The gradients that follow are from the backward of this stage and micro-batch.
  void BeginBackward(uint32_t stage, uint32_t micro_batch);
  // Takes one parameter's gradient; may wait for a room. Errors: the cache's latched error.
  Status Take(ParameterId parameter, const at::Tensor& gradient);
  // Takes another rank's part of a gradient. Call it before this rank's last part.
  void TakePart(ParameterId parameter, uint32_t micro_batch, at::Tensor part);
  // Call when all micro-batches of the stage are through: submits chunks that no last gradient has
  // completed. Errors: as Take.
  Status EndStage(uint32_t stage);

  // The most bytes of gradient parts that were waiting at one time in a step.
  uint64_t parts_bytes() const { return parts_bytes_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {            // a chunk in this step
    uint32_t room = kNone;  // of a non-resident chunk
    bool open = false, submitted = false;
    uint32_t last_ones = 0;  // gradients of the last micro-batch received so far
  };
  Status Open(ChunkId chunk);
  Result<uint32_t> TakeRoom();
  std::byte* PlaceOf(ChunkId chunk) const;
  uint64_t BytesOfSum(ChunkId chunk) const;
  Status Submit(ChunkId chunk);

  const ChunkLayout& layout_;
  const StagePlan& plan_;
  ParameterCache* cache_ = nullptr;
  std::byte* sums_ = nullptr;
  std::vector<Entry> entries_;  // by ChunkId
  std::vector<uint32_t> free_;  // free rooms
  // Rooms whose sums are being submitted, oldest first.
  std::deque<std::pair<OpId, uint32_t>> leaving_;
  std::map<std::pair<ParameterId, uint32_t>, at::Tensor> parts_;  // keyed by parameter, micro-batch
  uint64_t parts_now_ = 0, parts_bytes_ = 0;
  uint32_t stage_ = 0, micro_batch_ = 0;
};

}  // namespace tidepool::trainer
