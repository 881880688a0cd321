// The records of a job in kept memory (the host pool), with which a later server can finish a
// sealed step and continue the open one. The kept index (kept_index.h) says where each job's
// records lie.
//
// Only the serve loop writes them, except the progress words, which belong to the worker that holds
// the piece. Layout of a job's records:
//
//   +0                 JobRecord        identity, the two step records, the sealed version, the
//                                       open step, the ranks
//   +kJobRecordBytes   ChunkRecord      one a chunk, in order of ChunkId
//   then               StagingRecord    one a rank
//   then               progress words   one an update piece, chunk by chunk, each at the start of a
//                                       cache line (optim/undo_tile.h)
//   then               ShardRecord      one a chunk and member rank
//   then               norm sums        one double a parameter, in order of ParameterId
//   then               extent offsets   8 bytes an extent of the job, as JobStates takes them; the
//                                       first is the records' own; of a plane that is spilled ~0
//                                       less the number of its NVMe directory, of one on a GPU
//                                       kGpuExtent
//   then               frozen chunks    their places, 8 bytes each, in the order in which the job
//                                       lists them
//   then               the encoded JobSpec
//   then               two step slots, from a whole word on (step_slots.h): what the sealed steps
//                      say of groups and parameters; jobs of layouts before kLayoutStepSlots have
//                      none
//
// Frozen chunks lie behind a FrozenRecord each, in extents that all jobs of the user share
// (frozen_table.h); the places above lead to them.
//
// Chunks that were demoted (decision 023) have lost planes since the extents were listed:
// JobRecord::demoted says which. Each chunk's directory is noted first, then one 64-bit store makes
// all of them valid at once.
//
// The states of chunks that lie on GPUs (shm/spec/gpu_states.h) are in memory whose descriptors the
// keeper holds: GpuShareRecord names the keeper's slot of each rank's share, and its GPU.
//
// For each place on NVMe that could not be written, a FallbackSlotRecord with a piece lies in an
// extent of its own that the chunk's record names (fallback_slots.h).
//
// The commit (rule R1 of write-ahead logging: gradients are the redo log, the step record is the
// commit): first the needed part of slot v % 2 is written, then the record of version v to steps[v
// % 2], then sealed_version := v by one 64-bit store. A chunk whose version is below sealed_version
// is still to be updated; it is published by one 64-bit store of its stamp. Any change of a struct
// here requires a new kKeptLayout (kept_index.h).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/formats/content_hash.h"
#include "base/ids.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

inline constexpr uint32_t kJobRecordMagic = 0x4b445054;     // "TPDK"
inline constexpr uint32_t kChunkRecordMagic = 0x43525054;   // "TPRC"
inline constexpr uint32_t kFallbackSlotMagic = 0x49535054;  // "TPSI"
inline constexpr uint32_t kFrozenMagic = 0x5a465054;        // "TPFZ"
inline constexpr uint64_t kFrozenSealed = 0x4445'4c41'4553'5446;
// Version of a chunk whose weights have not arrived.
inline constexpr Version kNoVersion = ~Version{0};
// In the list of extents: a plane on NVMe, in directory 0; one less for each directory after it.
inline constexpr uint64_t kSpilledExtent = ~uint64_t{0};
// In the list of extents: a plane on a GPU.
inline constexpr uint64_t kGpuExtent = kSpilledExtent - 64;
// The first layout whose jobs have step slots.
inline constexpr uint32_t kLayoutStepSlots = 9;
// Versions are kept in 40 bits, and in 39 in progress words: at one step a millisecond, 17 years.
inline constexpr Version kVersionLimit = (Version{1} << 39) - 1;

// Everything that determines the update to `version`, and what a restarted trainer needs.
struct StepRecord {
  Version version;          // that the update makes
  uint64_t optimizer_step;  // for bias correction: steps not skipped, including this one
  float learning_rate;      // before the group's factor
  float gradient_scale;     // clip factor / loss scale
  float loss_scale;
  uint32_t scaler_steps;
  uint64_t data_cursor;
  uint64_t random_state;
  double grad_norm;  // unscaled, before clipping
  uint32_t skipped;  // 1: a gradient was not finite; versions advance, nothing else changes
  uint32_t crc;      // of all above
};

