#include "memserver/residency/kept/kept_records.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/formats/crc32c.h"
#include "base/planted.h"
#include "shm/messages.h"

namespace tidepool::memserver {
namespace {

constexpr uint32_t kAttemptBits = shm::kAttemptBits;
static_assert(kAttemptBits == 24, "a part of the kept layout");
constexpr uint32_t kCountBits = 17;  // micro-batches: at most 2^16
constexpr uint32_t kCheckBits = 24;

constexpr uint64_t Low(uint64_t value, uint32_t bits) {
  return value & ((uint64_t{1} << bits) - 1);
}

// The part of an open-step word that a gradient word repeats: 23 bits of the version, 24 of the
// attempt.
uint64_t AttemptName(uint64_t open_step) {
  return Low(open_step, 64 - kCountBits);
}

}  // namespace

uint64_t OpenStepWord(Version version, uint64_t attempt) {
  TP_CHECK(version < kVersionLimit, "versions fit 39 bits");
  return version << kAttemptBits | Low(attempt, kAttemptBits);
}

Version VersionOfOpenStep(uint64_t open_step) {
  return open_step >> kAttemptBits;
}

uint32_t AttemptOfOpenStep(uint64_t open_step) {
  return static_cast<uint32_t>(Low(open_step, kAttemptBits));
}

uint64_t GradientWord(uint64_t open_step, uint32_t micro_batches) {
  return AttemptName(open_step) << kCountBits | micro_batches;
}

uint32_t MicroBatchesOf(uint64_t word, uint64_t open_step) {
  return word >> kCountBits == AttemptName(open_step) ? static_cast<uint32_t>(Low(word, kCountBits))
                                                      : 0;
}

uint64_t StampOf(const ChunkRecord& record, Version version) {
  TP_CHECK(version < kVersionLimit || version == kNoVersion, "versions fit 39 bits");
  const uint64_t kept = version == kNoVersion ? kVersionLimit : version;
  const std::array<uint64_t, 4> name{record.job_nonce, record.chunk, record.elements, kept};
  return kept << kCheckBits | Low(Crc32c(std::as_bytes(std::span(name))), kCheckBits);
}

std::optional<Version> VersionOf(const ChunkRecord& record) {
  const uint64_t stamp = record.stamp.load(std::memory_order_acquire);
  const Version kept = stamp >> kCheckBits;
  if (kept > kVersionLimit) return std::nullopt;
  const Version version = kept == kVersionLimit ? kNoVersion : kept;
  if (record.magic != kChunkRecordMagic ||
      (StampOf(record, version) != stamp && !TP_PLANTED("recover.stamp_unchecked")))
    return std::nullopt;
  return version;
}

uint32_t DemotedCrc(uint64_t job_nonce, uint64_t count) {
  const std::array<uint64_t, 2> name{job_nonce, count};
  return Crc32c(std::as_bytes(std::span(name)));
}

uint32_t DemotedCrc(std::span<const ChunkRecord> more, uint32_t crc) {
  for (const ChunkRecord& record : more) {
    const std::array<uint64_t, 1> directory{record.demoted_to};
    crc = Crc32c(std::as_bytes(std::span(directory)), crc);
  }
  return crc;
}

uint64_t DemotedWord(uint32_t count, uint32_t crc) {
  return uint64_t{count} << 32 | crc;
}

uint64_t DemotedWord(uint64_t job_nonce, std::span<const ChunkRecord> demoted) {
  return DemotedWord(static_cast<uint32_t>(demoted.size()),
                     DemotedCrc(demoted, DemotedCrc(job_nonce, demoted.size())));
}

uint32_t DemotedCount(uint64_t word) {
  return static_cast<uint32_t>(word >> 32);
}

uint64_t SlottedWord(uint64_t job_nonce, Version version) {
  TP_CHECK(version < kVersionLimit, "versions fit 39 bits");
  const std::array<uint64_t, 2> name{job_nonce, version};
  return version << kCheckBits | Low(Crc32c(std::as_bytes(std::span(name))), kCheckBits);
}

std::optional<Version> SlottedFrom(uint64_t job_nonce, uint64_t word) {
  const Version version = word >> kCheckBits;
  if (version >= kVersionLimit || SlottedWord(job_nonce, version) != word) return std::nullopt;
  return version;
}

uint64_t GpuShareWord(uint64_t job_nonce, Rank rank, uint32_t slot,
                      const std::array<uint8_t, 16>& gpu) {
  std::array<uint64_t, 5> name{job_nonce, rank, slot};
  std::memcpy(&name[3], gpu.data(), gpu.size());
  return uint64_t{Crc32c(std::as_bytes(std::span(name)))} << 32 | slot;
}

std::optional<uint32_t> GpuShareSlot(uint64_t job_nonce, Rank rank, const GpuShareRecord& record) {
  const uint64_t word = record.held.load(std::memory_order_acquire);
  const auto slot = static_cast<uint32_t>(Low(word, 32));
  return slot != 0 && GpuShareWord(job_nonce, rank, slot, record.gpu) == word ? std::optional(slot)
                                                                              : std::nullopt;
}

namespace {

uint32_t CrcOf(const NoteRecord& note, uint64_t job_nonce) {
  const std::array<uint64_t, 2> about{job_nonce, note.bytes};
  const uint32_t text = Crc32c(std::as_bytes(std::span(note.text, note.bytes)));
  return Crc32c(std::as_bytes(std::span(about))) ^ text ^ kJobRecordMagic;
}

}  // namespace

void WriteNote(std::string_view text, JobRecord* record) {
  TP_CHECK(text.size() <= shm::kRunNoteMax, "the frame that brought the note had room for it");
  NoteRecord& note = record->note;
  note.bytes = static_cast<uint32_t>(text.size());
  std::copy(text.begin(), text.end(), note.text);
  note.crc = CrcOf(note, record->nonce);
}

std::string NoteOf(const JobRecord& record) {
  const NoteRecord& note = record.note;
  if (note.bytes > shm::kRunNoteMax) return {};
  const bool whole = note.crc == CrcOf(note, record.nonce) || TP_PLANTED("recover.note_unchecked");
  return whole ? std::string(note.text, note.bytes) : std::string();
}

uint32_t CrcOf(const StepRecord& record) {
  return Crc32c(std::as_bytes(std::span(&record, 1)).first(offsetof(StepRecord, crc)));
}

uint32_t CrcOf(const JobRecord& record) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&record);
  return Crc32c({bytes + offsetof(JobRecord, layout),
                 offsetof(JobRecord, gpu_servers) - offsetof(JobRecord, layout)});
}

uint32_t CrcOf(const FallbackSlotRecord& record) {
  return Crc32c(
      std::as_bytes(std::span(&record, 1)).subspan(offsetof(FallbackSlotRecord, job_nonce)));
}

uint32_t CrcOf(const FrozenRecord& record) {
  constexpr size_t kBegin = offsetof(FrozenRecord, uid);
  const auto* bytes = reinterpret_cast<const std::byte*>(&record);
  return Crc32c({bytes + kBegin, offsetof(FrozenRecord, sealed) - kBegin});
}

}  // namespace tidepool::memserver
