#include "trainer/pipeline/stage_sums.h"

#include <algorithm>
#include <cstring>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

at::ScalarType TypeOf(DType dtype) {
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kBF16 ? at::kBFloat16 : at::kHalf;
}

}  // namespace

StageSums::StageSums(const ChunkLayout* layout, const StagePlan* plan)
    : layout_(*layout), plan_(*plan), entries_(layout->chunks.size()) {}

void StageSums::Attach(ParameterCache* cache, std::byte* sums) {
  cache_ = cache;
  sums_ = sums;
}

void StageSums::BeginStep() {
  std::fill(entries_.begin(), entries_.end(), Entry());
  free_.clear();
  for (uint32_t room = plan_.rooms; room-- > 0;) free_.push_back(room);
  leaving_.clear();
  parts_.clear();
  parts_now_ = 0;
}

void StageSums::BeginBackward(uint32_t stage, uint32_t micro_batch) {
  stage_ = stage;
  micro_batch_ = micro_batch;
}

uint64_t StageSums::BytesOfSum(ChunkId chunk) const {
  return layout_.chunks[chunk].elements * BytesOf(plan_.SumType(layout_, chunk));
}

std::byte* StageSums::PlaceOf(ChunkId chunk) const {
  if (layout_.chunks[chunk].resident) return sums_ + plan_.sum_at[chunk];
  return sums_ + plan_.rooms_at + entries_[chunk].room * plan_.room_bytes;
}

Result<uint32_t> StageSums::TakeRoom() {
  if (free_.empty()) {
    TP_CHECK(!leaving_.empty(), "there are rooms for all sums that are open at a time");
    TP_RETURN_IF_ERROR(cache_->AwaitSum(leaving_.front().first));
    free_.push_back(leaving_.front().second);
    leaving_.pop_front();
  }
  const uint32_t room = free_.back();
  free_.pop_back();
  return room;
}

// Zeroes gaps and parameters without a gradient.
Status StageSums::Open(ChunkId chunk) {
  Entry& entry = entries_[chunk];
  if (entry.open) return {};
  if (!layout_.chunks[chunk].resident) {
    TP_ASSIGN_OR_RETURN(entry.room, TakeRoom());
  }
  entry.open = true;
  std::memset(PlaceOf(chunk), 0, BytesOfSum(chunk));
  return {};
}

Status StageSums::Submit(ChunkId chunk) {
  Entry& entry = entries_[chunk];
  TP_ASSIGN_OR_RETURN(const OpId op, cache_->SubmitSum(chunk, PlaceOf(chunk)));
  entry.submitted = true;
  if (!layout_.chunks[chunk].resident) leaving_.emplace_back(op, entry.room);
  return {};
}

Status StageSums::Take(ParameterId parameter, const at::Tensor& gradient) {
  const at::NoGradGuard no_gradients;
  at::Tensor whole = gradient;
  const StageSpan& span = plan_.of_parameter[parameter];
  const auto part = parts_.find({parameter, micro_batch_});
  if (part != parts_.end()) {
    whole = part->second.add(gradient);
    parts_now_ -= part->second.nbytes();
    parts_.erase(part);
  }

  if (stage_ > span.first) {
    TakePart(parameter, micro_batch_, std::move(whole));
    return {};
  }

  const ParameterPlace& place = layout_.parameters[parameter];
  TP_RETURN_IF_ERROR(Open(place.chunk));
  const DType type = plan_.SumType(layout_, place.chunk);
  at::Tensor sum = at::from_blob(PlaceOf(place.chunk) + place.element_begin * BytesOf(type),
                                 whole.sizes(), at::TensorOptions(TypeOf(type)));
  micro_batch_ == 0 ? sum.copy_(whole) : sum.add_(whole);

  Entry& entry = entries_[place.chunk];
  const bool last = micro_batch_ + 1 == plan_.micro_batches;
  if (last && ++entry.last_ones == layout_.chunks[place.chunk].parameter_count)
    return Submit(place.chunk);
  return {};
}

void StageSums::TakePart(ParameterId parameter, uint32_t micro_batch, at::Tensor part) {
  parts_now_ += part.nbytes();
  parts_bytes_ = std::max(parts_bytes_, parts_now_);
  parts_.emplace(std::pair(parameter, micro_batch), std::move(part));
}

Status StageSums::EndStage(uint32_t stage) {
  for (const auto& [of, part] : parts_) {
    TP_CHECK(plan_.of_parameter[of.first].first != stage,
             "each stage that uses a parameter brings a part of its gradient");
  }
  for (ChunkId chunk = 0; chunk < layout_.chunks.size(); ++chunk) {
    if (plan_.of_chunk[chunk].first != stage || entries_[chunk].submitted) continue;
    TP_RETURN_IF_ERROR(Open(chunk));
    TP_RETURN_IF_ERROR(Submit(chunk));
  }
  return {};
}

}  // namespace tidepool::trainer
