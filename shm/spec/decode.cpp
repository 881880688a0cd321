#include "shm/spec/decode.h"

#include <string>
#include <utility>
#include <vector>

#include "shm/byte_codec.h"
#include "shm/spec/encode.h"
#include "shm/spec/frozen.h"
#include "shm/spec/make_sums.h"
#include "shm/spec/validate.h"

namespace tidepool::shm {
namespace {

// Bytes of one record in an encoded spec, without names and dims: bounds the allocations that a
// count in hostile bytes can cause.
constexpr size_t kParameterGroupBytes = 8, kDataGroupBytes = 8, kChunkBytes = 12,
                 kParameterBytesMin = 4 + 4 + 4 + 4 + 8 + 8;

Status Unreadable(std::string what) {
  return Status(ErrorId::kJobSpecBad, std::move(what));
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

// Reads the types of chunks that do not have the job's dtype.
void GetDTypes(ByteReader* in, JobSpec* spec) {
  spec->f32_chunks = in->Get<uint32_t>();
  for (FrozenChunkSpec& chunk : spec->frozen) {
    const auto dtype = in->Get<uint8_t>();
    chunk.dtype = static_cast<DType>(IsDType(dtype) ? dtype : 0xff);
  }
}

Status GetRecords(ByteReader* in, JobSpec* spec) {
  const Status cut = Unreadable("the job description is cut short or has a count out of range");
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

  if (!GetFrozen(in, spec->dtype, &spec->frozen)) return cut;
  if (in->ok() && in->rest().empty()) return Status();
  spec->states_on_gpu = in->Get<uint32_t>();
  if (in->ok() && in->rest().empty() && spec->states_on_gpu == 0)
    return Unreadable("the job description ends with a zero that is never written");
  if (in->Finished()) return Status();

  GetDTypes(in, spec);
  if (in->ok() && !in->rest().empty()) {
    spec->sums_gradients = in->Get<uint32_t>();
    if (in->ok() && spec->sums_gradients != 1)
      return Unreadable("the job description ends with a number that is never written");
  }
  if (!in->Finished()) return cut;
  return spec->HasOwnDTypes() || spec->sums_gradients != 0
             ? Status()
             : Unreadable("the job description ends with types that are never written");
}

}  // namespace

Result<JobSpec> Decode(std::span<const std::byte> bytes) {
  if (bytes.size() > kSpecBytesMax) return Unreadable("the job description is larger than 64 MiB");
  ByteReader in(bytes);
  if (in.Get<uint32_t>() != kSpecMagic) return Unreadable("the bytes are not a job description");
  JobSpec spec;
  GetScalars(&in, &spec);
  TP_RETURN_IF_ERROR(GetRecords(&in, &spec));
  TP_RETURN_IF_ERROR(Validate(spec));
  spec.sums.made = MakeSums(spec);
  return spec;
}

}  // namespace tidepool::shm
