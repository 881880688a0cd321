// JobRecordWriter: the kept records of one job, as this server writes them (kept_records.h). They
// lie in the first extent of the job's pool memory.
//
// Serve loop. JobStates owns it; the specification outlives it. Invariant: what a later server
// needs is stored here before anyone is told about it, and each change takes effect with one 64-bit
// store. Records that WriteFirst has not finished have no magic, and do not count.
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

// A job's permanent identity.
struct JobIdentity {
  JobId job = 0;
  uint64_t nonce = 0;
  uint64_t fingerprint = 0;
  uint32_t uid = 0;
  std::string note = {};  // up to shm::kRunNoteMax bytes
};

// The incarnation that holds a place in the run; kept to recognise the rank after a restart.
struct RankIdentity {
  uint64_t nonce = 0, process_start = 0;
  int32_t pid = 0;
};

class JobRecordWriter {
 public:
  explicit JobRecordWriter(const shm::JobSpec* spec);
  JobRecordWriter(const JobRecordWriter&) = delete;
  JobRecordWriter& operator=(const JobRecordWriter&) = delete;

  // Places the records in this extent, in the given layout. Call once, before everything below; the
  // contents are neither read nor changed.
  void LayOut(const Extent& records, uint32_t layout = kKeptLayout);
  // Writes the first records into zeroed memory, up to about `bytes_max` more with each call. True
  // when they are complete; the last store makes them so.
  struct Places {  // offsets of all extents, then those of the frozen chunks
    size_t count = 0;
    std::function<uint64_t(size_t)> at;
  };
  bool WriteMore(const JobIdentity& identity, const Places& places, uint64_t bytes_max);
  // Bytes that WriteMore has written so far.
  uint64_t written() const { return written_.bytes; }

  // The records themselves: those of the job, its chunks, shards and ranks.
  JobRecord& record() const { return *record_; }
  ChunkRecord* chunk_record(ChunkId id) const { return chunks_ + id; }
  ShardRecord* shard_record(uint64_t shard) const { return shards_ + shard; }
  StagingRecord& staging_record(Rank rank) const { return staging_[rank]; }
  // The progress words of all pieces, kProgressBytes apart, chunk after chunk.
  std::byte* progress_words() const { return progress_words_; }
  std::span<double> norm_sums() const { return norm_sums_; }  // one per parameter

  // What sealed steps store about groups and parameters.
  StepSlots& slots() { return slots_; }
  const StepSlots& slots() const { return slots_; }

  // The version made by the last sealed step; 0 before the first.
  Version sealed_version() const { return record_->sealed_version.load(std::memory_order_relaxed); }
  // The record of the last sealed step; before the first, all zero except loss_scale 1.
  const StepRecord& last_step() const { return record_->steps[sealed_version() % 2]; }
  uint64_t open_step() const { return record_->open_step.load(std::memory_order_relaxed); }
  // The attempt at the open step, as requests name it.
  uint32_t attempt() const { return AttemptOfOpenStep(open_step()); }
  // Begins the next attempt: gradients stored for the open step no longer count.
  void NextAttempt();
  // Opens the step after the sealed one.
  void OpenNextStep();

  // Notes that a rank has taken its place in the run, or left it.
  void SetRank(Rank rank, const RankIdentity& identity);
  void ClearRank(Rank rank);
  // Notes a server that is about to put the job's first copy on a GPU's streams. Call before that
  // copy.
  void NoteGpus(uint32_t server) {
    record_->gpu_servers.fetch_or(server, std::memory_order_release);
  }
  // Notes in which directories the states of the first chunks lie, up to `rows_max` more with each
  // call. True when all are noted: they lie on NVMe from here on, by the last store.
  bool NoteDemoted(std::span<const uint8_t> directories, uint32_t rows_max);
  // Discards what NoteDemoted has noted so far.
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
  shm::SpecEncoder encoder_;  // positioned at what is not written yet
  Written written_;
  RecordsLayout layout_;
  JobRecord* record_ = nullptr;
  ChunkRecord* chunks_ = nullptr;
  ShardRecord* shards_ = nullptr;
  StagingRecord* staging_ = nullptr;
  std::byte* progress_words_ = nullptr;
  std::span<double> norm_sums_;
  StepSlots slots_;
  ChunkId demoted_noted_ = 0;  // and the checksum of those noted
  uint32_t demoted_crc_ = 0;
};

}  // namespace tidepool::memserver
