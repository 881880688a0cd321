#include "memserver/residency/job_states.h"

#include <algorithm>
#include <bit>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::memserver {
namespace {

constexpr uint64_t kMasterBytes = 4;  // an element of master, momentum or variance

float* Floats(const Extent& extent) {
  return reinterpret_cast<float*>(extent.data);
}

}  // namespace

Result<std::unique_ptr<JobStates>> JobStates::Create(std::shared_ptr<const shm::JobSpec> spec, HostPool* pool) {
  std::unique_ptr<JobStates> states(new JobStates(std::move(spec), pool));
  const std::vector<uint64_t> sizes = states->ExtentSizes();
  if (!pool->Take(sizes, &states->extents_)) {
    const shm::StateBytes bytes = shm::StateBytesOf(states->spec());
    return Status(ErrorId::kPoolFull, "job " + states->spec().name + " needs " + FormatBytes(bytes.total()) +
                                          " of host memory; that much is free, but in runs of at most " +
                                          FormatBytes(pool->largest_free_bytes()));
  }
  for (const Extent& extent : states->extents_) states->pool_bytes_ += extent.bytes;
  TP_CHECK(states->pool_bytes_ == shm::StateBytesOf(states->spec()).total(), "admission counts exactly what a job takes");
  states->LayOutChunks();
  states->LayOutPlanes();
  states->LayOutRecords();
  return states;
}

JobStates::JobStates(std::shared_ptr<const shm::JobSpec> spec, HostPool* pool)
    : spec_(std::move(spec)), pool_(pool), gradient_type_(shm::GradientSlotType(*spec_)) {}

JobStates::~JobStates() {
  pool_->Release(extents_);
}

// In the order in which LayOutPlanes takes them back: records, staging, then the planes of each chunk.
std::vector<uint64_t> JobStates::ExtentSizes() const {
  std::vector<uint64_t> sizes{shm::StateBytesOf(*spec_).records};
  if (spec_->micro_batches > 1) {
    for (Rank rank = 0; rank < spec_->world; ++rank) {
      uint64_t largest = 0;
      for (ChunkId id = 0; id < spec_->chunks.size(); ++id) {
        if (spec_->IsMember(id, rank)) largest = std::max(largest, spec_->ShardElements(id));
      }
      if (largest > 0) sizes.push_back(RoundUp(largest * BytesOf(spec_->dtype), kPageBytes));
    }
  }
  for (const shm::ChunkSpec& chunk : spec_->chunks) {
    for (int plane = 0; plane < 3; ++plane) sizes.push_back(RoundUp(chunk.elements * kMasterBytes, kPageBytes));
    if (spec_->dtype != DType::kF32) sizes.push_back(RoundUp(chunk.elements * BytesOf(spec_->dtype), kPageBytes));
    sizes.push_back(RoundUp(chunk.elements * BytesOf(gradient_type_), kPageBytes));
  }
  return sizes;
}

void JobStates::LayOutChunks() {
  runs_.reserve(spec_->parameters.size());
  for (const shm::ParameterSpec& parameter : spec_->parameters) {
    runs_.push_back({parameter.element_begin, parameter.element_count, parameter.group});
  }
  chunks_.resize(spec_->chunks.size());
  uint32_t intakes = 0;
  ParameterId parameter = 0;
  for (ChunkId id = 0; id < chunks_.size(); ++id) {
    Chunk& chunk = chunks_[id];
    chunk.elements = spec_->chunks[id].elements;
    chunk.data_group = spec_->chunks[id].data_group;
    chunk.rank_mask = spec_->data_groups[chunk.data_group].rank_mask;
    chunk.shards = spec_->ShardCount(id);
    chunk.shard_elements = spec_->ShardElements(id);
    chunk.first_intake = intakes;
    intakes += chunk.shards;
    chunk.pieces = static_cast<uint32_t>(DivideUp(chunk.elements, shm::kPieceElements));
    chunk.first_parameter = parameter;
    while (parameter < spec_->parameters.size() && spec_->parameters[parameter].chunk == id) ++parameter;
    chunk.parameters = parameter - chunk.first_parameter;
  }
  intakes_.resize(intakes);
}

