#include "memserver/residency/kept/job_records.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/formats/crc32c.h"
#include "base/planted.h"
#include "base/units.h"
#include "memserver/residency/kept/step_slots.h"
#include "shm/spec/decode.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {
namespace {

// Jobs are numbered from 1 and versions from 0, consecutively: no run of the server comes near
// these bounds.
constexpr JobId kJobIdsMax = JobId{1} << 31;
constexpr Version kKeptVersionsMax = kVersionLimit / 2;

Status Bad(const IndexedJob& indexed, const std::string& what) {
  return Status(ErrorId::kKeptMemoryBad, "job " + std::to_string(indexed.job) +
                                             " in kept memory cannot be trusted: " + what);
}

Status CheckIdentity(const JobRecord& record, const IndexedJob& indexed) {
  if (record.magic.load(std::memory_order_acquire) != kJobRecordMagic)
    return Bad(indexed, "its records are not complete");
  if (record.crc != CrcOf(record)) return Bad(indexed, "the check over its record does not fit");
  if (record.layout < kKeptLayoutMin || record.layout > kKeptLayout) {
    return Bad(indexed, "its records have layout " + std::to_string(record.layout));
  }

  if (record.job != indexed.job || record.nonce != indexed.nonce)
    return Bad(indexed, "its record is that of another job");
  if (record.job == 0 || record.job > kJobIdsMax)
    return Bad(indexed, "no server gives out such a number");
  return Status();
}

// Checks the step record that decides about the sealed version.
Status CheckStep(const JobRecord& record, const IndexedJob& indexed) {
  const Version sealed = record.sealed_version.load(std::memory_order_acquire);
  const StepRecord& step = record.steps[sealed % 2];
  if (sealed >= kKeptVersionsMax)
    return Bad(indexed, "version " + std::to_string(sealed) + " is impossible");
  if (step.crc != CrcOf(step) && !TP_PLANTED("recover.step_record_unchecked"))
    return Bad(indexed, "the check over its step record does not fit");
  if (step.version == sealed) return Status();
  return Bad(indexed, "its step record is of version " + std::to_string(step.version) +
                          "; version " + std::to_string(sealed) + " is sealed");
}

// [at, at + bytes) of the records, if they contain it.
Result<std::span<const std::byte>> Part(std::span<const std::byte> records, uint64_t at,
                                        uint64_t bytes, const IndexedJob& indexed) {
  if (at > records.size() || bytes > records.size() - at)
    return Bad(indexed, "a table lies outside its records");
  return records.subspan(at, bytes);
}

// Why the slot of the sealed step cannot be trusted; null if it can, or if the job has none.
const char* WhyBadSlots(std::span<const std::byte> records, const RecordsLayout& layout,
                        const shm::JobSpec& spec) {
  const auto& record = *reinterpret_cast<const JobRecord*>(records.data());
  if (record.layout < kLayoutStepSlots) return nullptr;
  // Only read: the records do not change.
  auto* const at = const_cast<std::byte*>(records.data());
  return StepSlots(spec, reinterpret_cast<JobRecord*>(at), at + layout.slots)
      .WhyBad(record.sealed_version.load(std::memory_order_relaxed));
}

// The list of extents names the planes that demoted chunks have left as those of chunks spilled
// from the beginning.
Status ReadDemotion(std::span<const std::byte> records, const RecordsLayout& layout,
                    const IndexedJob& indexed, KeptJob* kept) {
  const uint64_t word =
      reinterpret_cast<const JobRecord*>(records.data())->demoted.load(std::memory_order_acquire);
  if (word == 0) return Status();

  const shm::JobSpec& spec = *kept->spec;
  const uint32_t count = DemotedCount(word);
  const auto* chunks = reinterpret_cast<const ChunkRecord*>(records.data() + layout.chunks);
  if (count == 0 || count > spec.chunks.size() || !shm::MaySpill(spec) || spec.states_on_gpu > 0 ||
      DemotedWord(kept->nonce, {chunks, count}) != word) {
    return Bad(indexed, "its note of what was moved to NVMe does not fit its check");
  }

  kept->demoted = count;
  size_t at = kept->extent_offsets.size() - PlanesListed(spec);

  for (ChunkId id = 0; id < count; ++id) {
    const auto all = InOrder(shm::PlaneBytesOf(spec, id)),
               left = InOrder(shm::HostPlaneBytesOf(spec, id, true));
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] > 0 && left[i] == 0)
        kept->extent_offsets[at] = kSpilledExtent - chunks[id].demoted_to;
      at += all[i] > 0 ? 1 : 0;
    }
  }
  return Status();
}

}  // namespace

std::array<uint64_t, kPlanesMax> InOrder(const shm::PlaneBytes& bytes) {
  return {bytes.master, bytes.momentum, bytes.variance, bytes.param16, bytes.gradient};
}

