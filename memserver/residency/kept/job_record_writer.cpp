#include "memserver/residency/kept/job_record_writer.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/formats/crc32c.h"
#include "base/point.h"

namespace tidepool::memserver {

JobRecordWriter::JobRecordWriter(const shm::JobSpec* spec)
    : spec_(spec), spec_bytes_(shm::EncodedBytesOf(*spec)), encoder_(spec) {}

void JobRecordWriter::LayOut(const Extent& records, uint32_t layout) {
  layout_ = RecordsLayoutOf(*spec_, spec_bytes_);
  TP_CHECK(layout_.EndIn(layout) <= records.bytes, "the records fit their extent");
  std::byte* const begin = records.data;
  record_ = reinterpret_cast<JobRecord*>(begin);
  chunks_ = reinterpret_cast<ChunkRecord*>(begin + layout_.chunks);
  staging_ = reinterpret_cast<StagingRecord*>(begin + layout_.staging);
  progress_words_ = begin + layout_.progress;
  shards_ = reinterpret_cast<ShardRecord*>(begin + layout_.shards);
  norm_sums_ = {reinterpret_cast<double*>(begin + layout_.norm_sums), spec_->parameters.size()};
  if (layout >= kLayoutStepSlots) slots_ = StepSlots(*spec_, record_, begin + layout_.slots);
}

bool JobRecordWriter::WriteMore(const JobIdentity& identity, const Places& places,
                                uint64_t bytes_max) {
  const uint64_t until =
      bytes_max > UINT64_MAX - written_.bytes ? UINT64_MAX : written_.bytes + bytes_max;
  if (!WriteSpec(until) || !WritePlaces(places, until) || !WriteRows(identity, until)) return false;
  WriteHead(identity, places);
  return true;
}

bool JobRecordWriter::WriteSpec(uint64_t until) {
  if (written_.of_spec == spec_bytes_ || written_.bytes >= until)
    return written_.of_spec == spec_bytes_;
  const std::vector<std::byte> part = encoder_.Next(until - written_.bytes);
  TP_CHECK(part.size() <= spec_bytes_ - written_.of_spec, "the description is as long as it was");
  std::memcpy(reinterpret_cast<std::byte*>(record_) + layout_.spec + written_.of_spec, part.data(),
              part.size());

  written_.spec_crc = Crc32c(part, written_.spec_crc);
  written_.of_spec += part.size();
  written_.bytes += part.size();
  return written_.of_spec == spec_bytes_;
}

bool JobRecordWriter::WritePlaces(const Places& places, uint64_t until) {
  auto* const list =
      reinterpret_cast<uint64_t*>(reinterpret_cast<std::byte*>(record_) + layout_.extents);
  const uint64_t first = written_.places;
  while (written_.places < places.count && written_.bytes < until) {
    list[written_.places] = places.at(written_.places);
    ++written_.places;
    written_.bytes += sizeof(uint64_t);
  }

  const std::span<const uint64_t> part(list + first, written_.places - first);
  written_.places_crc = Crc32c(std::as_bytes(part), written_.places_crc);
  return written_.places == places.count;
}

bool JobRecordWriter::WriteRows(const JobIdentity& identity, uint64_t until) {
  for (; written_.chunks < spec_->chunks.size(); ++written_.chunks) {
    if (written_.bytes >= until) return false;
    const auto id = static_cast<ChunkId>(written_.chunks);
    auto* record = new (chunk_record(id)) ChunkRecord{};
    record->magic = kChunkRecordMagic;
    record->chunk = id;
    record->job_nonce = identity.nonce;
    record->elements = spec_->chunks[id].elements;
    record->stamp.store(StampOf(*record, kNoVersion), std::memory_order_relaxed);
    written_.bytes += sizeof(ChunkRecord);
  }

  const uint64_t shards = (layout_.norm_sums - layout_.shards) / sizeof(ShardRecord);
  for (; written_.shards < shards; ++written_.shards) {
    if (written_.bytes >= until) return false;
    new (shard_record(written_.shards)) ShardRecord{};
    written_.bytes += sizeof(ShardRecord);
  }
  return true;
}

void JobRecordWriter::WriteHead(const JobIdentity& identity, const Places& places) {
  record_ = new (record_) JobRecord{};
  record_->layout = kKeptLayout;
  record_->job = identity.job;
  record_->nonce = identity.nonce;
  record_->fingerprint = identity.fingerprint;
  record_->uid = identity.uid;
  record_->parameter_count = spec_->parameters.size();
  record_->chunk_count = static_cast<uint32_t>(spec_->chunks.size());
  record_->extent_count = static_cast<uint32_t>(places.count);

  record_->extents_at = layout_.extents;
  record_->spec_at = layout_.spec;
  record_->spec_bytes = spec_bytes_;
  record_->spec_crc = written_.spec_crc;
  record_->extents_crc = written_.places_crc;
  record_->crc = CrcOf(*record_);

  WriteNote(identity.note, record_);
  record_->steps[0].loss_scale = 1;
  record_->steps[0].crc = CrcOf(record_->steps[0]);
  for (Rank rank = 0; rank < spec_->world; ++rank) new (&staging_[rank]) StagingRecord{};
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

bool JobRecordWriter::NoteDemoted(std::span<const uint8_t> directories, uint32_t rows_max) {
  if (demoted_noted_ == 0) demoted_crc_ = DemotedCrc(record_->nonce, directories.size());
  const auto end = static_cast<ChunkId>(
      std::min<uint64_t>(directories.size(), uint64_t{demoted_noted_} + rows_max));
  for (ChunkId id = demoted_noted_; id < end; ++id) chunks_[id].demoted_to = directories[id];
  demoted_crc_ =
      DemotedCrc({chunks_ + demoted_noted_, uint64_t{end} - demoted_noted_}, demoted_crc_);
  demoted_noted_ = end;
  TP_POINT("server.demotion_noted");
  if (end < directories.size()) return false;

  record_->demoted.store(DemotedWord(end, demoted_crc_), std::memory_order_release);
  TP_POINT("server.demotion_committed");
  return true;
}

}  // namespace tidepool::memserver
