#include "memserver/residency/job_states.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/formats/crc32c.h"
#include "base/planted.h"
#include "base/units.h"
#include "shm/spec/encode.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/state_bytes.h"

namespace tidepool::memserver {
namespace {

// In a list of extents: a plane that has no place in the pool.
bool IsElsewhere(uint64_t offset) {
  return offset > kSpilledExtent - kNvmeDirectoriesMax || offset == kGpuExtent;
}

}  // namespace

Result<std::unique_ptr<JobStates>> JobStates::Create(std::shared_ptr<const shm::JobSpec> spec,
                                                     HostPool* pool, const Placement& placement) {
  std::unique_ptr<JobStates> states(new JobStates(std::move(spec), pool));
  states->placement_ = placement;
  if (!states->TakeNewExtents()) {
    return Status(ErrorId::kPoolFull,
                  "job " + states->spec().name + " needs " + FormatBytes(states->BytesToTake()) +
                      " of host memory; that much is free, but in runs of at most " +
                      FormatBytes(pool->largest_free_bytes()));
  }
  states->LayOut();
  return states;
}

Result<std::unique_ptr<JobStates>> JobStates::Recover(const KeptJob& kept, HostPool* pool) {
  std::unique_ptr<JobStates> states(new JobStates(kept.spec, pool));
  const Status misplaced(
      ErrorId::kKeptMemoryBad,
      "job " + std::to_string(kept.job) + " in kept memory names a place that it cannot have");
  if (!states->ReadPlacement(kept.extent_offsets) || !states->TakeExtents(kept.extent_offsets))
    return misplaced;
  states->NoteDemoted(kept.demoted);
  states->LayOut();
  // Weights land nowhere any more in those that were demoted.
  for (ChunkId id = kept.demoted; id < states->chunks().size(); ++id) {
    const Chunk& chunk = states->chunk(id);
    const uint64_t param16_bytes = RoundUp(chunk.elements * BytesOf(kept.spec->dtype), kPageBytes);
    if (chunk.away() && states->LandsAcrossPlanes(id) &&
        chunk.planes.gradient != chunk.planes.param16 + param16_bytes)
      return misplaced;
  }
  TP_RETURN_IF_ERROR(states->ReadChunks(kept.sealed_version));
  return states;
}

bool JobStates::LandsAcrossPlanes(ChunkId id) const {
  return chunks_[id].planes.master == nullptr && spec_->micro_batches == 1 && !is_split() &&
         !window_.Covers(id);
}

bool JobStates::TakeExtents(std::span<const uint64_t> offsets) {
  const std::vector<uint64_t> sizes = ExtentSizes();
  if (sizes.size() != offsets.size()) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if ((sizes[i] == 0) != IsElsewhere(offsets[i])) return false;
    if (sizes[i] == 0) {
      extents_.push_back({nullptr, 0, offsets[i]});
    } else if (!pool_->TakeAt(offsets[i], sizes[i], &extents_)) {
      return false;
    }
  }
  return true;
}

// Which chunks are spilled, and where to, is told by the places that their planes do not have.
bool JobStates::ReadPlacement(std::span<const uint64_t> offsets) {
  const uint64_t planes = PlanesListed(*spec_) / spec_->chunks.size();
  if (offsets.size() != ExtentSizes().size()) return false;
  std::span<const uint64_t> rest = offsets.last(PlanesListed(*spec_));
  std::vector<uint64_t> weights;
  for (ChunkId id = 0; id < spec_->chunks.size(); ++id, rest = rest.subspan(planes)) {
    if (spec_->dtype != DType::kF32) weights.push_back(rest[planes - 2]);
    const auto gone =
        std::find_if(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(planes), IsElsewhere);
    const bool is_gone = gone != rest.begin() + static_cast<std::ptrdiff_t>(planes);
    if (shm::IsOnGpu(*spec_, id) != (is_gone && *gone == kGpuExtent)) return false;
    if (shm::IsOnGpu(*spec_, id)) continue;
    if (!is_gone) {
      if (placement_.spills()) return false;
      continue;
    }
    if (!shm::MaySpill(*spec_)) return false;
    if (!placement_.spills()) placement_.first_spilled = id;
    const auto directory = static_cast<uint8_t>(kSpilledExtent - *gone);
    placement_.directories.push_back(directory);
    placement_.nvme_bytes.resize(
        std::max<size_t>(placement_.nvme_bytes.size(), directory + size_t{1}));
    placement_.nvme_bytes[directory] += shm::SpilledChunkBytes(*spec_, id);
  }
  return ReadWeightPlacement(weights);
}

