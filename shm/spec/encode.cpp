#include "shm/spec/encode.h"

#include <algorithm>
#include <cstring>

#include "base/planted.h"
#include "shm/byte_codec.h"
#include "shm/spec/frozen.h"

namespace tidepool::shm {
namespace {

// Programs that do not know a number at the end refuse a job that has it, and read all others as
// before.
void PutTail(const JobSpec& spec, ByteWriter* out) {
  PutFrozen(spec.frozen, out);
  const bool has_sums = spec.sums_gradients != 0;
  const bool has_types = has_sums || (spec.HasOwnDTypes() && !TP_PLANTED("shm.types_not_told"));
  if (spec.states_on_gpu > 0 || has_types) out->Put(spec.states_on_gpu);
  if (!has_types) return;
  out->Put(spec.f32_chunks);
  for (const FrozenChunkSpec& chunk : spec.frozen) out->Put(static_cast<uint8_t>(chunk.dtype));
  if (has_sums) out->Put(spec.sums_gradients);
}

void PutParameter(const ParameterSpec& parameter, ByteWriter* out) {
  out->PutString(parameter.name);
  out->Put(static_cast<uint32_t>(parameter.dims.size()));
  for (const uint64_t dim : parameter.dims) out->Put(dim);
  out->Put(parameter.chunk);
  out->Put(parameter.group);
  out->Put(parameter.element_begin);
  out->Put(parameter.element_count);
}

void PutOptimizer(const OptimizerSpec& spec, ByteWriter* out) {
  out->Put(static_cast<uint32_t>(spec.rule));
  out->Put(static_cast<uint32_t>(spec.states));
  for (const double value :
       {spec.beta1, spec.beta2, spec.eps, spec.momentum, spec.dampening, spec.lr_decay})
    out->Put(value);
  out->Put(spec.nesterov);
  out->Put(spec.rounding_seed);
}

// Writes everything up to the number of chunks.
void PutHead(const JobSpec& spec, ByteWriter* out) {
  out->Put(kSpecMagic);
  out->PutString(spec.name);
  out->Put(spec.world);
  out->Put(static_cast<uint32_t>(spec.dtype));
  PutOptimizer(spec.optimizer, out);
  out->Put(spec.max_grad_norm);
  out->Put(spec.micro_batches);
  out->Put(spec.loss_scaling);
  out->Put(spec.rcache_bytes);

  out->Put(static_cast<uint32_t>(spec.parameter_groups.size()));
  for (const ParameterGroup& group : spec.parameter_groups) {
    out->Put(group.lr_scale);
    out->Put(group.weight_decay);
  }

  out->Put(static_cast<uint32_t>(spec.data_groups.size()));
  for (const DataGroup& group : spec.data_groups) out->Put(group.rank_mask);

  out->Put(static_cast<uint32_t>(spec.chunks.size()));
}

uint64_t Mix(uint64_t x) {  // the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

std::vector<std::byte> Encode(const JobSpec& spec) {
  return SpecEncoder(&spec).Next(UINT64_MAX);
}

uint64_t EncodedBytesOf(const JobSpec& spec) {
  return spec.sums.made != nullptr ? spec.sums.made->encoded_bytes : Encode(spec).size();
}

std::vector<std::byte> SpecEncoder::Next(uint64_t bytes_max) {
  ByteWriter out;
  while (out.size() < bytes_max && PutNext(&out)) {
  }
  return out.Take();
}

bool SpecEncoder::PutNext(ByteWriter* out) {
  // True while items of a list of `size` remain; at its end the part `then` begins.
  const auto goes_on = [this](size_t size, Part then) {
    if (next_ < size) return true;
    part_ = then;
    next_ = 0;
    return false;
  };

  switch (part_) {
    case Part::kHead:
      PutHead(*spec_, out);
      part_ = Part::kChunks;
      return true;

    case Part::kChunks:
      if (goes_on(spec_->chunks.size(), Part::kParameters)) {
        out->Put(spec_->chunks[next_].elements);
        out->Put(spec_->chunks[next_++].data_group);
      } else {
        out->Put(static_cast<uint32_t>(spec_->parameters.size()));
      }
      return true;

    case Part::kParameters:
      if (goes_on(spec_->parameters.size(), Part::kTail)) {
        PutParameter(spec_->parameters[next_++], out);
        return true;
      }
      [[fallthrough]];

    case Part::kTail:
      PutTail(*spec_, out);
      part_ = Part::kNone;
      return true;

    case Part::kNone: break;
  }
  return false;
}

uint64_t Fingerprint(std::span<const std::byte> bytes) {
  uint64_t hash = Mix(bytes.size() + 1);
  while (!bytes.empty()) {
    uint64_t word = 0;
    const size_t count = std::min<size_t>(bytes.size(), sizeof word);
    std::memcpy(&word, bytes.data(), count);
    hash = Mix(hash ^ word) + 0x9e3779b97f4a7c15;
    bytes = bytes.subspan(count);
  }
  return hash;
}

}  // namespace tidepool::shm