uint64_t PlanesListed(const shm::JobSpec& spec) {
  return PlanesBefore(spec, static_cast<ChunkId>(spec.chunks.size()));
}

// An fp32 chunk of a 16-bit job lacks one of the planes that the last chunk has.
uint64_t PlanesBefore(const shm::JobSpec& spec, ChunkId chunk) {
  const auto bytes = InOrder(shm::PlaneBytesOf(spec, static_cast<ChunkId>(spec.chunks.size() - 1)));
  const auto planes =
      std::count_if(bytes.begin(), bytes.end(), [](uint64_t plane) { return plane > 0; });
  const ChunkId fewer = TP_PLANTED("residency.f32_chunks_placed_alike") ? 0 : spec.f32_chunks;
  return static_cast<uint64_t>(planes) * chunk - std::min(chunk, fewer);
}

RecordsLayout RecordsLayoutOf(const shm::JobSpec& spec, uint64_t spec_bytes) {
  const shm::TableCounts counts = shm::TableCountsOf(spec);

  RecordsLayout layout;
  layout.chunks = shm::kJobRecordBytes;
  layout.staging = layout.chunks + spec.chunks.size() * sizeof(ChunkRecord);
  layout.progress = layout.staging + spec.world * sizeof(StagingRecord);
  layout.shards = layout.progress + counts.pieces * shm::kProgressBytes;
  layout.norm_sums = layout.shards + counts.shards * sizeof(ShardRecord);
  layout.extents = layout.norm_sums + spec.parameters.size() * sizeof(double);
  layout.frozen = layout.extents + shm::ExtentCount(spec) * sizeof(uint64_t);
  layout.spec = layout.frozen + spec.frozen.size() * sizeof(uint64_t);

  layout.spec_end = layout.spec + spec_bytes;
  layout.slots = RoundUp(layout.spec_end, sizeof(uint64_t));
  layout.end =
      layout.slots + 2 * shm::StepSlotBytes(spec.parameter_groups.size(), spec.parameters.size());
  return layout;
}

Result<KeptJob> ReadJobRecords(std::span<const std::byte> records, const IndexedJob& indexed) {
  if (records.size() < shm::kJobRecordBytes) return Bad(indexed, "its records are cut off");
  const auto& record = *reinterpret_cast<const JobRecord*>(records.data());
  TP_RETURN_IF_ERROR(CheckIdentity(record, indexed));
  TP_RETURN_IF_ERROR(CheckStep(record, indexed));

  TP_ASSIGN_OR_RETURN(const auto spec_bytes,
                      Part(records, record.spec_at, record.spec_bytes, indexed));
  TP_ASSIGN_OR_RETURN(
      const auto extents,
      Part(records, record.extents_at, uint64_t{record.extent_count} * sizeof(uint64_t), indexed));
  if (record.spec_crc != Crc32c(spec_bytes))
    return Bad(indexed, "the check over its specification does not fit");
  if (record.extents_crc != Crc32c(extents))
    return Bad(indexed, "the check over its extents does not fit");

  auto spec = shm::Decode(spec_bytes);
  if (!spec.ok()) return Bad(indexed, spec.status().what());
  const RecordsLayout layout = RecordsLayoutOf(*spec, spec_bytes.size());
  const bool fits = layout.spec == record.spec_at && layout.extents == record.extents_at &&
                    layout.EndIn(record.layout) <= records.size() &&
                    record.extent_count == shm::ExtentCount(*spec) + spec->frozen.size() &&
                    record.chunk_count == spec->chunks.size();
  if (!fits) return Bad(indexed, "its tables do not lie where its specification puts them");

  KeptJob kept;
  kept.job = record.job;
  kept.slot = indexed.slot;
  kept.layout = record.layout;
  kept.nonce = record.nonce;
  kept.fingerprint = record.fingerprint;
  kept.uid = record.uid;
  kept.note = NoteOf(record);

  kept.spec = std::make_shared<const shm::JobSpec>(std::move(spec).value());
  kept.records_bytes = RoundUp(layout.EndIn(record.layout), kPageBytes);
  kept.extent_offsets.resize(shm::ExtentCount(*kept.spec));
  kept.frozen_places.resize(kept.spec->frozen.size());
  const auto places = extents.subspan(kept.extent_offsets.size() * sizeof(uint64_t));
  std::memcpy(kept.extent_offsets.data(), extents.data(), extents.size() - places.size());
  if (!places.empty()) std::memcpy(kept.frozen_places.data(), places.data(), places.size());

  if (kept.extent_offsets.front() != indexed.records_offset)
    return Bad(indexed, "its records do not lie where its extents put them");
  kept.sealed_version = record.sealed_version.load(std::memory_order_relaxed);
  TP_RETURN_IF_ERROR(ReadDemotion(records, layout, indexed, &kept));
  if (const char* why = WhyBadSlots(records, layout, *kept.spec)) return Bad(indexed, why);
  return kept;
}

}  // namespace tidepool::memserver
