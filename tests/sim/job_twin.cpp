#include "tests/sim/job_twin.h"

#include <algorithm>
#include <cstring>

#include "base/formats/split_float.h"
#include "optim/kernels/float_mode.h"
#include "optim/gradient_norm.h"
#include "optim/update_rule.h"
#include "shm/spec/state_bytes.h"

namespace tidepool::memserver {

JobTwin::JobTwin(const shm::JobSpec& spec)
    : spec_(spec),
      kernels_(optim::SelectKernels(optim::BestIsa())),
      slots_(spec.chunks.size()),
      norm_sums_(spec.parameters.size()) {
  for (ChunkId chunk = 0; chunk < spec.chunks.size(); ++chunk)
    slots_[chunk].resize(shm::PlaneBytesOf(spec, chunk).gradient);
}

void JobTwin::Start(const FillWeights& weights) {
  version_ = 0;
  steps_.assign(spec_.parameters.size(), 0);
  planes_[0].assign(spec_.chunks.size(), {});
  for (ChunkId chunk = 0; chunk < spec_.chunks.size(); ++chunk) {
    const uint64_t elements = spec_.chunks[chunk].elements;
    Planes& planes = planes_[0][chunk];
    const shm::PlaneBytes bytes = shm::PlaneBytesOf(spec_, chunk);
    planes.master.resize(bytes.master);
    planes.momentum.resize(bytes.momentum);
    planes.variance.resize(bytes.variance);
    planes.param16.resize(bytes.param16);
    values_.resize(elements);
    weights(chunk, values_);
    StoreWeights(chunk, &planes);
  }
  planes_[1] = planes_[0];
}

std::span<const std::byte> JobTwin::ParameterBytes(ChunkId chunk, uint32_t age) const {
  const Planes& planes = planes_[age][chunk];
  return spec_.DTypeOf(chunk) == DType::kF32 ? planes.master : planes.param16;
}

// `values_` as the master.
void JobTwin::StoreWeights(ChunkId chunk, Planes* planes) const {
  if (!IsSplit(spec_.StatesOf(chunk))) {
    std::memcpy(planes->master.data(), values_.data(), planes->master.size());
    if (!planes->param16.empty())
      kernels_.narrow(planes->param16.data(), spec_.dtype, values_.data(), values_.size());
    return;
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    const SplitFloat halves = Split(values_[i]);
    std::memcpy(planes->param16.data() + 2 * i, &halves.high, 2);
    std::memcpy(planes->master.data() + 2 * i, &halves.rest, 2);
  }
}

bool JobTwin::Step(const StepNumbers& numbers, const FillGradient& gradient) {
  const optim::FlushDenormals mode;
  for (ChunkId chunk = 0; chunk < spec_.chunks.size(); ++chunk) FillSlot(chunk, gradient);
  float gradient_scale = 0;
  const bool finite = Judge(numbers, &gradient_scale);
  planes_[1] = planes_[0];
  ++version_;
  if (!finite) return false;
  Update(numbers, gradient_scale);
  return true;
}

void JobTwin::Encode(ChunkId chunk, std::span<const float> values, void* to) const {
  if (spec_.GradientTypeOf(chunk) == DType::kF32) {
    std::memcpy(to, values.data(), values.size_bytes());
  } else {
    kernels_.narrow(to, spec_.dtype, values.data(), values.size());
  }
}

// As it is submitted, micro-batch by micro-batch.
void JobTwin::FillSlot(ChunkId chunk, const FillGradient& gradient) {
  const uint64_t elements = spec_.chunks[chunk].elements;
  const DType dtype = spec_.GradientTypeOf(chunk);
  std::byte* slot = slots_[chunk].data();
  for (uint32_t micro_batch = 0; micro_batch < spec_.micro_batches; ++micro_batch) {
    values_.resize(elements);
    gradient(chunk, micro_batch, values_);
    encoded_.resize(elements * BytesOf(dtype));
    Encode(chunk, values_, encoded_.data());
    if (shm::GradientSlotType(spec_, chunk) == dtype && micro_batch == 0) {
      std::memcpy(slot, encoded_.data(), encoded_.size());
    } else if (micro_batch == 0) {
      kernels_.widen(reinterpret_cast<float*>(slot), encoded_.data(), dtype, elements);
    } else {
      kernels_.accumulate_gradient(reinterpret_cast<float*>(slot), encoded_.data(), dtype,
                                   elements);
    }
  }
}

bool JobTwin::Judge(const StepNumbers& numbers, float* gradient_scale) {
  bool finite = true;
  for (size_t i = 0; i < norm_sums_.size(); ++i) {
    const shm::ParameterSpec& parameter = spec_.parameters[i];
    const DType type = shm::GradientSlotType(spec_, parameter.chunk);
    const std::byte* first =
        slots_[parameter.chunk].data() + parameter.element_begin * BytesOf(type);
    const optim::ScanResult result = kernels_.scan_gradient(first, type, parameter.element_count);
    norm_sums_[i] = result.sum_squares;
    finite = finite && result.finite;
  }
  const double scale = numbers.loss_scale;
  const double norm = optim::CombineNorm(norm_sums_) / scale;
  const double clip = optim::ClipFactor(norm, spec_.max_grad_norm);
  *gradient_scale = static_cast<float>(clip / scale);
  return finite;
}

void JobTwin::Update(const StepNumbers& numbers, float gradient_scale) {
  for (ParameterId id = 0; id < spec_.parameters.size(); ++id) {
    if (numbers.untouched.count(id) != 0) continue;
    const shm::ParameterSpec& parameter = spec_.parameters[id];
    const shm::ParameterGroup& group = spec_.parameter_groups[parameter.group];
    optim::StepScalars step{numbers.learning_rate, ++steps_[id], gradient_scale};
    optim::GroupScalars scalars{group.lr_scale, group.weight_decay};
    OptimizerSpec rule = spec_.optimizer;
    if (const auto own = numbers.groups.find(parameter.group); own != numbers.groups.end()) {
      step.lr = own->second.learning_rate;
      scalars = {1, own->second.weight_decay};
      rule = WithNumbers(rule, own->second);
    }

    Planes& planes = planes_[0][parameter.chunk];
    const auto at = [](std::vector<std::byte>& plane) {
      return plane.empty() ? nullptr : plane.data();
    };
    optim::UpdateSpan whole{.master = at(planes.master),
                            .momentum = at(planes.momentum),
                            .variance = at(planes.variance),
                            .gradient = slots_[parameter.chunk].data(),
                            .gradient_dtype = shm::GradientSlotType(spec_, parameter.chunk),
                            .param16 = at(planes.param16),
                            .param16_dtype = spec_.DTypeOf(parameter.chunk),
                            .count = spec_.chunks[parameter.chunk].elements,
                            .states = spec_.StatesOf(parameter.chunk)};
    if (whole.states == StateForm::kSplit8) {
      const uint64_t scales = ScalesOffset(whole.count);
      if (whole.momentum != nullptr)
        whole.momentum_scales = reinterpret_cast<float*>(planes.momentum.data() + scales);
      if (whole.variance != nullptr)
        whole.variance_scales = reinterpret_cast<float*>(planes.variance.data() + scales);
    }
    optim::UpdateSpan own = optim::Slice(whole, parameter.element_begin, parameter.element_count);
    own.random = {optim::RandomKey(RoundingSeedOf(spec_.optimizer, parameter.name), version_), 0};
    kernels_.update(optim::MakeFactors(rule, step, scalars), own);
  }
}

}  // namespace tidepool::memserver
