// StageSums: adds up the gradients of a stage over its micro-batches, in memory behind the blocks
// of the rCache, and hands each chunk in once.
//
// One thread (the trainer's main thread); host memory. Sums are fp32, in the order of
// micro-batches, each gradient as autograd gave it: the bits of a memory server that adds
// micro-batch after micro-batch. A chunk is handed in with the last gradient of its parameters; its
// room is the server's until it has answered.
// A parameter of several stages gets a part of each micro-batch's gradient from each: the parts
// wait, and are added in the parameter's dtype, as autograd adds what meets at a leaf.
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
  // Before the first step: who hands in, and the memory of all sums (StagePlan::tail_bytes), in
  // that cache's tail.
  void Attach(ParameterCache* cache, std::byte* sums);

  // A training pass of the cache begins; nothing of the one before is in flight.
  void BeginStep();
  // Gradients come from the backward of this stage and micro-batch from here on.
  void BeginBackward(uint32_t stage, uint32_t micro_batch);
  // Takes one parameter's gradient; may wait for a room. Errors: as the cache latched.
  Status Take(ParameterId parameter, const at::Tensor& gradient);
  // Takes the part of a gradient that another rank's stage brings, before the last part comes here.
  void TakePart(ParameterId parameter, uint32_t micro_batch, at::Tensor part);
  // All micro-batches of the stage are through: hands in what no last gradient has completed.
  // Errors: likewise.
  Status EndStage(uint32_t stage);

  // The most bytes of parts that have waited for others in a step.
  uint64_t parts_bytes() const { return parts_bytes_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {            // of a chunk, in this step
    uint32_t room = kNone;  // of a chunk that is not resident
    bool open = false, submitted = false;
    uint32_t last_ones = 0;  // gradients of the last micro-batch that have come
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
  std::vector<uint32_t> free_;  // rooms
  // Rooms whose sums are on their way, the first one first.
  std::deque<std::pair<OpId, uint32_t>> leaving_;
  std::map<std::pair<ParameterId, uint32_t>, at::Tensor> parts_;  // by micro-batch
  uint64_t parts_now_ = 0, parts_bytes_ = 0;
  uint32_t stage_ = 0, micro_batch_ = 0;
};

}  // namespace tidepool::trainer
