// ChunkTable: the chunks of one job: where the planes of each lie, its state and version, and how
// much of the open step has arrived for it. A table: it moves no bytes.
//
// Serve loop. JobStates owns it; specification and records outlive it. A thread that reads for a
// save uses saved() alone: the job leaves it unchanged until that save is answered. Invariants: 2,
// 3, 4 and 10 of JobStates (job_states.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "memserver/residency/chunk_planes.h"
#include "memserver/residency/job_placement.h"
#include "memserver/residency/kept/job_record_writer.h"
#include "memserver/residency/kept/kept_records.h"
#include "memserver/residency/pool/fallback_slots.h"
#include "memserver/residency/snapshot.h"
#include "shm/spec/job_spec.h"
#include "shm/spec/state_bytes.h"

namespace tidepool::memserver {

// A parameter's range in its chunk, as workers iterate over it.
struct ParameterRun {
  uint64_t begin = 0;  // element in the chunk
  uint64_t count = 0;
  uint32_t group = 0;
  uint64_t rounding_seed = 0;  // RoundingSeedOf
};

// Progress of one rank's shard of a chunk.
struct ShardIntake {
  uint64_t put_elements = 0;            // weights accepted, from the shard's start
  uint32_t micro_batches_accepted = 0;  // of the open step: checked, and being stored
  uint32_t micro_batches_stored = 0;    // of the open step: in the slot
  ShardRecord* record = nullptr;
};

// A chunk: its location and state.
struct Chunk {
  // Fixed members.
  uint64_t elements = 0;
  uint64_t shard_elements = 0;
  uint64_t rank_mask = 0;  // members of its data-parallel group
  uint32_t data_group = 0;
  DType dtype = DType::kF32;           // of fetched parameters and sent gradients
  DType gradient_type = DType::kF32;   // of the gradient slot
  StateForm states = StateForm::kF32;  // of master and moments
  uint32_t shards = 0;
  uint32_t first_intake = 0;  // row of shard 0 in the intake table
  uint32_t pieces = 0;        // of an update
  ParameterId first_parameter = 0;
  uint32_t parameters = 0;
  // Set when the chunk is demoted.
  bool spilled = false;
  bool on_gpu = false;
  SpillPlace spill;  // where spilled
  ChunkPlanes planes;
  ChunkRecord* record = nullptr;
  std::byte* progress_words = nullptr;  // of `pieces` pieces, kProgressBytes apart
  // Members that change.
  ChunkState state = ChunkState::kEmpty;
  uint32_t shards_loaded = 0;  // shards whose weights have arrived and are converted
  uint32_t shards_stored = 0;  // with the open step's last micro-batch stored
  uint32_t pieces_left = 0;    // of a running update
  uint32_t readers = 0;
  bool awaited = false;  // a parked request names it
  uint64_t ranks_cached = 0;
  uint64_t fetches = 0;
  Version version = kNoVersion;  // as in the record's stamp
  Version fetched = kNoVersion;  // the last version that a rank began to fetch
  // Maintained by ChunkTable: steps that had passed when this was written. The members below are
  // about the step after them.
  uint32_t steps_seen = 0;
  // Maintained by GradientIntake for the open step: micro-batches accepted, and shards that have
  // them.
  uint32_t accepted = 0, shards_accepted = 0;

  // True if master, momentum and variance lie on NVMe or on a GPU.
  bool states_off_host() const { return spilled || on_gpu; }
  bool is_split() const { return IsSplit(states); }
  // True if workers make the 16-bit copy of the weights from the master plane.
  bool narrows() const { return dtype != DType::kF32 && !is_split() && !states_off_host(); }
};

class ChunkTable {
 public:
  ChunkTable(const shm::JobSpec* spec, JobRecordWriter* records);
  ChunkTable(const ChunkTable&) = delete;
  ChunkTable& operator=(const ChunkTable&) = delete;

  // LayOutRuns and LayOutNext make the rows of a job whose memory is taken and whose records are
  // laid out; all rows are empty. First, at most `rows_max` rows for its parameters; returns how
  // many it made. Fewer than `rows_max`: none are left.
  uint32_t LayOutRuns(uint32_t rows_max);
  // Then, for each chunk in order, the rows of the next one, whose planes are placed already.
  // Returns how many.
  uint32_t LayOutNext(const JobPlacement& placement);
  // The number of chunks that have their rows.
  ChunkId laid_out() const { return static_cast<ChunkId>(chunks_.size()); }
  // Gives up all rows, so that another thread can free them.
  struct Rows;
  std::shared_ptr<const Rows> GiveUpRows();
  // Reads what the records of another server hold about each chunk: its version, by the rule of
  // trust (a stamp that fits its name, and the sealed version or the one before it), and its
  // fallback slots. Errors: kKeptMemoryBad.
  Status Recover(Version sealed, FallbackSlots* fallback_slots);

