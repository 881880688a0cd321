#include "tests/fuzz/fuzzed_spec.h"

#include <bit>
#include <string>

namespace tidepool::fuzz {
namespace {

// `honest`, or once in a while something else.
template <typename N>
N Usually(FuzzInput* input, N honest) {
  if (!input->OneIn(24)) return honest;
  if constexpr (std::is_integral_v<N>) {
    return static_cast<N>(OddNumber(input, honest));
  } else {
    return input->Number<N>();
  }
}

void AddParameters(FuzzInput* input, shm::JobSpec* spec, uint32_t chunk) {
  const uint64_t elements = spec->chunks[chunk].elements;
  const uint64_t align = spec->dtype == DType::kF32 ? 16 : 32;
  uint64_t begin = 0;
  for (uint32_t i = input->Choice(3); i > 0 && begin < elements; --i) {
    shm::ParameterSpec parameter;
    // Four of five are tensors of experts.
    const size_t number = spec->parameters.size();
    parameter.name = "p" + std::to_string(number / 5);
    if (number % 5 > 0) parameter.name += ".experts." + std::to_string(number % 5) + ".";
    parameter.name += input->Text(2);
    parameter.chunk = Usually(input, chunk);
    parameter.group = input->Choice(static_cast<uint32_t>(spec->parameter_groups.size()));
    parameter.element_begin = Usually(input, begin);
    parameter.element_count =
        Usually(input, std::min<uint64_t>(elements - begin, 1 + input->Byte()));
    parameter.dims = {Usually(input, parameter.element_count)};
    if (input->OneIn(4)) parameter.dims.push_back(Usually(input, uint64_t{1}));
    begin += (parameter.element_count + align - 1) / align * align;
    spec->parameters.push_back(std::move(parameter));
  }
}

}  // namespace

shm::JobSpec FuzzedSpec(FuzzInput* input) {
  shm::JobSpec spec;
  spec.name = "job" + input->Text(2);
  spec.world = Usually(input, 1 + input->Choice(4));
  spec.dtype = static_cast<DType>(Usually(input, input->Choice(3)));
  spec.optimizer.rule = static_cast<OptimizerRule>(Usually(input, input->Choice(5)));
  spec.optimizer.states =
      static_cast<StateForm>(Usually(input, spec.dtype == DType::kBF16 ? input->Choice(4) : 0));
  spec.optimizer.beta1 = Usually(input, 0.9);
  spec.optimizer.eps = Usually(input, 1e-8);
  spec.optimizer.momentum = Usually(input, input->Choice(2) == 0 ? 0 : 0.9);
  spec.optimizer.nesterov = Usually(input, uint32_t{0});
  spec.max_grad_norm = Usually(input, 1.0F);
  spec.micro_batches = Usually(input, 1 + input->Choice(3));
  spec.loss_scaling = Usually(input, input->Choice(2));
  spec.rcache_bytes = Usually(input, uint64_t{65536});
  for (uint32_t i = 1 + input->Choice(3); i > 0; --i)
    spec.parameter_groups.push_back({Usually(input, 1.0F), Usually(input, 0.01F)});
  const uint64_t all = spec.world >= 64 ? ~uint64_t{0} : (uint64_t{1} << spec.world) - 1;
  spec.data_groups.push_back({Usually(input, all)});
  if (input->OneIn(3)) spec.data_groups.push_back({Usually(input, uint64_t{1})});
  for (uint32_t i = 1 + input->Choice(4); i > 0; --i) {
    const uint32_t group = input->Choice(static_cast<uint32_t>(spec.data_groups.size()));
    const uint64_t multiple =
        16 * static_cast<uint64_t>(std::popcount(spec.data_groups[group].rank_mask));
    spec.chunks.push_back(
        {Usually(input, multiple * (1 + input->Byte() % 32)), Usually(input, group)});
    AddParameters(input, &spec, static_cast<uint32_t>(spec.chunks.size()) - 1);
  }
  for (uint32_t i = input->Choice(3); i > 0; --i) {
    shm::FrozenChunkSpec frozen{
        Usually(input, uint64_t{16} * (1 + input->Byte() % 32)), spec.dtype, {}};
    frozen.content.bytes[0] = static_cast<std::byte>(input->Byte());
    spec.frozen.push_back(frozen);
  }
  if (input->OneIn(4))
    spec.states_on_gpu =
        Usually(input, input->Choice(static_cast<uint32_t>(spec.chunks.size()) + 1));
  // Types of their own come last: inputs that end before mean what they meant.
  if (spec.dtype != DType::kF32 && input->OneIn(3))
    spec.f32_chunks = Usually(input, input->Choice(static_cast<uint32_t>(spec.chunks.size())));
  for (shm::FrozenChunkSpec& frozen : spec.frozen) {
    if (input->OneIn(3)) frozen.dtype = static_cast<DType>(Usually(input, input->Choice(4)));
  }
  if (spec.dtype != DType::kF32 && spec.micro_batches == 1 && input->OneIn(3))
    spec.sums_gradients = Usually(input, 1U);
  return spec;
}

}  // namespace tidepool::fuzz
