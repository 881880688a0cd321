#include "memserver/residency/kept/job_record_writer.h"

#include <cstring>
#include <new>

#include "base/check.h"
#include "base/formats/crc32c.h"
#include "base/point.h"
#include "shm/spec/encode.h"

namespace tidepool::memserver {

JobRecordWriter::JobRecordWriter(const shm::JobSpec* spec)
    : spec_(spec), encoded_spec_(shm::Encode(*spec)) {}

void JobRecordWriter::LayOut(const Extent& records) {
  layout_ = RecordsLayoutOf(*spec_, encoded_spec_.size());
  TP_CHECK(layout_.end <= records.bytes, "the records fit their extent");
  std::byte* const begin = records.data;
  record_ = reinterpret_cast<JobRecord*>(begin);
  chunks_ = reinterpret_cast<ChunkRecord*>(begin + layout_.chunks);
  staging_ = reinterpret_cast<StagingRecord*>(begin + layout_.staging);
  progress_words_ = begin + layout_.progress;
  shards_ = reinterpret_cast<ShardRecord*>(begin + layout_.shards);
  norm_sums_ = {reinterpret_cast<double*>(begin + layout_.norm_sums), spec_->parameters.size()};
}

void JobRecordWriter::WriteFirst(const JobIdentity& identity, std::span<const uint64_t> places) {
  auto* const begin = reinterpret_cast<std::byte*>(record_);
  std::memcpy(begin + layout_.spec, encoded_spec_.data(), encoded_spec_.size());
  std::memcpy(begin + layout_.extents, places.data(), places.size_bytes());

  record_ = new (record_) JobRecord{};
  record_->layout = kKeptLayout;
  record_->job = identity.job;
  record_->nonce = identity.nonce;
  record_->fingerprint = identity.fingerprint;
  record_->uid = identity.uid;
  record_->parameter_count = spec_->parameters.size();
  record_->chunk_count = static_cast<uint32_t>(spec_->chunks.size());
  record_->extent_count = static_cast<uint32_t>(places.size());

  record_->extents_at = layout_.extents;
  record_->spec_at = layout_.spec;
  record_->spec_bytes = encoded_spec_.size();
  record_->spec_crc = Crc32c(encoded_spec_);
  record_->extents_crc = Crc32c(std::as_bytes(places));
  record_->crc = CrcOf(*record_);

  WriteNote(identity.note, record_);
  record_->steps[0].loss_scale = 1;
  record_->steps[0].crc = CrcOf(record_->steps[0]);

  for (ChunkId id = 0; id < spec_->chunks.size(); ++id) {
    auto* record = new (chunk_record(id)) ChunkRecord{};
    record->magic = kChunkRecordMagic;
    record->chunk = id;
    record->job_nonce = identity.nonce;
    record->elements = spec_->chunks[id].elements;
    record->stamp.store(StampOf(*record, kNoVersion), std::memory_order_relaxed);
  }

  for (Rank rank = 0; rank < spec_->world; ++rank) new (&staging_[rank]) StagingRecord{};
  const uint64_t shards = (layout_.norm_sums - layout_.shards) / sizeof(ShardRecord);
  for (uint64_t shard = 0; shard < shards; ++shard) new (shard_record(shard)) ShardRecord{};
  record_->magic.store(kJobRecordMagic, std::memory_order_release);
}

void JobRecordWriter::SetRank(Rank rank, const RankIdentity& identity) {
  RankRecord& record = record_->ranks[rank];
  // A rank that has come back must not be unknown for a moment.
  if (record.nonce.load(std::memory_order_relaxed) == identity.nonce) return;
  record.nonce.store(0, std::memory_order_release);
  record.process_start = identity.process_start;
  record.pid = identity.pid;
  record.nonce.store(identity.nonce, std::memory_order_release);
}

void JobRecordWriter::ClearRank(Rank rank) {
  record_->ranks[rank].nonce.store(0, std::memory_order_release);
}

void JobRecordWriter::NextAttempt() {
  record_->open_step.store(OpenStepWord(sealed_version(), open_step() + 1),
                           std::memory_order_release);
}

void JobRecordWriter::OpenNextStep() {
  record_->open_step.store(OpenStepWord(sealed_version(), 0), std::memory_order_release);
}

void JobRecordWriter::NoteDemoted(std::span<const uint8_t> directories) {
  for (ChunkId id = 0; id < directories.size(); ++id) chunks_[id].demoted_to = directories[id];
  TP_POINT("server.demotion_noted");
  record_->demoted.store(DemotedWord(record_->nonce, {chunks_, directories.size()}),
                         std::memory_order_release);
  TP_POINT("server.demotion_committed");
}

}  // namespace tidepool::memserver
