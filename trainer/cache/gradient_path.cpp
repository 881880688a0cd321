// The gradient side of the rCache: from a parameter's gradient to the chunk's submission.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "trainer/cache/parameter_cache.h"

namespace tidepool::trainer {

std::byte* ParameterCache::AddressOf(ParameterId parameter) const {
  const ParameterPlace& place = layout_.parameters[parameter];
  return table_.place(place.chunk) + place.element_begin * BytesOf(layout_.dtype);
}

void ParameterCache::Zero(std::byte* at, uint64_t bytes) {
  if (bytes == 0) return;
  setup_.streams.compute != nullptr ? setup_.streams.compute->Zero(at, bytes)
                                    : static_cast<void>(std::memset(at, 0, bytes));
}

Status ParameterCache::SecondGradient(ParameterId parameter) {
  return Latch(Status(ErrorId::kTensorStateIllegal,
                      "parameter " + layout_.parameters[parameter].name +
                          " got a second gradient in one backward, over its first one")
                   .Where("chunk " + std::to_string(layout_.parameters[parameter].chunk)));
}

Status ParameterCache::FrozenGradient(ParameterId parameter) {
  return Latch(Status(ErrorId::kTensorStateIllegal,
                      "parameter " + layout_.parameters[parameter].name +
                          " got a gradient, but it is frozen and has no place for one")
                   .Where("chunk " + std::to_string(layout_.parameters[parameter].chunk)));
}

Status ParameterCache::GradientRead(ParameterId parameter) {
  return Latch(Status(ErrorId::kTensorStateIllegal,
                      "an operator reads parameter " + layout_.parameters[parameter].name +
                          " after its gradient has come, which lies in its place")
                   .Where("chunk " + std::to_string(layout_.parameters[parameter].chunk)));
}

// Found while recording: gradients of this chunk are complete, and its parameters no longer needed,
// only at the end of backward.
void ParameterCache::KeepApart(ChunkId chunk) {
  if (std::exchange(entries_[chunk].multi_use, true)) return;
  follower_.WithdrawGradients(chunk);
}

Result<std::byte*> ParameterCache::GradientPlace(ParameterId parameter) {
  static constexpr std::byte* kSeparate = nullptr;
  if (!status_.ok()) return status_;
  if (!in_pass_ || !training_) return NotInPass("GradientPlace");
  const ChunkId chunk = layout_.parameters[parameter].chunk;
  Entry& entry = entries_[chunk];
  if (layout_.chunks[chunk].frozen) return FrozenGradient(parameter);
  if (has_gradient_[parameter]) {
    if (InPlace(chunk)) return SecondGradient(parameter);
    KeepApart(chunk);
    return kSeparate;
  }
  has_gradient_[parameter] = true;
  ++entry.grads;
  if (entry.multi_use) return kSeparate;
  if (entry.grads == 1) TP_RETURN_IF_ERROR(Enter(MomentKind::kGradient, chunk));
  if (!separate_pass_ && entry.grads == 1) TP_RETURN_IF_ERROR(Demand(chunk));
  if (separate_pass_) {
    // Recorded as it will happen from the next step on, though this step's gradients stay with the
    // caller.
    if (entry.grads == layout_.chunks[chunk].parameter_count)
      TP_RETURN_IF_ERROR(Enter(MomentKind::kSubmit, chunk));
    return kSeparate;
  }
  if (entry.grads == 1) {
    PrefetchAhead(follower_.position());
    TP_RETURN_IF_ERROR(HandOut(chunk));
    entry.gradient = true;
  }
  return AddressOf(parameter);
}

Status ParameterCache::GradientDone(ParameterId parameter) {
  if (!status_.ok()) return status_;
  const ChunkId chunk = layout_.parameters[parameter].chunk;
  TP_RETURN_IF_ERROR(Latch(states_.Change(parameter, TensorState::kHoldAfterBwd)));
  if (!states_.AllIn(chunk, TensorState::kHoldAfterBwd)) return Progress();
  ZeroGaps(chunk);
  return Submit(chunk, /*enter=*/true);
}

// Alignment gaps, the chunk's tail and parameters without a gradient become zeros: whole blocks are
// added over ranks.
void ParameterCache::ZeroGaps(ChunkId chunk) {
  const ChunkPlace& place = layout_.chunks[chunk];
  const uint64_t element_bytes = BytesOf(layout_.dtype);
  uint64_t end = 0;
  const auto zero_to = [&](uint64_t begin) {
    Zero(table_.place(chunk) + end * element_bytes, (begin - end) * element_bytes);
  };
  for (uint32_t i = 0; i < place.parameter_count; ++i) {
    const ParameterPlace& parameter = layout_.parameters[place.first_parameter + i];
    if (states_.state(place.first_parameter + i) != TensorState::kHoldAfterBwd) continue;
    zero_to(parameter.element_begin);
    end = parameter.element_begin + parameter.element_count;
  }
  zero_to(place.elements);
}

Status ParameterCache::Submit(ChunkId chunk, bool enter) {
  Entry& entry = entries_[chunk];
  const ChunkPlace& place = layout_.chunks[chunk];
  for (ParameterId id = place.first_parameter; id < place.first_parameter + place.parameter_count;
       ++id) {
    if (states_.state(id) != TensorState::kHoldAfterBwd)
      TP_RETURN_IF_ERROR(Latch(states_.Change(id, TensorState::kHoldAfterBwd)));
  }
  if (enter) TP_RETURN_IF_ERROR(Enter(MomentKind::kSubmit, chunk));
  std::erase(used_, chunk);  // the submission comes behind its uses
  table_.set_last_op(chunk, pipeline_.Submit(chunk, table_.place(chunk), version_, micro_batch_));
  ++counters_.submits;
  entry.gradient = false;
  entry.submitted = true;
  Unmap(chunk);
  table_.Give(chunk);
  // The block is free now; nothing else was held, so a step that waits for the moment after this
  // one may start.
  if (enter) PrefetchAhead(follower_.position() + (pinned_.empty() ? 1 : 0));
  return Progress();
}

std::vector<ChunkId> ParameterCache::SeparateChunks() const {
  std::vector<ChunkId> chunks;
  if (dry_) return chunks;
  for (const ChunkId chunk : mine_) {
    if (!InPlace(chunk) && entries_[chunk].grads > 0 && !entries_[chunk].submitted)
      chunks.push_back(chunk);
  }
  return chunks;
}

// A place for gradients alone. In a recording step only chunks that will be borrowed in every step
// enter the order.
Status ParameterCache::TakeForGradients(ChunkId chunk) {
  Entry& entry = entries_[chunk];
  if (entry.multi_use || entry.grads == 0) TP_RETURN_IF_ERROR(Enter(MomentKind::kBorrow, chunk));
  if (!table_.has(chunk)) TP_RETURN_IF_ERROR(Place(chunk));
  if (dry_) return {};
  entry.gradient = true;
  TP_RETURN_IF_ERROR(WaitForPlace(chunk));
  if (entry.mapped) moves_.push_back({chunk, nullptr});
  entry.mapped = false;
  if (states_.state(layout_.chunks[chunk].first_parameter) == TensorState::kFree) {
    TP_RETURN_IF_ERROR(Latch(states_.ChangeChunk(chunk, TensorState::kHold)));
  }
  Zero(table_.place(chunk), layout_.ChunkBytes(chunk));
  return {};
}

Result<SeparateBlock> ParameterCache::BorrowBlock(ChunkId chunk) {
  if (!status_.ok()) return status_;
  if (!in_pass_ || !training_) return NotInPass("BorrowBlock");
  SeparateBlock block;
  if (dry_) return block;
  TP_CHECK(!InPlace(chunk) && !entries_[chunk].gradient && !entries_[chunk].submitted,
           "a separate chunk is borrowed once a backward");
  TP_RETURN_IF_ERROR(TakeForGradients(chunk));
  if (dry_) return block;
  const ChunkPlace& place = layout_.chunks[chunk];
  for (uint32_t i = 0; i < place.parameter_count; ++i) {
    block.places.push_back({place.first_parameter + i, AddressOf(place.first_parameter + i)});
  }
  return block;
}

Status ParameterCache::SubmitBorrowed(ChunkId chunk) {
  if (!status_.ok() || dry_) return status_;
  TP_CHECK(entries_[chunk].gradient, "what is submitted was borrowed");
  return Submit(chunk, entries_[chunk].multi_use);
}

Status ParameterCache::FinishChunk(ChunkId chunk) {
  Entry& entry = entries_[chunk];
  const bool partial = entry.grads > 0 && entry.grads < layout_.chunks[chunk].parameter_count;
  if (entry.submitted) {
    // Recording: in later steps a chunk with too few gradients is handed in here.
    return separate_pass_ && !entry.multi_use && partial ? Enter(MomentKind::kSubmit, chunk)
                                                         : Status();
  }
  if (entry.grads == 0) {
    TP_RETURN_IF_ERROR(TakeForGradients(chunk));
    if (dry_) return {};
  } else if (!InPlace(chunk)) {
    return Latch(Status(ErrorId::kInternal, "gradients of chunk " + std::to_string(chunk) +
                                                " were not collected at the end of backward"));
  } else {
    ZeroGaps(chunk);
  }
  return Submit(chunk, /*enter=*/true);
}

// The end of a backward as BorrowBlock, SubmitBorrowed and FinishChunk would note it. Micro-batches
// are alike: one says it all.
Status ParameterCache::FinishDry() {
  const auto hand_in = [this](ChunkId chunk, bool borrow) -> Status {
    if (borrow) TP_RETURN_IF_ERROR(Enter(MomentKind::kBorrow, chunk));
    return Enter(MomentKind::kSubmit, chunk);
  };
  for (const ChunkId chunk : mine_) {
    const Entry& entry = entries_[chunk];
    if (entry.multi_use && entry.grads > 0 && !entry.submitted)
      TP_RETURN_IF_ERROR(hand_in(chunk, /*borrow=*/true));
  }
  for (const ChunkId chunk : mine_) {
    const Entry& entry = entries_[chunk];
    const bool partial = entry.grads > 0 && entry.grads < layout_.chunks[chunk].parameter_count;
    if (!entry.submitted && (entry.grads == 0 || (partial && !entry.multi_use)))
      TP_RETURN_IF_ERROR(hand_in(chunk, entry.grads == 0));
  }
  return TooSmall("operators and gradients hold all " + std::to_string(table_.blocks()) +
                  " rCache blocks at once, and need more");
}

Status ParameterCache::FinishBackward(uint32_t micro_batch) {
  if (!status_.ok()) return status_;
  if (!in_pass_ || !training_ || micro_batch != micro_batch_)
    return NotInPass("FinishBackward of another micro-batch");
  for (const ChunkId chunk : mine_) {
    if (!dry_) TP_RETURN_IF_ERROR(FinishChunk(chunk));
  }
  if (dry_) return FinishDry();
  for (const ChunkId chunk : mine_) {
    entries_[chunk].grads = 0;
    entries_[chunk].submitted = false;
  }
  std::fill(has_gradient_.begin(), has_gradient_.end(), false);
  follower_.MarkMicroBatch();
  ++micro_batch_;
  return {};
}

Status ParameterCache::FinishStep() {
  if (!status_.ok()) return status_;
  if (!in_pass_ || !training_) return NotInPass("FinishStep");
  TP_RETURN_IF_ERROR(Latch(pipeline_.WaitAll()));
  in_pass_ = false;
  // A new order is worth telling: updates then run in the order in which the next forward needs
  // them.
  if (!follower_.End()) return {};
  std::vector<ChunkId> order = FirstUseOrder(follower_.schedule(PassKind::kTrain));
  std::erase_if(order, [this](ChunkId chunk) { return layout_.chunks[chunk].frozen; });
  return Latch(setup_.service->DeclareSchedule(order));
}

}  // namespace tidepool::trainer
