// JobRecordWriter: the kept records of one job, as this server writes them (kept_records.h). They
// lie in the first extent that the job has of the pool.
//
// Serve loop. JobStates owns it; the specification outlives it.
// Invariant: what a later server needs is stored here before anybody is told of it, and each change
// takes effect with one 64-bit store. Records that WriteFirst has not finished have no magic, and
// count as none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/ids.h"
#include "memserver/residency/kept/job_records.h"
#include "memserver/residency/kept/kept_records.h"
#include "memserver/residency/kept/step_slots.h"
#include "memserver/residency/pool/host_pool.h"
#include "shm/spec/encode.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

// What names a job for ever.
struct JobIdentity {
  JobId job = 0;
  uint64_t nonce = 0;
  uint64_t fingerprint = 0;
  uint32_t uid = 0;
  std::string note = {};  // up to shm::kRunNoteMax bytes
};

// Who holds a place in the run; kept, so that the rank is known again after a restart.
struct RankIdentity {
  uint64_t nonce = 0, process_start = 0;
  int32_t pid = 0;
};

class JobRecordWriter {
 public:
  explicit JobRecordWriter(const shm::JobSpec* spec);
  JobRecordWriter(const JobRecordWriter&) = delete;
  JobRecordWriter& operator=(const JobRecordWriter&) = delete;

  // The records lie in this extent, in the layout that they are, or were, made in. Call once,
  // before everything below; what they hold is neither read nor changed.
  void LayOut(const Extent& records, uint32_t layout = kKeptLayout);
  // Writes the first records into zeroed memory, up to some `bytes_max` more with each call. True
  // when they are whole, which they are at once: with the last store.
  struct Places {  // offsets of all extents, then those of the frozen chunks
    size_t count = 0;
    std::function<uint64_t(size_t)> at;
  };
  bool WriteMore(const JobIdentity& identity, const Places& places, uint64_t bytes_max);
  // Bytes that WriteMore has written so far.
  uint64_t written() const { return written_.bytes; }

  // The records themselves; those of the job's chunks, shards and ranks.
  JobRecord& record() const { return *record_; }
  ChunkRecord* chunk_record(ChunkId id) const { return chunks_ + id; }
  ShardRecord* shard_record(uint64_t shard) const { return shards_ + shard; }
  StagingRecord& staging_record(Rank rank) const { return staging_[rank]; }
  // The progress words of all pieces, kProgressBytes apart, chunk after chunk.
  std::byte* progress_words() const { return progress_words_; }
  std::span<double> norm_sums() const { return norm_sums_; }  // one a parameter

  // What sealed steps say of groups and parameters.
  StepSlots& slots() { return slots_; }
  const StepSlots& slots() const { return slots_; }

  // The version that the last sealed step makes; 0 before the first.
  Version sealed_version() const { return record_->sealed_version.load(std::memory_order_relaxed); }
  // The record of the last sealed step; all zero but loss_scale 1 before the first.
  const StepRecord& last_step() const { return record_->steps[sealed_version() % 2]; }
  uint64_t open_step() const { return record_->open_step.load(std::memory_order_relaxed); }
  // The attempt at the open step, as requests name it.
  uint32_t attempt() const { return AttemptOfOpenStep(open_step()); }
  // Begins the next attempt: gradients stored for the open step do not count any more.
  void NextAttempt();
  // Opens the step after the sealed one.
  void OpenNextStep();

  // A rank has taken its place in the run, or left it.
  void SetRank(Rank rank, const RankIdentity& identity);
  void ClearRank(Rank rank);
  // Call before the first copy of the job that the server puts on a GPU's streams.
  void NoteGpus(uint32_t server) {
    record_->gpu_servers.fetch_or(server, std::memory_order_release);
  }
  // Notes in which directories the states of the first chunks lie, up to so many more with each
  // call. True when all are noted: from here on they lie on NVMe, with the last store.
  bool NoteDemoted(std::span<const uint8_t> directories, uint32_t rows_max);
  // What was noted of them so far does not count.
  void ForgetDemotion() { demoted_noted_ = 0; }

 private:
  // How far each table of the first records is written.
  struct Written {
    uint64_t bytes = 0;
    uint64_t of_spec = 0, places = 0, chunks = 0, shards = 0;
    uint32_t spec_crc = 0, places_crc = 0;
  };
  bool WriteSpec(uint64_t until);
  bool WritePlaces(const Places& places, uint64_t until);
  bool WriteRows(const JobIdentity& identity, uint64_t until);
  void WriteHead(const JobIdentity& identity, const Places& places);

  const shm::JobSpec* const spec_;
  const uint64_t spec_bytes_;
  shm::SpecEncoder encoder_;  // of what is not written yet
  Written written_;
  RecordsLayout layout_;
  JobRecord* record_ = nullptr;
  ChunkRecord* chunks_ = nullptr;
  ShardRecord* shards_ = nullptr;
  StagingRecord* staging_ = nullptr;
  std::byte* progress_words_ = nullptr;
  std::span<double> norm_sums_;
  StepSlots slots_;
  ChunkId demoted_noted_ = 0;  // and the check of what is noted
  uint32_t demoted_crc_ = 0;
};

}  // namespace tidepool::memserver