void JobStates::LayOutPlanes() {
  size_t next = 1;
  staging_.assign(spec_->world, nullptr);
  if (spec_->micro_batches > 1) {
    uint64_t members = 0;
    for (const Chunk& chunk : chunks_) members |= chunk.rank_mask;
    for (Rank rank = 0; rank < spec_->world; ++rank) {
      if ((members >> rank & 1) != 0) staging_[rank] = extents_[next++].data;
    }
  }
  for (Chunk& chunk : chunks_) {
    chunk.planes.master = Floats(extents_[next++]);
    chunk.planes.momentum = Floats(extents_[next++]);
    chunk.planes.variance = Floats(extents_[next++]);
    if (spec_->dtype != DType::kF32) chunk.planes.param16 = extents_[next++].data;
    chunk.planes.gradient = extents_[next++].data;
  }
  TP_CHECK(next == extents_.size(), "each extent has one use");
}

void JobStates::LayOutRecords() {
  std::byte* at = extents_.front().data;
  record_ = reinterpret_cast<JobRecord*>(at);
  at += shm::kJobRecordBytes;
  for (Chunk& chunk : chunks_) {
    chunk.record = reinterpret_cast<ChunkRecord*>(at);
    at += shm::kChunkRecordBytes;
  }
  for (Chunk& chunk : chunks_) {
    chunk.progress_words = at;
    at += chunk.pieces * sizeof(uint64_t);
  }
  norm_sums_ = {reinterpret_cast<double*>(at), spec_->parameters.size()};
  at += norm_sums_.size_bytes();
  TP_CHECK(at <= extents_.front().data + extents_.front().bytes, "the records fit their extent");
}

void JobStates::WriteFirstRecords(JobId job, uint64_t fingerprint) {
  record_ = new (record_) JobRecord{};
  record_->layout = kKeptLayout;
  record_->job = job;
  record_->chunk_count = static_cast<uint32_t>(chunks_.size());
  record_->fingerprint = fingerprint;
  record_->parameter_count = spec_->parameters.size();
  record_->steps[0].loss_scale = 1;
  for (ChunkId id = 0; id < chunks_.size(); ++id) {
    auto* record = new (chunks_[id].record) ChunkRecord{};
    record->chunk = id;
    record->elements = chunks_[id].elements;
    record->version.store(kNoVersion, std::memory_order_relaxed);
    record->magic = kChunkRecordMagic;
  }
  record_->magic.store(kJobRecordMagic, std::memory_order_release);
}

const std::byte* JobStates::ParameterBytes(const Chunk& chunk, uint64_t element) const {
  if (chunk.planes.param16 == nullptr) return reinterpret_cast<const std::byte*>(chunk.planes.master + element);
  return chunk.planes.param16 + element * BytesOf(spec_->dtype);
}

std::byte* JobStates::GradientBytes(const Chunk& chunk, uint64_t element) const {
  return chunk.planes.gradient + element * BytesOf(gradient_type_);
}

void JobStates::MarkLoaded(Chunk* chunk) {
  TP_CHECK(chunk->state == ChunkState::kEmpty && chunk->version() == kNoVersion, "weights arrive once");
  chunk->state = ChunkState::kResident;
  chunk->record->version.store(0, std::memory_order_release);
  ++chunks_loaded_;
}

void JobStates::Publish(Chunk* chunk, Version version) {
  TP_CHECK(version == chunk->version() + 1 && version == sealed_version(), "versions neither skip nor outrun the sealed step");
  chunk->state = ChunkState::kResident;
  chunk->ranks_cached = 0;
  chunk->record->version.store(version, std::memory_order_release);
}

void JobStates::ForgetOpenStep() {
  for (Chunk& chunk : chunks_) {
    chunk.shards_stored = 0;
    if (chunk.state == ChunkState::kGradients || chunk.state == ChunkState::kComplete) chunk.state = ChunkState::kResident;
  }
  for (ShardIntake& intake : intakes_) intake.micro_batches_accepted = intake.micro_batches_stored = 0;
}

}  // namespace tidepool::memserver