void JobStates::LayOut() {
  pool_bytes_ = spacing_.bytes();
  for (const Extent& extent : extents_) pool_bytes_ += extent.bytes;
  // By a job that was found in kept memory.
  const uint64_t not_taken = SlackToTake() - spacing_.bytes();
  TP_CHECK(pool_bytes_ + not_taken == BytesToTake(), "admission counts exactly what a job takes");
  LayOutChunks();
  LayOutPlanes();
  LayOutRecords();
}

// The rule of trust, chunk by chunk: a stamp that fits its name, and the sealed version or the one
// before it.
Status JobStates::ReadChunks(Version sealed) {
  for (ChunkId id = 0; id < chunks_.size(); ++id) {
    Chunk& chunk = chunks_[id];
    const ChunkRecord& record = *chunk.record;
    const auto version = VersionOf(record);
    const bool named = record.chunk == id && record.elements == chunk.elements &&
                       record.job_nonce == record_->nonce;
    const bool possible =
        version &&
        (*version == kNoVersion ? sealed == 0 : *version == sealed || *version + 1 == sealed);
    if (!named || !possible) {
      const std::string found = version && named ? "version " + std::to_string(*version)
                                                 : "a name that does not fit its check";
      return Status(ErrorId::kKeptMemoryBad, "chunk " + std::to_string(id) +
                                                 " of a job at version " + std::to_string(sealed) +
                                                 " has " + found);
    }
    chunk.version = *version;
    if (chunk.spilled) TP_RETURN_IF_ERROR(stand_ins_.Recover(id, record));
    if (*version == kNoVersion) continue;
    chunk.state = *version == sealed ? ChunkState::kResident : ChunkState::kUpdateDue;
    ++chunks_loaded_;
  }
  return Status();
}

JobStates::JobStates(std::shared_ptr<const shm::JobSpec> spec, HostPool* pool)
    : spec_(std::move(spec)),
      pool_(pool),
      encoded_spec_(shm::Encode(*spec_)),
      gradient_type_(shm::GradientSlotType(*spec_)),
      spacing_(pool),
      stand_ins_(spec_.get(), pool) {}

JobStates::~JobStates() {
  std::erase_if(extents_, [](const Extent& extent) { return extent.bytes == 0; });
  pool_->Release(extents_);
  if (TP_PLANTED("residency.released_twice")) pool_->Release(extents_);
}

// In the order in which LayOutPlanes takes them back: records, staging, then the planes of each
// chunk; 0 for one that is spilled.
std::vector<uint64_t> JobStates::ExtentSizes() const {
  std::vector<uint64_t> sizes{shm::StateBytesOf(*spec_).records};
  if (shm::StagingBytes(*spec_, 1) > 0) {
    for (const uint64_t largest : shm::LargestShards(*spec_)) {
      if (largest > 0) sizes.push_back(RoundUp(shm::StagingBytes(*spec_, largest), kPageBytes));
    }
  }
  for (ChunkId id = 0; id < spec_->chunks.size(); ++id) {
    const auto all = InOrder(shm::PlaneBytesOf(*spec_, id));
    shm::PlaneBytes left = shm::HostPlaneBytesOf(*spec_, id, placement_.IsSpilled(id));
    left.param16 = WeightBytesListed(id, left.param16);
    const auto host = InOrder(left);
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] > 0) sizes.push_back(RoundUp(host[i], kPageBytes));
    }
  }
  return sizes;
}

void JobStates::LayOutChunks() {
  runs_.reserve(spec_->parameters.size());
  for (const shm::ParameterSpec& parameter : spec_->parameters) {
    runs_.push_back({parameter.element_begin, parameter.element_count, parameter.group,
                     RoundingSeedOf(spec_->optimizer, parameter.name)});
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
    while (parameter < spec_->parameters.size() && spec_->parameters[parameter].chunk == id)
      ++parameter;
    chunk.parameters = parameter - chunk.first_parameter;
    chunk.spilled = placement_.IsSpilled(id);
    chunk.on_gpu = shm::IsOnGpu(*spec_, id);
    if (chunk.spilled) chunk.spill = {placement_.DirectoryOf(id), 0, shm::SlotBytes(*spec_, id)};
  }
  intakes_.resize(intakes);
}

