#include "memserver/residency/chunk_table.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/hot.h"
#include "base/planted.h"
#include "base/units.h"
#include "shm/spec/gpu_states.h"

namespace tidepool::memserver {

struct ChunkTable::Rows {
  std::vector<Chunk> chunks;
  std::vector<ShardIntake> intakes;
  std::vector<ParameterRun> runs;
};

// Reserves the room for all rows now; it is touched as they are made.
ChunkTable::ChunkTable(const shm::JobSpec* spec, JobRecordWriter* records)
    : spec_(spec), records_(records), counts_(shm::TableCountsOf(*spec)) {
  chunks_.reserve(spec->chunks.size());
  intakes_.reserve(counts_.shards);
  runs_.reserve(spec->parameters.size());
}

uint32_t ChunkTable::LayOutRuns(uint32_t rows_max) {
  const uint64_t left = spec_->parameters.size() - runs_.size();
  const auto rows = static_cast<uint32_t>(std::min<uint64_t>(rows_max, left));
  for (uint32_t i = 0; i < rows; ++i) {
    const shm::ParameterSpec& parameter = spec_->parameters[runs_.size()];
    runs_.push_back({parameter.element_begin, parameter.element_count, parameter.group,
                     RoundingSeedOf(spec_->optimizer, parameter.name)});
  }
  return rows;
}

uint32_t ChunkTable::LayOutNext(const JobPlacement& placement) {
  const ChunkId id = laid_out();
  ++looks_;
  Chunk& chunk = chunks_.emplace_back();
  chunk.elements = spec_->chunks[id].elements;
  chunk.data_group = spec_->chunks[id].data_group;
  chunk.dtype = spec_->DTypeOf(id);
  chunk.gradient_type = shm::GradientSlotType(*spec_, id);
  chunk.states = spec_->StatesOf(id);

  chunk.rank_mask = spec_->data_groups[chunk.data_group].rank_mask;
  chunk.shards = spec_->ShardCount(id);
  chunk.shard_elements = spec_->ShardElements(id);
  chunk.first_intake = static_cast<uint32_t>(intakes_.size());
  for (uint32_t shard = 0; shard < chunk.shards; ++shard)
    intakes_.push_back({.record = records_->shard_record(intakes_.size())});

  chunk.first_parameter = next_parameter_;
  while (next_parameter_ < spec_->parameters.size() &&
         spec_->parameters[next_parameter_].chunk == id)
    ++next_parameter_;
  chunk.parameters = next_parameter_ - chunk.first_parameter;

  chunk.on_gpu = shm::IsOnGpu(*spec_, id);
  chunk.planes = placement.PlanesOf(id);
  chunk.record = records_->chunk_record(id);
  chunk.pieces = static_cast<uint32_t>(DivideUp(chunk.elements, shm::kPieceElements));
  chunk.progress_words = records_->progress_words() + pieces_laid_out_ * shm::kProgressBytes;
  pieces_laid_out_ += chunk.pieces;

  chunk.spilled = placement.IsSpilled(id);
  chunk.spill = placement.SpillOf(id);
  if (!chunk.spilled) return 1 + chunk.shards;
  pieces_spilled_ += chunk.pieces;
  if (chunk.spill.directory < next_spill_.size()) {
    chunk.spill.offset = next_spill_[chunk.spill.directory];
    next_spill_[chunk.spill.directory] += 2 * chunk.spill.slot_bytes;
  }
  return 1 + chunk.shards;
}

std::shared_ptr<const ChunkTable::Rows> ChunkTable::GiveUpRows() {
  return std::make_shared<const Rows>(
      Rows{std::exchange(chunks_, {}), std::exchange(intakes_, {}), std::exchange(runs_, {})});
}

Status ChunkTable::Recover(Version sealed, FallbackSlots* fallback_slots) {
  uint32_t due = 0;
  for (ChunkId id = 0; id < chunks_.size(); ++id) {
    Chunk& chunk = chunks_[id];
    const ChunkRecord& record = *chunk.record;
    const auto version = VersionOf(record);
    const bool named = record.chunk == id && record.elements == chunk.elements &&
                       record.job_nonce == records_->record().nonce;
    const bool possible =
        version && (*version == kNoVersion || *version == sealed || *version + 1 == sealed);

    if (!named || !possible) {
      const std::string found = version && named ? "version " + std::to_string(*version)
                                                 : "a name that does not fit its check";
      return Status(ErrorId::kKeptMemoryBad, "chunk " + std::to_string(id) +
                                                 " of a job at version " + std::to_string(sealed) +
                                                 " has " + found);
    }

    chunk.version = *version;
    if (chunk.spilled) TP_RETURN_IF_ERROR(fallback_slots->Recover(id, record));
    if (*version == kNoVersion) continue;
    chunk.state = *version == sealed ? ChunkState::kResident : ChunkState::kUpdateDue;
    ++loaded_;
    due += *version == sealed ? 0 : 1;
  }
  // Weights that are still arriving come with the version that the job begins at.
  if (weights_ready() || (loaded_ == 0 && sealed == 0) || due == 0) return Status();
  return Status(ErrorId::kKeptMemoryBad, "a job at version " + std::to_string(sealed) +
                                             " lacks weights, and has some of the version before");
}

TP_HOT const std::byte* ChunkTable::ParameterBytes(const Chunk& chunk, uint64_t element) const {
  if (chunk.planes.param16 == nullptr) return chunk.planes.master + element * sizeof(float);
  return chunk.planes.param16 + element * BytesOf(chunk.dtype);
}

std::byte* ChunkTable::GradientBytes(const Chunk& chunk, uint64_t element) const {
  return chunk.planes.gradient + element * BytesOf(chunk.gradient_type);
}

uint64_t ChunkTable::EpochOf(const Chunk& chunk) const {
  const StepRecord& last = records_->last_step();
  const bool due = chunk.version != records_->sealed_version() && last.skipped == 0;
  return last.optimizer_step - (due ? 1 : 0);
}

void ChunkTable::SetPut(ChunkId id, Rank rank, uint64_t elements) {
  intake(id, rank).record->put_elements.store(elements, std::memory_order_release);
}

bool ChunkTable::any_put() const {
  const auto has = [](const ShardIntake& intake) { return intake.put_elements > 0; };
  return loaded_ > 0 || std::any_of(intakes_.begin(), intakes_.end(), has);
}

void ChunkTable::AddStored(ChunkId id, Rank rank, uint32_t micro_batches) {
  ShardIntake& shard = intake(id, rank);
  shard.micro_batches_stored += micro_batches;
  shard.record->gradients.store(GradientWord(records_->open_step(), shard.micro_batches_stored),
                                std::memory_order_release);
}

void ChunkTable::MarkLoaded(Chunk* chunk) {
  TP_CHECK(chunk->state == ChunkState::kEmpty && chunk->version == kNoVersion,
           "weights arrive once");
  chunk->state = ChunkState::kResident;
  SetVersion(chunk, records_->sealed_version());
  ++loaded_;
}

void ChunkTable::Publish(Chunk* chunk, Version version) {
  TP_CHECK(version == chunk->version + 1 && version == records_->sealed_version(),
           "versions neither skip nor outrun the sealed step");
  chunk->state = ChunkState::kResident;
  chunk->ranks_cached = 0;
  SetVersion(chunk, version);
}

void ChunkTable::SetVersion(Chunk* chunk, Version version) {
  chunk->version = version;
  chunk->record->stamp.store(StampOf(*chunk->record, version), std::memory_order_release);
}

// A chunk whose step was sealed is at the version before the sealed one.
void ChunkTable::ComeAfter(Chunk* chunk) const {
  chunk->steps_seen = steps_over_;
  chunk->shards_stored = chunk->accepted = chunk->shards_accepted = 0;
  for (uint32_t i = 0; i < chunk->shards; ++i) {
    ShardIntake& intake = intakes_[chunk->first_intake + i];
    intake.micro_batches_accepted = intake.micro_batches_stored = 0;
  }

  const bool was_open =
      chunk->state == ChunkState::kGradients || chunk->state == ChunkState::kComplete;
  const bool sealed =
      chunk->version != kNoVersion && chunk->version + 1 == records_->sealed_version();
  TP_CHECK(
      !sealed || (chunk->state != ChunkState::kResident && chunk->state != ChunkState::kGradients),
      "a sealed step has all its gradients");
  if (was_open)
    chunk->state = sealed && !TP_PLANTED("residency.sealed_unseen") ? ChunkState::kUpdateDue
                                                                    : ChunkState::kResident;
}

void ChunkTable::MoveOut(ChunkId id, const JobPlacement& placement, uint64_t offset) {
  Chunk& chunk = chunks_[id];
  chunk.planes = placement.PlanesOf(id);
  if (!chunk.spilled) pieces_spilled_ += chunk.pieces;
  chunk.spilled = placement.IsSpilled(id);
  chunk.spill = placement.SpillOf(id);
  chunk.spill.offset = offset;
}

void ChunkTable::SetSpillOffsets(uint32_t directory, uint64_t offset, uint64_t first,
                                 uint64_t end) {
  for (uint64_t id = first; id < end; ++id) {
    Chunk& chunk = chunks_[id];
    if (!chunk.spilled || chunk.spill.directory != directory) continue;
    chunk.spill.offset = offset;
    offset += 2 * chunk.spill.slot_bytes;
  }
}

}  // namespace tidepool::memserver
