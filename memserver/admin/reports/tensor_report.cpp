// The answer of /v1/tensors.
#include "base/text/json_writer.h"
#include "memserver/admin/reports/report.h"

namespace tidepool::memserver {
namespace {

bool Fits(const shm::ParameterSpec& tensor, const TensorPage& page) {
  if (page.chunk && tensor.chunk != *page.chunk) return false;
  return tensor.name.find(page.name) != std::string::npos;
}

void WriteTensor(const JobRow& job, const shm::ParameterSpec& tensor, JsonWriter* json) {
  const ChunkRow& chunk = job.chunks[tensor.chunk];
  json->BeginObject().Field("job", job.job).Field("name", tensor.name).Key("dims").BeginArray();
  for (const uint64_t dim : tensor.dims) json->Uint(dim);
  json->EndArray()
      .Field("elements", tensor.element_count)
      .Field("chunk", tensor.chunk)
      .Field("element_begin", tensor.element_begin);
  json->Field("state", NameOf(chunk.state))
      .Field("version", chunk.version)
      .Field("states_on_nvme", chunk.spilled);
  if (chunk.on_gpu) json->Field("states_on_gpu", true);

  json->Key("ranks_cached").BeginArray();
  for (Rank rank = 0; rank < shm::kRanksMax; ++rank) {
    if ((chunk.ranks_cached >> rank & 1) != 0) json->Uint(rank);
  }
  json->EndArray().EndObject();
}

}  // namespace

std::string TensorsReport(const TensorPage& page) {
  JsonWriter json;
  std::string next;
  uint64_t shown = 0;
  json.BeginObject().Key("tensors").BeginArray();
  for (const JobRow* job : page.jobs) {
    if (job->job < page.from_job || job->spec == nullptr) continue;

    const std::vector<shm::ParameterSpec>& tensors = job->spec->parameters;
    for (uint64_t i = job->job == page.from_job ? page.from_tensor : 0;
         i < tensors.size() && next.empty(); ++i) {
      if (!Fits(tensors[i], page)) continue;
      if (shown == page.limit) {
        next = std::to_string(job->job) + ":" + std::to_string(i);
      } else {
        WriteTensor(*job, tensors[i], &json);
        ++shown;
      }
    }
  }

  json.EndArray().Key("next_cursor");
  next.empty() ? json.Null() : json.String(next);
  return json.EndObject().Take();
}

}  // namespace tidepool::memserver
