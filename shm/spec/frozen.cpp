#include "shm/spec/frozen.h"

#include <set>
#include <string>
#include <utility>

#include "base/point.h"
#include "shm/spec/spec_sums.h"

namespace tidepool::shm {
namespace {

constexpr uint64_t kFrozenAlignElements = 16;
constexpr uint64_t kFrozenElementsMax = uint64_t{1} << 56;  // of a job
constexpr size_t kFrozenSpecBytes = 8 + sizeof(ContentHash);

}  // namespace

uint64_t FrozenPoolBytes(const JobSpec& spec) {
  if (spec.sums.made != nullptr) return spec.sums.made->frozen_pool_bytes;
  if (spec.frozen.empty()) return 0;
  TP_POINT("shm.spec_summed");
  std::set<std::pair<uint64_t, ContentHash>> counted;
  uint64_t sum = 0;
  for (const FrozenChunkSpec& chunk : spec.frozen) {
    const uint64_t bytes = FrozenBytes(chunk);
    if (counted.emplace(bytes, chunk.content).second) sum += FrozenExtentBytes(bytes);
  }
  return sum;
}

Status CheckFrozen(const JobSpec& spec) {
  if (spec.frozen.size() > kChunksMax - spec.chunks.size()) {
    return Status(ErrorId::kJobSpecBad, "the job has " + std::to_string(spec.frozen.size()) +
                                            " frozen chunks; it may have " +
                                            std::to_string(kChunksMax) + " chunks in all");
  }

  uint64_t total = 0;
  for (size_t i = 0; i < spec.frozen.size(); ++i) {
    const uint64_t elements = spec.frozen[i].elements;
    if (!IsDType(static_cast<uint32_t>(spec.frozen[i].dtype)))
      return Status(ErrorId::kJobSpecBad,
                    "frozen chunk " + std::to_string(i) + " has an unknown element type");
    if (elements == 0 || elements % kFrozenAlignElements != 0) {
      return Status(ErrorId::kJobSpecBad, "frozen chunk " + std::to_string(i) + " has " +
                                              std::to_string(elements) +
                                              " elements; allowed are positive multiples of " +
                                              std::to_string(kFrozenAlignElements));
    }

    if (elements > kFrozenElementsMax - total)
      return Status(ErrorId::kJobSpecBad, "the frozen chunks have more than 2^56 elements");
    total += elements;
  }
  return Status();
}

void PutFrozen(const std::vector<FrozenChunkSpec>& frozen, ByteWriter* out) {
  out->Put(static_cast<uint32_t>(frozen.size()));
  for (const FrozenChunkSpec& chunk : frozen) {
    out->Put(chunk.elements);
    out->PutBytes(chunk.content.bytes);
  }
}

bool GetFrozen(ByteReader* in, DType dtype, std::vector<FrozenChunkSpec>* frozen) {
  const auto count = in->Get<uint32_t>();
  if (!in->ok() || count > kChunksMax || count > in->rest().size() / kFrozenSpecBytes) return false;
  frozen->resize(count);
  for (FrozenChunkSpec& chunk : *frozen) {
    chunk.elements = in->Get<uint64_t>();
    chunk.dtype = dtype;
    in->GetBytes(chunk.content.bytes);
  }
  return in->ok();
}

}  // namespace tidepool::shm
