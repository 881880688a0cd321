#include "shm/spec/job_spec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>
#include <unordered_set>

#include "base/check.h"
#include "base/formats/plane_slack.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"
#include "shm/byte_codec.h"
#include "shm/spec/frozen.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/spec_sums.h"

namespace tidepool::shm {

namespace {

constexpr uint32_t kSpecMagic = 0x4a445054;  // "TPDJ"
// Most elements of a job: below 2^62 bytes with at most 32 bytes of state an element.
constexpr uint64_t kElementsMax = uint64_t{1} << 56;
constexpr uint64_t kRcacheBytesMax = uint64_t{1} << 48;
constexpr uint64_t kShardAlignElements = 16;
// Bytes of one record in an encoded spec, without names and dims: bounds what a count in hostile
// bytes can make us allocate.
constexpr size_t kParameterGroupBytes = 8, kDataGroupBytes = 8, kChunkBytes = 12,
                 kParameterBytesMin = 4 + 4 + 4 + 4 + 8 + 8;

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

// Parameter names become keys of a JSON object in saved files, so quotes and control characters
// stay out.
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
  if (!IsDType(static_cast<uint32_t>(spec.dtype)))
    return Bad("unknown element type " + std::to_string(static_cast<uint32_t>(spec.dtype)));
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

// True when the product of `dims` is `count`; false when it overflows.
bool ShapeHolds(const std::vector<uint64_t>& dims, uint64_t count) {
  uint64_t product = 1;
  for (const uint64_t dim : dims) {
    if (dim == 0 || product > kElementsMax / dim) return false;
    product *= dim;
  }
  return product == count;
}

Status CheckParameters(const JobSpec& spec) {
  const uint64_t align = kParameterAlignBytes / BytesOf(spec.dtype);
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
    if (parameter.element_begin % align != 0) return Bad(which + " does not start on 64 bytes");
    chunk_before = parameter.chunk;
    end_before = parameter.element_begin + parameter.element_count;
  }
  return Status();
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

bool GetParameter(ByteReader* in, ParameterSpec* parameter) {
  parameter->name = in->GetString(kNameMax);
  const auto dim_count = in->Get<uint32_t>();
  if (!in->ok() || dim_count > kDimsMax) return false;
  for (uint32_t i = 0; i < dim_count; ++i) parameter->dims.push_back(in->Get<uint64_t>());
  parameter->chunk = in->Get<uint32_t>();
  parameter->group = in->Get<uint32_t>();
  parameter->element_begin = in->Get<uint64_t>();
  parameter->element_count = in->Get<uint64_t>();
  return in->ok();
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

void GetOptimizer(ByteReader* in, OptimizerSpec* spec) {
  spec->rule = static_cast<OptimizerRule>(in->Get<uint32_t>());
  spec->states = static_cast<StateForm>(in->Get<uint32_t>());
  for (double* value : {&spec->beta1, &spec->beta2, &spec->eps, &spec->momentum, &spec->dampening,
                        &spec->lr_decay}) {
    *value = in->Get<double>();
  }
  spec->nesterov = in->Get<uint32_t>();
  spec->rounding_seed = in->Get<uint64_t>();
}

void GetScalars(ByteReader* in, JobSpec* spec) {
  spec->name = in->GetString(kJobNameMax);
  spec->world = in->Get<uint32_t>();
  const auto dtype = in->Get<uint32_t>();
  spec->dtype = static_cast<DType>(IsDType(dtype) ? dtype : 0xff);
  GetOptimizer(in, &spec->optimizer);
  spec->max_grad_norm = in->Get<float>();
  spec->micro_batches = in->Get<uint32_t>();
  spec->loss_scaling = in->Get<uint32_t>();
  spec->rcache_bytes = in->Get<uint64_t>();
}

// Reads a count that the remaining bytes can hold; otherwise fails and allocates nothing.
template <typename T>
bool GetCount(ByteReader* in, size_t record_bytes_min, size_t most, std::vector<T>* records) {
  const auto count = in->Get<uint32_t>();
  if (!in->ok() || count > most || count > in->rest().size() / record_bytes_min) return false;
  records->resize(count);
  return true;
}

Status GetRecords(ByteReader* in, JobSpec* spec) {
  const Status cut = Bad("the job description is cut short or has a count out of range");
  if (!GetCount(in, kParameterGroupBytes, kParameterGroupsMax, &spec->parameter_groups)) return cut;
  for (ParameterGroup& group : spec->parameter_groups) group = {in->Get<float>(), in->Get<float>()};
  if (!GetCount(in, kDataGroupBytes, kDataGroupsMax, &spec->data_groups)) return cut;
  for (DataGroup& group : spec->data_groups) group.rank_mask = in->Get<uint64_t>();
  if (!GetCount(in, kChunkBytes, kChunksMax, &spec->chunks)) return cut;
  for (ChunkSpec& chunk : spec->chunks) chunk = {in->Get<uint64_t>(), in->Get<uint32_t>()};
  if (!GetCount(in, kParameterBytesMin, kParametersMax, &spec->parameters)) return cut;
  for (ParameterSpec& parameter : spec->parameters) {
    if (!GetParameter(in, &parameter)) return cut;
  }
  if (!GetFrozen(in, &spec->frozen)) return cut;
  if (in->ok() && in->rest().empty()) return Status();
  spec->states_on_gpu = in->Get<uint32_t>();
  if (in->ok() && spec->states_on_gpu == 0)
    return Bad("the job description ends with a zero that is never written");
  return in->Finished() ? Status() : cut;
}

uint64_t Mix(uint64_t x) {  // the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

uint32_t JobSpec::ShardCount(ChunkId chunk) const {
  return static_cast<uint32_t>(std::popcount(data_groups[chunks[chunk].data_group].rank_mask));
}

uint32_t JobSpec::ShardIndex(ChunkId chunk, Rank rank) const {
  TP_CHECK(IsMember(chunk, rank), "the rank has no shard of this chunk");
  const uint64_t below = (uint64_t{1} << rank) - 1;
  return static_cast<uint32_t>(
      std::popcount(data_groups[chunks[chunk].data_group].rank_mask & below));
}

bool JobSpec::IsMember(ChunkId chunk, Rank rank) const {
  return rank < kRanksMax && (data_groups[chunks[chunk].data_group].rank_mask >> rank & 1) != 0;
}

uint64_t JobSpec::ShardElements(ChunkId chunk) const {
  return chunks[chunk].elements / ShardCount(chunk);
}

uint64_t JobSpec::TotalElements() const {
  uint64_t total = 0;
  for (const ChunkSpec& chunk : chunks) total += chunk.elements;
  return total;
}

uint64_t JobSpec::ParameterCount() const {
  if (sums.made != nullptr) return sums.made->parameter_count;
  TP_POINT("shm.spec_summed");
  uint64_t total = 0;
  for (const ParameterSpec& parameter : parameters) total += parameter.element_count;
  return total;
}

Status Validate(const JobSpec& spec) {
  TP_RETURN_IF_ERROR(CheckCounts(spec));
  TP_RETURN_IF_ERROR(CheckFloats(spec));
  TP_RETURN_IF_ERROR(CheckChunks(spec));
  TP_RETURN_IF_ERROR(CheckParameters(spec));
  TP_RETURN_IF_ERROR(CheckFrozen(spec));
  return CheckGpuStates(spec);
}

std::vector<std::byte> Encode(const JobSpec& spec) {
  ByteWriter out;
  out.Put(kSpecMagic);
  out.PutString(spec.name);
  out.Put(spec.world);
  out.Put(static_cast<uint32_t>(spec.dtype));
  PutOptimizer(spec.optimizer, &out);
  out.Put(spec.max_grad_norm);
  out.Put(spec.micro_batches);
  out.Put(spec.loss_scaling);
  out.Put(spec.rcache_bytes);
  out.Put(static_cast<uint32_t>(spec.parameter_groups.size()));
  for (const ParameterGroup& group : spec.parameter_groups) {
    out.Put(group.lr_scale);
    out.Put(group.weight_decay);
  }
  out.Put(static_cast<uint32_t>(spec.data_groups.size()));
  for (const DataGroup& group : spec.data_groups) out.Put(group.rank_mask);
  out.Put(static_cast<uint32_t>(spec.chunks.size()));
  for (const ChunkSpec& chunk : spec.chunks) {
    out.Put(chunk.elements);
    out.Put(chunk.data_group);
  }
  out.Put(static_cast<uint32_t>(spec.parameters.size()));
  for (const ParameterSpec& parameter : spec.parameters) PutParameter(parameter, &out);
  PutFrozen(spec.frozen, &out);
  // Programs that do not know the number refuse a job that has one, and read all others as before.
  if (spec.states_on_gpu > 0) out.Put(spec.states_on_gpu);
  return out.Take();
}

Result<JobSpec> Decode(std::span<const std::byte> bytes) {
  if (bytes.size() > kSpecBytesMax) return Bad("the job description is larger than 64 MiB");
  ByteReader in(bytes);
  if (in.Get<uint32_t>() != kSpecMagic) return Bad("the bytes are not a job description");
  JobSpec spec;
  GetScalars(&in, &spec);
  TP_RETURN_IF_ERROR(GetRecords(&in, &spec));
  TP_RETURN_IF_ERROR(Validate(spec));
  spec.sums.made = MakeSums(spec);
  return spec;
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

DType GradientSlotType(const JobSpec& spec) {
  return spec.micro_batches > 1 ? DType::kF32 : spec.dtype;
}

PlaneBytes PlaneBytesOf(const JobSpec& spec, ChunkId chunk) {
  const uint64_t elements = spec.chunks[chunk].elements;
  const StateForm form = spec.optimizer.states;
  PlaneBytes bytes;
  bytes.master = MasterBytes(form, elements);
  if (NeedsMomentum(spec.optimizer)) bytes.momentum = MomentBytes(form, elements);
  if (NeedsVariance(spec.optimizer)) bytes.variance = MomentBytes(form, elements);
  if (spec.dtype != DType::kF32) bytes.param16 = elements * BytesOf(spec.dtype);
  bytes.gradient = elements * BytesOf(GradientSlotType(spec));
  return bytes;
}

uint64_t StagingBytes(const JobSpec& spec, uint64_t shard_elements) {
  const uint64_t gradients = spec.micro_batches > 1 ? shard_elements * BytesOf(spec.dtype) : 0;
  const uint64_t weights = IsSplit(spec.optimizer.states)
                               ? std::min(shard_elements * sizeof(float), kSplitPutBytesMax)
                               : 0;
  return std::max(gradients, weights);
}

uint64_t ExtentCount(const JobSpec& spec) {
  const uint64_t planes = 2 + (NeedsMomentum(spec.optimizer) ? 1 : 0) +
                          (NeedsVariance(spec.optimizer) ? 1 : 0) +
                          (spec.dtype != DType::kF32 ? 1 : 0);
  uint64_t members = 0;  // ranks with a shard
  for (const ChunkSpec& chunk : spec.chunks)
    members |= spec.data_groups[chunk.data_group].rank_mask;
  const uint64_t staging =
      StagingBytes(spec, 1) > 0 ? static_cast<uint64_t>(std::popcount(members)) : 0;
  return 1 + staging + planes * spec.chunks.size();
}

StateBytes StateBytesOf(const JobSpec& spec) {
  if (spec.sums.made != nullptr && !TP_PLANTED("shm.summed_each_time"))
    return spec.sums.made->states;
  TP_POINT("shm.spec_summed");
  StateBytes sum;
  uint64_t pieces = 0, shards = 0;
  for (ChunkId id = 0; id < spec.chunks.size(); ++id) {
    const PlaneBytes planes = PlaneBytesOf(spec, id);
    sum.master += PooledBytes(planes.master);
    sum.momentum += PooledBytes(planes.momentum);
    sum.variance += PooledBytes(planes.variance);
    sum.param16 += PooledBytes(planes.param16);
    sum.gradient += PooledBytes(planes.gradient);
    pieces += DivideUp(spec.chunks[id].elements, kPieceElements);
    shards += spec.ShardCount(id);
  }
  for (const uint64_t shard : LargestShards(spec))
    sum.staging += RoundUp(StagingBytes(spec, shard), kPageBytes);
  const uint64_t tables = spec.chunks.size() * kChunkRecordBytes +
                          spec.world * kStagingRecordBytes + pieces * kProgressBytes +
                          shards * kShardRecordBytes;
  const uint64_t words = spec.parameters.size() + ExtentCount(spec) + spec.frozen.size();
  sum.records = RoundUp(kJobRecordBytes + tables + words * 8 + Encode(spec).size(), kPageBytes);
  return sum;
}

}  // namespace tidepool::shm