void JobStates::LayOutPlanes() {
  size_t next = 1;
  staging_.assign(spec_->world, nullptr);
  if (shm::StagingBytes(*spec_, 1) > 0) {
    uint64_t members = 0;
    for (const Chunk& chunk : chunks_) members |= chunk.rank_mask;
    for (Rank rank = 0; rank < spec_->world; ++rank) {
      if ((members >> rank & 1) != 0) staging_[rank] = extents_[next++].data;
    }
  }
  for (ChunkId id = 0; id < chunks_.size(); ++id) {
    ChunkPlanes& planes = chunks_[id].planes;
    const std::array<std::byte**, 5> places{&planes.master, &planes.momentum, &planes.variance,
                                            &planes.param16, &planes.gradient};
    const auto bytes = InOrder(shm::PlaneBytesOf(*spec_, id));
    for (size_t i = 0; i < places.size(); ++i) {
      if (bytes[i] > 0) *places[i] = extents_[next++].data;
    }
  }
  TP_CHECK(next == extents_.size(), "each extent has one use");
  LayOutWindow();
}

void JobStates::LayOutRecords() {
  std::byte* records = extents_.front().data;
  const RecordsLayout layout = RecordsLayoutOf(*spec_, encoded_spec_.size());
  TP_CHECK(layout.end <= extents_.front().bytes, "the records fit their extent");
  record_ = reinterpret_cast<JobRecord*>(records);
  staging_records_ = reinterpret_cast<StagingRecord*>(records + layout.staging);
  std::byte* progress = records + layout.progress;
  for (ChunkId id = 0; id < chunks_.size(); ++id) {
    chunks_[id].record = reinterpret_cast<ChunkRecord*>(records + layout.chunks) + id;
    chunks_[id].progress_words = progress;
    progress += chunks_[id].pieces * shm::kProgressBytes;
  }
  for (size_t i = 0; i < intakes_.size(); ++i)
    intakes_[i].record = reinterpret_cast<ShardRecord*>(records + layout.shards) + i;
  norm_sums_ = {reinterpret_cast<double*>(records + layout.norm_sums), spec_->parameters.size()};
}

void JobStates::WriteFirstRecords(const JobIdentity& identity) {
  std::byte* records = extents_.front().data;
  const RecordsLayout layout = RecordsLayoutOf(*spec_, encoded_spec_.size());
  std::memcpy(records + layout.spec, encoded_spec_.data(), encoded_spec_.size());
  auto* offsets = reinterpret_cast<uint64_t*>(records + layout.extents);
  const size_t places = extents_.size() + frozen_.size();
  for (size_t i = 0; i < places; ++i)
    offsets[i] = i < extents_.size() ? extents_[i].offset
                                     : frozen_[i - extents_.size()].chunk->extent.offset;
  record_ = new (record_) JobRecord{};
  record_->layout = kKeptLayout;
  record_->job = identity.job;
  record_->nonce = identity.nonce;
  record_->fingerprint = identity.fingerprint;
  record_->uid = identity.uid;
  record_->parameter_count = spec_->parameters.size();
  record_->chunk_count = static_cast<uint32_t>(chunks_.size());
  record_->extent_count = static_cast<uint32_t>(places);
  record_->extents_at = layout.extents;
  record_->spec_at = layout.spec;
  record_->spec_bytes = encoded_spec_.size();
  record_->spec_crc = Crc32c(encoded_spec_);
  record_->extents_crc = Crc32c(std::as_bytes(std::span(offsets, places)));
  record_->crc = CrcOf(*record_);
  WriteNote(identity.note, record_);
  record_->steps[0].loss_scale = 1;
  record_->steps[0].crc = CrcOf(record_->steps[0]);
  for (ChunkId id = 0; id < chunks_.size(); ++id) {
    auto* record = new (chunks_[id].record) ChunkRecord{};
    record->magic = kChunkRecordMagic;
    record->chunk = id;
    record->job_nonce = identity.nonce;
    record->elements = chunks_[id].elements;
    record->stamp.store(StampOf(*record, kNoVersion), std::memory_order_relaxed);
  }
  for (Rank rank = 0; rank < spec_->world; ++rank) new (&staging_records_[rank]) StagingRecord{};
  for (ShardIntake& intake : intakes_) new (intake.record) ShardRecord{};
  record_->magic.store(kJobRecordMagic, std::memory_order_release);
}

void JobStates::SetPut(ChunkId id, Rank rank, uint64_t elements) {
  intake(id, rank).record->put_elements.store(elements, std::memory_order_release);
}

