#include "trainer/cache/chunk_gradients.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace tidepool::trainer {

ChunkGradients::ChunkGradients(CachedChunks* chunks, CachePass* pass, Rank rank)
    : chunks_(chunks),
      pass_(pass),
      layout_(chunks->layout()),
      entries_(layout_.chunks.size()),
      has_gradient_(layout_.parameters.size(), false) {
  for (ChunkId chunk = 0; chunk < layout_.chunks.size(); ++chunk) {
    entries_[chunk].multi_use = layout_.chunks[chunk].multi_use;
    if (layout_.IsMember(chunk, rank) && !layout_.chunks[chunk].frozen) mine_.push_back(chunk);
  }
}

bool ChunkGradients::IsPartial(ChunkId chunk) const {
  const uint32_t came = entries_[chunk].gradients;
  return came > 0 && came < layout_.chunks[chunk].parameter_count;
}

Status ChunkGradients::Illegal(ParameterId parameter, const char* before, const char* after) const {
  return Status(ErrorId::kTensorStateIllegal, before + PlaceOf(parameter).name + after)
      .Where("chunk " + std::to_string(PlaceOf(parameter).chunk));
}

Status ChunkGradients::UsedAgain(ParameterId parameter, const char* before,
                                 const char* after) const {
  return Illegal(parameter, before, after)
      .Why("the model uses it at several places, and nobody has said so")
      .Fix("declare the parameter as used several times: multi_use=[\"" + PlaceOf(parameter).name +
           "\"] where the model is wrapped");
}

// Found while recording: this chunk's gradients are complete, and its parameters no longer needed,
// only at the end of backward.
void ChunkGradients::KeepApart(ChunkId chunk) {
  if (!std::exchange(entries_[chunk].multi_use, true)) pass_->WithdrawGradients(chunk);
}

Status ChunkGradients::BeginUse(std::span<const ParameterId> parameters) {
  for (const ParameterId parameter : parameters) {
    if (pass_->separate() && has_gradient_[parameter]) KeepApart(PlaceOf(parameter).chunk);
    if (pass_->trace_only()) continue;
    if (chunks_->states()->state(parameter) == TensorState::kHoldAfterBwd) {
      return UsedAgain(parameter, "an operator reads parameter ",
                       " after its gradient has come, which lies in its place");
    }
    TP_RETURN_IF_ERROR(chunks_->states()->BeginUse(parameter));
  }
  return {};
}

Result<std::byte*> ChunkGradients::Place(ParameterId parameter) {
  static constexpr std::byte* kSeparate = nullptr;
  const ChunkId chunk = PlaceOf(parameter).chunk;
  Entry& entry = entries_[chunk];
  if (layout_.chunks[chunk].frozen) {
    return Illegal(parameter, "parameter ",
                   " got a gradient, but it is frozen and has no place for one");
  }

  if (has_gradient_[parameter]) {
    if (InPlace(chunk)) {
      return UsedAgain(parameter, "parameter ",
                       " got a second gradient in one backward, over its first one");
    }
    KeepApart(chunk);
    return kSeparate;
  }

  has_gradient_[parameter] = true;
  const bool first = ++entry.gradients == 1;
  if (entry.multi_use) return kSeparate;
  if (first) pass_->Enter(MomentKind::kGradient, chunk);
  if (first && !pass_->separate()) pass_->Demand(chunk);
  // Checked again: the pass may have become trace-only.
  if (pass_->separate()) {
    // Recorded as it will happen in later steps, although the caller keeps this step's gradients.
    if (entry.gradients == layout_.chunks[chunk].parameter_count)
      pass_->Enter(MomentKind::kSubmit, chunk);
    return kSeparate;
  }

  if (first) {
    pass_->PrefetchAhead();
    TP_RETURN_IF_ERROR(chunks_->HandOut(chunk));
    chunks_->HoldGradients(chunk);
  }
  return chunks_->AddressOf(parameter);
}

Status ChunkGradients::Done(ParameterId parameter) {
  const ChunkId chunk = PlaceOf(parameter).chunk;
  TensorStates& states = *chunks_->states();
  TP_RETURN_IF_ERROR(states.Change(parameter, TensorState::kHoldAfterBwd));
  if (!states.AllIn(chunk, TensorState::kHoldAfterBwd)) return chunks_->Progress();
  ZeroGaps(chunk);
  return Submit(chunk, /*enter=*/true);
}

void ChunkGradients::ZeroGaps(ChunkId chunk) {
  const ChunkPlace& place = layout_.chunks[chunk];
  uint64_t end = 0;
  for (uint32_t i = 0; i < place.parameter_count; ++i) {
    const ParameterId parameter = place.first_parameter + i;
    if (chunks_->states()->state(parameter) != TensorState::kHoldAfterBwd) continue;
    const ParameterPlace& filled = PlaceOf(parameter);
    chunks_->Zero(chunk, end, filled.element_begin);
    end = filled.element_begin + filled.element_count;
  }
  chunks_->Zero(chunk, end, place.elements);
}

Status ChunkGradients::Submit(ChunkId chunk, bool enter) {
  const ChunkPlace& place = layout_.chunks[chunk];
  const ParameterId end = place.first_parameter + place.parameter_count;
  for (ParameterId id = place.first_parameter; id < end; ++id) {
    if (chunks_->states()->state(id) != TensorState::kHoldAfterBwd)
      TP_RETURN_IF_ERROR(chunks_->states()->Change(id, TensorState::kHoldAfterBwd));
  }

  if (enter) pass_->Enter(MomentKind::kSubmit, chunk);
  chunks_->Submit(chunk, pass_->version(), micro_batch_);
  entries_[chunk].submitted = true;
  pass_->NoteSubmitted(chunk);
  // The block is free now; if nothing else is pinned, a step that needs the moment after this one
  // may start.
  if (enter) pass_->PrefetchAhead(chunks_->pinned().empty() ? 1 : 0);
  return chunks_->Progress();
}

