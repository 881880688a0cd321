#include "shm/spec/validate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/formats/optimizer.h"
#include "base/units.h"
#include "shm/spec/frozen.h"
#include "shm/spec/gpu_states.h"

namespace tidepool::shm {
namespace {

// Most elements of a job: below 2^62 bytes with at most 32 bytes of state per element.
constexpr uint64_t kElementsMax = uint64_t{1} << 56;
constexpr uint64_t kRcacheBytesMax = uint64_t{1} << 48;
constexpr uint64_t kShardAlignElements = 16;

Status Bad(std::string what) {
  return Status(ErrorId::kJobSpecBad, std::move(what));
}

std::string Nth(const char* noun, size_t index) {
  return std::string(noun) + " " + std::to_string(index);
}

bool InRange(double value, double least, double most) {
  return std::isfinite(value) && value >= least && value <= most;
}

bool IsJobName(std::string_view name) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= kJobNameMax &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

// Parameter names become keys of a JSON object in saved files, so quotes and control characters are
// not allowed.
bool IsParameterName(std::string_view name) {
  const auto plain = [](char c) { return c > ' ' && c < 0x7f && c != '"' && c != '\\'; };
  return !name.empty() && name.size() <= kNameMax && name != "__metadata__" &&
         std::all_of(name.begin(), name.end(), plain);
}

Status CheckCount(const char* noun, size_t count, size_t most) {
  if (count >= 1 && count <= most) return Status();
  return Bad("the job has " + std::to_string(count) + " " + noun + "; allowed are 1 to " +
             std::to_string(most));
}

Status CheckCounts(const JobSpec& spec) {
  if (!IsJobName(spec.name)) return Bad("the job name is not 1 to 63 characters of [A-Za-z0-9._-]");
  TP_RETURN_IF_ERROR(CheckCount("ranks", spec.world, kRanksMax));
  TP_RETURN_IF_ERROR(CheckCount("micro-batches", spec.micro_batches, kMicroBatchesMax));
  TP_RETURN_IF_ERROR(
      CheckCount("parameter groups", spec.parameter_groups.size(), kParameterGroupsMax));
  TP_RETURN_IF_ERROR(CheckCount("data-parallel groups", spec.data_groups.size(), kDataGroupsMax));
  TP_RETURN_IF_ERROR(CheckCount("chunks", spec.chunks.size(), kChunksMax));
  TP_RETURN_IF_ERROR(CheckCount("parameters", spec.parameters.size(), kParametersMax));

  if (!IsTrainedDType(static_cast<uint32_t>(spec.dtype)))
    return Bad("unknown element type " + std::to_string(static_cast<uint32_t>(spec.dtype)));
  if (spec.f32_chunks > 0 && (spec.dtype == DType::kF32 || spec.f32_chunks >= spec.chunks.size())) {
    return Bad(std::to_string(spec.f32_chunks) + " fp32 chunks of " +
               std::to_string(spec.chunks.size()) + " are not some of those of a 16-bit job");
  }
  if (spec.sums_gradients > 1 ||
      (spec.sums_gradients == 1 && (spec.dtype == DType::kF32 || spec.micro_batches > 1)))
    return Bad("only a 16-bit job with one micro-batch a step sums gradients at its ranks");
  if (const char* why = WhyBad(spec.optimizer, spec.dtype))
    return Bad(why).Fix("correct that number of the optimizer");

  if (spec.loss_scaling > 1)
    return Bad("loss_scaling is " + std::to_string(spec.loss_scaling) + "; allowed are 0 and 1");
  if (spec.rcache_bytes == 0 || spec.rcache_bytes % kPageBytes != 0 ||
      spec.rcache_bytes > kRcacheBytesMax) {
    return Bad("the rCache of " + std::to_string(spec.rcache_bytes) +
               " bytes is not a positive multiple of 4 KiB up to 256 TiB");
  }
  return Status();
}

Status CheckFloats(const JobSpec& spec) {
  constexpr double kHuge = 1e30;
  if (!InRange(spec.max_grad_norm, 0, kHuge))
    return Bad("max_grad_norm must be finite and not negative")
        .Fix("correct the value that gradients are clipped to (--clip)");

  for (size_t i = 0; i < spec.parameter_groups.size(); ++i) {
    const ParameterGroup& group = spec.parameter_groups[i];
    if (!InRange(group.lr_scale, 0, kHuge) || !InRange(group.weight_decay, 0, kHuge)) {
      return Bad(Nth("parameter group", i) +
                 ": lr_scale and weight_decay must be finite and not negative")
          .Fix("correct the weight decay (--weight-decay), or the factor of the learning rate");
    }
  }
  return Status();
}

Status CheckChunks(const JobSpec& spec) {
  const uint64_t world_mask = spec.world == 64 ? ~uint64_t{0} : (uint64_t{1} << spec.world) - 1;
  for (size_t i = 0; i < spec.data_groups.size(); ++i) {
    const uint64_t mask = spec.data_groups[i].rank_mask;
    if (mask == 0 || (mask & ~world_mask) != 0)
      return Bad(Nth("data-parallel group", i) + " is empty or names ranks outside the job");
  }

  uint64_t total = 0;
  for (size_t i = 0; i < spec.chunks.size(); ++i) {
    const ChunkSpec& chunk = spec.chunks[i];
    if (chunk.data_group >= spec.data_groups.size())
      return Bad(Nth("chunk", i) + " belongs to no data-parallel group of the job");

    const uint64_t multiple =
        kShardAlignElements *
        static_cast<uint64_t>(std::popcount(spec.data_groups[chunk.data_group].rank_mask));
    if (chunk.elements == 0 || chunk.elements % multiple != 0) {
      return Bad(Nth("chunk", i) + " has " + std::to_string(chunk.elements) +
                 " elements, not a positive multiple of " + std::to_string(multiple));
    }

    if (spec.micro_batches > 1 &&
        chunk.elements / multiple * kShardAlignElements > kAddedShardElementsMax) {
      return Bad(Nth("chunk", i) +
                 " has shards of more than 2^30 elements, too large for gradient accumulation");
    }

    if (chunk.elements > kElementsMax - total) return Bad("the job has more than 2^56 elements");
    total += chunk.elements;
  }
  return Status();
}

// True if the product of `dims` is `count`; false if it overflows.
bool ShapeHolds(const std::vector<uint64_t>& dims, uint64_t count) {
  uint64_t product = 1;
  for (const uint64_t dim : dims) {
    if (dim == 0 || product > kElementsMax / dim) return false;
    product *= dim;
  }
  return product == count;
}

Status CheckParameters(const JobSpec& spec) {
  std::unordered_set<std::string_view> names;
  uint32_t chunk_before = 0;
  uint64_t end_before = 0;  // in that chunk

  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = spec.parameters[i];
    const std::string which = Nth("parameter", i);
    if (!IsParameterName(parameter.name))
      return Bad(which + ": the name is not 1 to 95 printable characters");
    if (!names.insert(parameter.name).second)
      return Bad(which + ": the name '" + parameter.name + "' occurs twice");

    if (parameter.chunk >= spec.chunks.size()) return Bad(which + " lies in no chunk of the job");
    if (parameter.group >= spec.parameter_groups.size())
      return Bad(which + " belongs to no parameter group of the job");

    if (parameter.chunk < chunk_before) return Bad(which + " is not in chunk order");
    if (parameter.chunk > chunk_before) end_before = 0;
    if (parameter.dims.size() > kDimsMax || parameter.element_count == 0 ||
        !ShapeHolds(parameter.dims, parameter.element_count)) {
      return Bad(which + ": the shape does not have " + std::to_string(parameter.element_count) +
                 " elements");
    }

    const uint64_t elements = spec.chunks[parameter.chunk].elements;
    if (parameter.element_begin > elements ||
        parameter.element_count > elements - parameter.element_begin) {
      return Bad(which + " does not lie inside its chunk");
    }

    if (parameter.element_begin < end_before)
      return Bad(which + " overlaps the parameter before it, or is out of order");
    const uint64_t align = kParameterAlignBytes / BytesOf(spec.DTypeOf(parameter.chunk));
    if (parameter.element_begin % align != 0) return Bad(which + " does not start on 64 bytes");

    chunk_before = parameter.chunk;
    end_before = parameter.element_begin + parameter.element_count;
  }
  return Status();
}

}  // namespace

Status Validate(const JobSpec& spec) {
  TP_RETURN_IF_ERROR(CheckCounts(spec));
  TP_RETURN_IF_ERROR(CheckFloats(spec));
  TP_RETURN_IF_ERROR(CheckChunks(spec));
  TP_RETURN_IF_ERROR(CheckParameters(spec));
  TP_RETURN_IF_ERROR(CheckFrozen(spec));
  return CheckGpuStates(spec);
}

}  // namespace tidepool::shm