void JobStates::AddStored(ChunkId id, Rank rank) {
  ShardIntake& shard = intake(id, rank);
  ++shard.micro_batches_stored;
  shard.record->gradients.store(GradientWord(open_step(), shard.micro_batches_stored),
                                std::memory_order_release);
}

void JobStates::SetRank(Rank rank, const RankIdentity& identity) {
  RankRecord& record = record_->ranks[rank];
  // A rank that has come back must not be unknown for a moment.
  if (record.nonce.load(std::memory_order_relaxed) == identity.nonce) return;
  record.nonce.store(0, std::memory_order_release);
  record.process_start = identity.process_start;
  record.pid = identity.pid;
  record.nonce.store(identity.nonce, std::memory_order_release);
}

void JobStates::ClearRank(Rank rank) {
  record_->ranks[rank].nonce.store(0, std::memory_order_release);
}

void JobStates::NextAttempt() {
  record_->open_step.store(OpenStepWord(sealed_version(), open_step() + 1),
                           std::memory_order_release);
}

void JobStates::OpenNextStep() {
  record_->open_step.store(OpenStepWord(sealed_version(), 0), std::memory_order_release);
}

const std::byte* JobStates::ParameterBytes(const Chunk& chunk, uint64_t element) const {
  if (chunk.planes.param16 == nullptr) return chunk.planes.master + element * sizeof(float);
  return chunk.planes.param16 + element * BytesOf(spec_->dtype);
}

uint64_t JobStates::plane_bytes(ChunkId id) const {
  uint64_t sum = 0;
  for (const uint64_t bytes : InOrder(shm::PlaneBytesOf(*spec_, id))) sum += bytes;
  return sum;
}

std::byte* JobStates::PutBytes(ChunkId id, uint64_t element) const {
  const ChunkPlanes& planes = chunks_[id].planes;
  std::byte* plane = window_.Covers(id) ? window_.LandingOf(id) : planes.master;
  if (plane == nullptr) plane = LandsAcrossPlanes(id) ? planes.param16 : planes.gradient;
  return plane + MasterBytes(spec_->optimizer.states, element);
}

std::byte* JobStates::GradientBytes(const Chunk& chunk, uint64_t element) const {
  return chunk.planes.gradient + element * BytesOf(gradient_type_);
}

uint64_t JobStates::EpochOf(const Chunk& chunk) const {
  const bool due = chunk.version != sealed_version() && last_step().skipped == 0;
  return epoch() - (due ? 1 : 0);
}

void JobStates::MarkLoaded(Chunk* chunk) {
  TP_CHECK(chunk->state == ChunkState::kEmpty && chunk->version == kNoVersion,
           "weights arrive once");
  chunk->state = ChunkState::kResident;
  SetVersion(chunk, 0);
  ++chunks_loaded_;
}

void JobStates::Publish(Chunk* chunk, Version version) {
  TP_CHECK(version == chunk->version + 1 && version == sealed_version(),
           "versions neither skip nor outrun the sealed step");
  chunk->state = ChunkState::kResident;
  chunk->ranks_cached = 0;
  SetVersion(chunk, version);
}

void JobStates::SetVersion(Chunk* chunk, Version version) {
  chunk->version = version;
  chunk->record->stamp.store(StampOf(*chunk->record, version), std::memory_order_release);
}

// A chunk whose step was sealed is at the version before it.
void JobStates::ComeAfter(Chunk* chunk) const {
  chunk->steps_seen = steps_over_;
  chunk->shards_stored = chunk->accepted = chunk->shards_accepted = 0;
  for (uint32_t i = 0; i < chunk->shards; ++i) {
    ShardIntake& intake = intakes_[chunk->first_intake + i];
    intake.micro_batches_accepted = intake.micro_batches_stored = 0;
  }

  const bool was_open =
      chunk->state == ChunkState::kGradients || chunk->state == ChunkState::kComplete;
  const bool sealed = chunk->version != kNoVersion && chunk->version + 1 == sealed_version();
  TP_CHECK(
      !sealed || (chunk->state != ChunkState::kResident && chunk->state != ChunkState::kGradients),
      "a sealed step has all its gradients");
  if (was_open)
    chunk->state = sealed && !TP_PLANTED("residency.sealed_unseen") ? ChunkState::kUpdateDue
                                                                    : ChunkState::kResident;
}

}  // namespace tidepool::memserver