// --- units that are left out ---

Status ChunkGradients::PassBy(uint32_t unit) {
  while (const Moment* next = pass_->NextLeftOut(unit)) {
    const bool submits = next->kind == MomentKind::kSubmit;
    const ChunkId chunk = next->subject;
    pass_->PassBy(*next);
    if (submits) TP_RETURN_IF_ERROR(SubmitZeros(chunk));
  }
  if (!pass_->trace_only()) pass_->PrefetchAhead();
  return chunks_->Progress();
}

Status ChunkGradients::SubmitZeros(ChunkId chunk) {
  TP_RETURN_IF_ERROR(chunks_->SubmitZeros(chunk, pass_->version(), micro_batch_));
  entries_[chunk].submitted = true;
  pass_->NoteSubmitted(chunk);
  return {};
}

// --- separate mode ---

std::vector<ChunkId> ChunkGradients::SeparateChunks() const {
  std::vector<ChunkId> chunks;
  if (pass_->trace_only()) return chunks;
  for (const ChunkId chunk : mine_) {
    if (!InPlace(chunk) && entries_[chunk].gradients > 0 && !entries_[chunk].submitted)
      chunks.push_back(chunk);
  }
  return chunks;
}

Status ChunkGradients::TakePlace(ChunkId chunk) {
  // In a recording step only chunks that every step will borrow enter the order.
  if (entries_[chunk].multi_use || entries_[chunk].gradients == 0)
    pass_->Enter(MomentKind::kBorrow, chunk);
  if (!chunks_->has(chunk)) pass_->Place(chunk);
  return pass_->trace_only() ? Status() : chunks_->TakeForGradients(chunk);
}

Result<SeparateBlock> ChunkGradients::Borrow(ChunkId chunk) {
  SeparateBlock block;
  if (pass_->trace_only()) return block;
  TP_CHECK(!InPlace(chunk) && !chunks_->holds_gradients(chunk) && !entries_[chunk].submitted,
           "a separate chunk is borrowed once a backward");
  TP_RETURN_IF_ERROR(TakePlace(chunk));
  if (pass_->trace_only()) return block;

  const ChunkPlace& place = layout_.chunks[chunk];
  for (uint32_t i = 0; i < place.parameter_count; ++i) {
    const ParameterId parameter = place.first_parameter + i;
    block.places.push_back({parameter, chunks_->AddressOf(parameter)});
  }
  return block;
}

Status ChunkGradients::SubmitBorrowed(ChunkId chunk) {
  if (pass_->trace_only()) return {};
  TP_CHECK(chunks_->holds_gradients(chunk), "what is submitted was borrowed");
  return Submit(chunk, entries_[chunk].multi_use);
}

// --- the end of a backward ---

Status ChunkGradients::FinishBackward() {
  for (const ChunkId chunk : mine_) {
    if (!pass_->trace_only()) TP_RETURN_IF_ERROR(FinishChunk(chunk));
  }
  if (pass_->trace_only()) return FinishTraceOnly();

  for (const ChunkId chunk : mine_) {
    entries_[chunk].gradients = 0;
    entries_[chunk].submitted = false;
  }
  std::fill(has_gradient_.begin(), has_gradient_.end(), false);
  pass_->MarkMicroBatch();
  ++micro_batch_;
  return {};
}

Status ChunkGradients::FinishChunk(ChunkId chunk) {
  const Entry& entry = entries_[chunk];
  if (entry.submitted) {
    // Recording: in later steps a chunk with missing gradients is submitted here.
    if (pass_->separate() && !entry.multi_use && IsPartial(chunk))
      pass_->Enter(MomentKind::kSubmit, chunk);
    return {};
  }

  if (entry.gradients == 0) {
    TP_RETURN_IF_ERROR(TakePlace(chunk));
    if (pass_->trace_only()) return {};
  } else if (!InPlace(chunk)) {
    return Status(ErrorId::kInternal, "gradients of chunk " + std::to_string(chunk) +
                                          " were not collected at the end of backward");
  } else {
    ZeroGaps(chunk);
  }
  return Submit(chunk, /*enter=*/true);
}

// Records the moments that Borrow, SubmitBorrowed and FinishChunk would record. Micro-batches are
// alike, so one is enough.
Status ChunkGradients::FinishTraceOnly() {
  const auto hand_in = [this](ChunkId chunk, bool borrow) {
    if (borrow) pass_->Enter(MomentKind::kBorrow, chunk);
    pass_->Enter(MomentKind::kSubmit, chunk);
  };

  for (const ChunkId chunk : mine_) {
    const Entry& entry = entries_[chunk];
    if (entry.multi_use && entry.gradients > 0 && !entry.submitted) hand_in(chunk, /*borrow=*/true);
  }
  for (const ChunkId chunk : mine_) {
    const Entry& entry = entries_[chunk];
    const bool none = entry.gradients == 0;
    if (!entry.submitted && (none || (IsPartial(chunk) && !entry.multi_use))) hand_in(chunk, none);
  }
  return pass_->TooSmall("operators and gradients hold all " + std::to_string(chunks_->blocks()) +
                         " rCache blocks at once, and need more");
}

}  // namespace tidepool::trainer
