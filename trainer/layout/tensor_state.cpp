#include "trainer/layout/tensor_state.h"

#include <array>

namespace tidepool::trainer {
namespace {

// kLegal[from][to], in the order of the enumeration; the drawing is in the header.
constexpr bool kLegal[kTensorStateCount][kTensorStateCount] = {
    // Free  Compute Hold   AfterFwd AfterBwd
    {false, false, true, false, false},  // Free
    {false, true, false, true, false},   // Compute
    {true, true, false, false, true},    // Hold
    {true, true, true, false, true},     // HoldAfterFwd
    {true, false, false, false, false},  // HoldAfterBwd
};

constexpr std::array<const char*, kTensorStateCount> kNames{"FREE", "COMPUTE", "HOLD",
                                                            "HOLD_AFTER_FWD", "HOLD_AFTER_BWD"};

}  // namespace

const char* NameOf(TensorState state) {
  return kNames[static_cast<size_t>(state)];
}

bool IsLegalTransition(TensorState from, TensorState to) {
  return kLegal[static_cast<size_t>(from)][static_cast<size_t>(to)];
}

TensorStates::TensorStates(const ChunkLayout* layout)
    : layout_(layout),
      states_(layout->parameters.size(), TensorState::kFree),
      uses_(layout->parameters.size(), 0) {}

Status TensorStates::Change(ParameterId parameter, TensorState to) {
  const TensorState from = states_[parameter];
  if (!IsLegalTransition(from, to)) {
    return Status(ErrorId::kTensorStateIllegal, "parameter " + layout_->parameters[parameter].name +
                                                    " cannot go from " + NameOf(from) + " to " +
                                                    NameOf(to))
        .Where("chunk " + std::to_string(layout_->parameters[parameter].chunk));
  }
  states_[parameter] = to;
  return {};
}

Status TensorStates::BeginUse(ParameterId parameter) {
  TP_RETURN_IF_ERROR(Change(parameter, TensorState::kCompute));
  ++uses_[parameter];
  return {};
}

Status TensorStates::EndUse(ParameterId parameter) {
  if (uses_[parameter] > 1) {
    --uses_[parameter];
    return {};
  }
  TP_RETURN_IF_ERROR(Change(parameter, TensorState::kHoldAfterFwd));
  uses_[parameter] = 0;
  return {};
}

void TensorStates::BeginPass(ChunkId chunk) {
  const ChunkPlace& place = layout_->chunks[chunk];
  for (uint32_t i = 0; i < place.parameter_count; ++i) {
    TensorState& state = states_[place.first_parameter + i];
    if (state == TensorState::kHoldAfterFwd) state = TensorState::kHold;
  }
}

Status TensorStates::ChangeChunk(ChunkId chunk, TensorState to) {
  const ChunkPlace& place = layout_->chunks[chunk];
  for (uint32_t i = 0; i < place.parameter_count; ++i)
    TP_RETURN_IF_ERROR(Change(place.first_parameter + i, to));
  return {};
}

bool TensorStates::AllIn(ChunkId chunk, TensorState state) const {
  const ChunkPlace& place = layout_->chunks[chunk];
  for (uint32_t i = 0; i < place.parameter_count; ++i) {
    if (states_[place.first_parameter + i] != state) return false;
  }
  return true;
}

}  // namespace tidepool::trainer