// A rank's incarnation. Cleared (nonce 0) when it leaves; process fields are written before the
// nonce.
struct RankRecord {
  std::atomic<uint64_t> nonce;  // 0: none
  uint64_t process_start;
  int32_t pid;
  uint32_t reserved;
};

// Location of a rank's share of states on GPUs. The GPU is written before the word, and neither
// changes again.
struct GpuShareRecord {
  std::atomic<uint64_t> held;  // GpuShareWord; 0: no memory yet
  std::array<uint8_t, 16> gpu;
};

// State of the run: the set of ranks from the first slot to the last. kLeft: a rank said goodbye.
// kOver: the job is removed as soon as no GPU copies for it any more.
enum class RunState : uint32_t { kWhole = 0, kLeft = 1, kPeerLost = 2, kOver = 3 };

// The label of the run. Servers of layout 8 that do not know this record left zeros here, which
// read as no note, and never read it, so the layout did not change. Never changes; a text that does
// not match its checksum is ignored.
struct NoteRecord {
  uint32_t crc;  // of all valid bytes below, and of the job's nonce
  uint32_t bytes;
  char text[shm::kRunNoteMax];
};

struct JobRecord {
  std::atomic<uint32_t> magic;  // stored last: a record without it is incomplete
  uint32_t crc;                 // of the identity: from `layout` to `extents_crc`
  // The identity; never changes.
  uint32_t layout;
  JobId job;
  uint64_t nonce;
  uint64_t fingerprint;  // of the job's specification
  uint64_t parameter_count;
  uint32_t chunk_count;
  uint32_t extent_count;                     // including places of frozen chunks
  uint64_t extents_at, spec_at, spec_bytes;  // from the start of the records
  uint32_t uid;
  uint32_t spec_crc, extents_crc;
  // Changeable from here on. The servers that have had copies of the job on a GPU's streams, by
  // their places in the index; bits of free places are ignored. Stored before the first such copy.
  // Servers of layout 8 that do not know it left 0.
  std::atomic<uint32_t> gpu_servers;
  alignas(64) std::atomic<Version> sealed_version;
  std::atomic<uint64_t> open_step;  // OpenStepWord: gradients of any other attempt do not count
  std::atomic<uint32_t> run;        // RunState
  std::atomic<uint64_t> ranks_left_well;
  std::atomic<uint64_t> demoted;  // DemotedWord of the demoted chunks; 0: none
  // SlottedWord of the first version with a step slot, which all later ones have too; 0: none has.
  // 0 in jobs of layouts before kLayoutStepSlots.
  std::atomic<uint64_t> slotted_from;
  alignas(64) StepRecord steps[2];  // of version v at v % 2
  alignas(64) RankRecord ranks[shm::kRanksMax];
  GpuShareRecord gpu_shares[shm::kRanksMax];  // by rank
  NoteRecord note;
};

// Names the chunk's planes. Its stamp is the version with a checksum over the whole name, so that
// one store publishes both.
struct ChunkRecord {
  uint32_t magic;
  ChunkId chunk;
  uint64_t job_nonce;
  uint64_t elements;
  std::atomic<uint64_t> stamp;  // StampOf
  // Pool offset of the newest FallbackSlotRecord of the chunk, its lowest bit set; 0: none.
  std::atomic<uint64_t> fallback_slots;
  // NVMe directory of its states, if JobRecord::demoted counts it.
  uint64_t demoted_to;
  uint64_t reserved[2];
};

// A piece of one slot that lies in the pool, one page after this record. Never changes.
struct FallbackSlotRecord {
  uint32_t magic;
  uint32_t crc;  // of all below
  uint64_t job_nonce;
  ChunkId chunk;
  uint32_t piece;
  uint32_t slot;
  int32_t error;  // errno of the write that failed
  uint64_t next;  // as ChunkRecord::fallback_slots
};