  Chunk& chunk(ChunkId id) { return Look(id); }
  const Chunk& chunk(ChunkId id) const { return Look(id); }
  // For tests and for fixed members: each chunk as of its last lookup.
  std::span<Chunk> chunks() { return chunks_; }
  // For the thread that reads for a save: planes of a chunk that is not spilled, else its place on
  // NVMe. The loop changes neither meanwhile.
  const Chunk& saved(ChunkId id) const { return chunks_[id]; }
  // Number of chunk lookups so far; a turn's work is bounded in these.
  uint64_t looks() const { return looks_; }

  // The progress of a rank's shard; the rank must have one.
  ShardIntake& intake(ChunkId id, Rank rank) {
    return intakes_[Look(id).first_intake + spec_->ShardIndex(id, rank)];
  }
  // Number of shards of all chunks together.
  uint64_t shards() const { return counts_.shards; }
  // First element of `rank`'s shard.
  uint64_t ShardBegin(ChunkId id, Rank rank) const {
    return spec_->ShardIndex(id, rank) * chunks_[id].shard_elements;
  }
  std::span<const ParameterRun> runs(const Chunk& chunk) const {
    return {runs_.data() + chunk.first_parameter, chunk.parameters};
  }
  // The bytes that a fetch reads: param16, or master for fp32 chunks.
  const std::byte* ParameterBytes(const Chunk& chunk, uint64_t element) const;
  std::byte* GradientBytes(const Chunk& chunk, uint64_t element) const;
  // The epoch of the slot in which the states of a chunk lie whole. Its weights must have arrived.
  uint64_t EpochOf(const Chunk& chunk) const;

  // Notes that weights up to `elements` of the rank's shard are in the master.
  void SetPut(ChunkId id, Rank rank, uint64_t elements);
  // Counts more micro-batches of the open step that are stored in the slot.
  void AddStored(ChunkId id, Rank rank, uint32_t micro_batches = 1);
  // Notes that all weights of a chunk have arrived: it has the version at which the job begins.
  void MarkLoaded(Chunk* chunk);
  uint32_t loaded() const { return loaded_; }
  // True when some weights have arrived.
  bool any_put() const;
  bool weights_ready() const { return loaded_ == spec_->chunks.size(); }
  // The chunk's planes now hold `version`, its present version + 1: one release store.
  void Publish(Chunk* chunk, Version version);
  // Resets the gradient counts of the open step, which was sealed, so that its chunks are due for
  // their update from here on, or dropped.
  void ForgetOpenStep() { ++steps_over_; }

  // Moves the chunk's states off the host, to slots that begin at `offset`.
  void MoveOut(ChunkId id, const JobPlacement& placement, uint64_t offset);
  // Chunks in [first, end) that lie in `directory` lie there consecutively, from `offset` on.
  void SetSpillOffsets(uint32_t directory, uint64_t offset, uint64_t first, uint64_t end);
  // The same for all chunks, by directory, as they get their rows. Call before the first row.
  void SetSpillBegins(std::vector<uint64_t> offsets) { next_spill_ = std::move(offsets); }
  // Pieces of all chunks on NVMe.
  uint64_t pieces_spilled() const { return pieces_spilled_; }
  // Pieces of all other chunks.
  uint64_t pieces_kept() const { return counts_.pieces - pieces_spilled_; }

 private:
  Chunk& Look(ChunkId id) const {
    ++looks_;
    Chunk& chunk = chunks_[id];
    if (chunk.steps_seen != steps_over_) ComeAfter(&chunk);
    return chunk;
  }
  void ComeAfter(Chunk* chunk) const;
  void SetVersion(Chunk* chunk, Version version);

  const shm::JobSpec* const spec_;
  JobRecordWriter* const records_;
  const shm::TableCounts counts_;
  mutable std::vector<Chunk> chunks_;  // a lookup brings its open-step members up to date
  mutable std::vector<ShardIntake> intakes_;
  std::vector<ParameterRun> runs_;
  std::vector<uint64_t> next_spill_;  // by directory, for the next row
  ParameterId next_parameter_ = 0;    // likewise
  uint64_t pieces_laid_out_ = 0, pieces_spilled_ = 0;
  uint32_t loaded_ = 0;
  uint32_t steps_over_ = 0;  // sealed or dropped, since this server has the job
  mutable uint64_t looks_ = 0;
};

}  // namespace tidepool::memserver