// A page before the bytes of a frozen chunk. Never changes, except the seal and the hasher.
struct FrozenRecord {
  uint32_t magic;
  uint32_t crc;  // of all below, up to the seal
  uint32_t uid;
  uint32_t reserved;
  uint64_t bytes;
  ContentHash content;
  std::atomic<uint64_t> sealed;  // kFrozenSealed: all bytes are there, and match `content`
  ContentHasher hasher;          // of the running upload; the next server ignores it
};

// Progress of one rank's shard of a chunk.
struct ShardRecord {
  std::atomic<uint64_t> put_elements;  // weights that are in the master, from the shard's start
  // GradientWord: micro-batches of the open step that are stored in the slot.
  std::atomic<uint64_t> gradients;
};

// A gradient in a rank's staging buffer that is to be widened into, or added to, its slot.
struct StagingRecord {
  std::atomic<uint64_t> pending;  // 0: nothing; else its sequence number, stored after all below
  uint64_t open_step;             // OpenStepWord of its step
  ChunkId chunk;
  uint32_t micro_batch;
  // The highest number that was ever pending: sequence numbers are not reused.
  std::atomic<uint64_t> last_sequence;
  // optim::ProgressWord of the addition; its version is the sequence number.
  std::byte progress[8];
  uint64_t reserved[3];
};

// The word of an open step: its version and its attempt.
uint64_t OpenStepWord(Version version, uint64_t attempt);
// The version part of the open step's word.
Version VersionOfOpenStep(uint64_t open_step);
// The attempt at the open step, as requests name it.
uint32_t AttemptOfOpenStep(uint64_t open_step);
uint64_t GradientWord(uint64_t open_step, uint32_t micro_batches);
// Micro-batches that `word` counts for the attempt `open_step`; 0 if it belongs to another one.
uint32_t MicroBatchesOf(uint64_t word, uint64_t open_step);
// `version` may be kNoVersion.
uint64_t StampOf(const ChunkRecord& record, Version version);
// The version in the record's stamp; none if its checksum does not match the name.
std::optional<Version> VersionOf(const ChunkRecord& record);
// DemotedWord: counts the demoted chunks, from the first on, with a checksum over their
// directories. DemotedCrc: that checksum, which can be computed over consecutive spans of chunks.
uint64_t DemotedWord(uint64_t job_nonce, std::span<const ChunkRecord> demoted);
uint64_t DemotedWord(uint32_t count, uint32_t crc);
uint32_t DemotedCrc(uint64_t job_nonce, uint64_t count);
uint32_t DemotedCrc(std::span<const ChunkRecord> more, uint32_t crc);
uint32_t DemotedCount(uint64_t word);
// SlottedWord: a version with a checksum over it and the job. SlottedFrom: the version in a word
// whose checksum matches; else none.
uint64_t SlottedWord(uint64_t job_nonce, Version version);
std::optional<Version> SlottedFrom(uint64_t job_nonce, uint64_t word);
// GpuShareWord: the keeper's slot of a share, with a checksum over its owner and its GPU.
// GpuShareSlot: the slot in a word whose checksum matches; else none.
uint64_t GpuShareWord(uint64_t job_nonce, Rank rank, uint32_t slot,
                      const std::array<uint8_t, 16>& gpu);
std::optional<uint32_t> GpuShareSlot(uint64_t job_nonce, Rank rank, const GpuShareRecord& record);
// `note` has at most shm::kRunNoteMax bytes. The record's nonce must be set already.
void WriteNote(std::string_view note, JobRecord* record);
std::string NoteOf(const JobRecord& record);
uint32_t CrcOf(const StepRecord& record);
uint32_t CrcOf(const JobRecord& record);  // of the identity
uint32_t CrcOf(const FallbackSlotRecord& record);
uint32_t CrcOf(const FrozenRecord& record);

static_assert(sizeof(JobRecord) <= shm::kJobRecordBytes && sizeof(FrozenRecord) <= 4096);
static_assert(sizeof(ChunkRecord) == shm::kChunkRecordBytes &&
              sizeof(ShardRecord) == shm::kShardRecordBytes &&
              sizeof(StagingRecord) == shm::kStagingRecordBytes);
static_assert(sizeof(std::atomic<Version>) == 8 && std::atomic<Version>::is_always_lock_free);

}  // namespace tidepool::memserver
