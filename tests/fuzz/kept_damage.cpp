#include "tests/fuzz/kept_damage.h"

#include <array>
#include <cstring>

#include "base/formats/crc32c.h"
#include "memserver/residency/kept/job_records.h"
#include "optim/undo_tile.h"
#include "shm/spec/encode.h"

namespace tidepool::memserver {
namespace {

using fuzz::FuzzInput;
using fuzz::OddNumber;

constexpr uint64_t kIndexSlotsAt = 4096;  // kept_index.cpp's layout
constexpr uint64_t kIndexSlotBytes = 64;
constexpr uint64_t kIndexHeaderCrcAt = 44, kIndexHeaderNamedAt = 8;

template <typename N>
void ChangeNumber(FuzzInput* input, std::byte* at) {
  N value{};
  std::memcpy(&value, at, sizeof value);
  value = static_cast<N>(OddNumber(input, value));
  std::memcpy(at, &value, sizeof value);
}

// A 4- or 8-byte number at a multiple of 4 within [begin, begin + bytes), or one byte anywhere in
// it.
void ChangeWithin(FuzzInput* input, std::span<std::byte> bytes, uint64_t begin, uint64_t size) {
  if (size < 8 || begin > bytes.size() || size > bytes.size() - begin) return;
  std::byte* place = bytes.data() + begin + input->Number<uint16_t>() % ((size - 8) / 4 + 1) * 4;
  switch (input->Choice(3)) {
    case 0: return ChangeNumber<uint64_t>(input, place);
    case 1: return ChangeNumber<uint32_t>(input, place);
    default: *place = std::byte{input->Byte()};
  }
}

struct Target {  // one job of the image
  const IndexedJob* job = nullptr;
  const shm::JobSpec* spec = nullptr;
  RecordsLayout layout;
  std::span<std::byte> records;
  JobRecord& record() const { return *reinterpret_cast<JobRecord*>(records.data()); }
};

Target TargetOf(const KeptImage& image, size_t job, std::span<std::byte> pool) {
  Target target{&image.jobs[job], &image.specs[job], {}, {}};
  target.layout = RecordsLayoutOf(*target.spec, shm::Encode(*target.spec).size());
  target.records = pool.subspan(target.job->records_offset, target.job->records_bytes);
  return target;
}

void ChangeRecord(FuzzInput* input, const Target& target) {
  const RecordsLayout& layout = target.layout;
  struct Range {
    uint64_t begin, bytes;
  };
  const std::array<Range, 12> kRanges{{{0, 96},
                                       {offsetof(JobRecord, sealed_version), 48},
                                       {offsetof(JobRecord, steps), sizeof(StepRecord) * 2},
                                       {offsetof(JobRecord, ranks), sizeof(RankRecord) * 2},
                                       {layout.chunks, layout.staging - layout.chunks},
                                       {layout.staging, layout.progress - layout.staging},
                                       {layout.progress, layout.shards - layout.progress},
                                       {layout.shards, layout.norm_sums - layout.shards},
                                       {layout.norm_sums, layout.extents - layout.norm_sums},
                                       {layout.extents, layout.spec - layout.extents},
                                       {layout.spec, layout.spec_end - layout.spec},
                                       {layout.slots, layout.end - layout.slots}}};
  const Range& range = kRanges[input->Choice(kRanges.size())];
  ChangeWithin(input, target.records, range.begin, range.bytes);
}

void ChangeUndo(FuzzInput* input, std::span<std::byte> pool) {
  constexpr uint64_t kNameBytes = 32;  // piece, version, tile, count
  ChangeWithin(input, pool, input->Choice(2) * sizeof(optim::UndoArea), kNameBytes);
}

void ChangeProgress(FuzzInput* input, const Target& target) {
  const uint64_t words = (target.layout.shards - target.layout.progress) / shm::kProgressBytes;
  // As optim::ProgressWord lays it out: version, begin / 256, state; of the eight states three are
  // impossible.
  const uint64_t version =
      input->OneIn(4) ? OddNumber(input, 2) % (uint64_t{1} << 39) : input->Choice(5);
  const uint64_t begin = input->Choice(6);
  const uint64_t word = version << 25 | begin << 3 | input->Choice(8);
  const uint64_t at =
      input->OneIn(3)
          ? target.layout.staging + input->Choice(target.spec->world) * sizeof(StagingRecord) + 32
          : target.layout.progress +
                input->Choice(static_cast<uint32_t>(words)) * shm::kProgressBytes;
  std::memcpy(target.records.data() + at, &word, sizeof word);
}

// The identity first, because the index names it; then what it names.
void FitRecord(uint8_t which, const Target& target) {
  JobRecord& record = target.record();
  const auto within = [&](uint64_t at, uint64_t bytes) {
    return at <= target.records.size() && bytes <= target.records.size() - at;
  };
  const uint64_t extent_bytes = uint64_t{record.extent_count} * 8;
  if ((which & 1) != 0 && within(record.spec_at, record.spec_bytes)) {
    record.spec_crc = Crc32c(target.records.subspan(record.spec_at, record.spec_bytes));
  }
  if ((which & 2) != 0 && within(record.extents_at, extent_bytes))
    record.extents_crc = Crc32c(target.records.subspan(record.extents_at, extent_bytes));
  if ((which & 4) != 0) record.crc = CrcOf(record);
  if ((which & 8) == 0) return;
  for (StepRecord& step : record.steps) step.crc = CrcOf(step);
}

// Stamps of a version that the sealed one allows, whatever else was changed.
void FitStamps(FuzzInput* input, const Target& target) {
  for (ChunkId id = 0; id < target.spec->chunks.size(); ++id) {
    auto& record = *reinterpret_cast<ChunkRecord*>(target.records.data() + target.layout.chunks +
                                                   id * sizeof(ChunkRecord));
    const Version sealed = target.record().sealed_version;
    const Version version = sealed - input->Choice(2);
    if (version < kVersionLimit || version == kNoVersion) record.stamp = StampOf(record, version);
  }
}

void FitIndex(uint8_t which, const KeptImage& image, std::span<std::byte> index) {
  if ((which & 16) != 0) {
    const uint32_t crc =
        Crc32c(index.subspan(kIndexHeaderNamedAt, kIndexHeaderCrcAt - kIndexHeaderNamedAt));
    std::memcpy(index.data() + kIndexHeaderCrcAt, &crc, sizeof crc);
  }
  if ((which & 32) == 0) return;
  for (uint64_t slot = 0; slot < image.jobs.size() + 1; ++slot) {
    std::byte* at = index.data() + kIndexSlotsAt + slot * kIndexSlotBytes;
    std::array<uint64_t, 4> name{};
    std::memcpy(name.data(), at, 3 * 8);
    uint32_t job = 0;
    std::memcpy(&job, at + 24, sizeof job);
    name[3] = job;
    const uint32_t crc = Crc32c(std::as_bytes(std::span(name)));
    std::memcpy(at + 28, &crc, sizeof crc);
  }
}

// The slot of a job once more: two names for one job.
void RepeatSlot(const KeptImage& image, std::span<std::byte> index) {
  std::memcpy(index.data() + kIndexSlotsAt + image.jobs.size() * kIndexSlotBytes,
              index.data() + kIndexSlotsAt, kIndexSlotBytes);
}

}  // namespace

uint32_t DamageKept(FuzzInput* input, const KeptImage& image, std::span<std::byte> index,
                    std::span<std::byte> pool) {
  const uint32_t changes = input->Choice(7);
  const uint8_t fits = input->Byte();
  const Target target =
      TargetOf(image, input->Choice(static_cast<uint32_t>(image.jobs.size())), pool);
  for (uint32_t i = 0; i < changes; ++i) {
    switch (input->Choice(10)) {
      case 0: ChangeWithin(input, index, 0, 48); break;
      case 1: ChangeWithin(input, index, kIndexSlotsAt, kIndexSlotBytes * 3); break;
      case 2: RepeatSlot(image, index); break;
      case 3: ChangeUndo(input, pool); break;
      case 4: ChangeProgress(input, target); break;
      case 5: ChangeWithin(input, pool, 0, pool.size()); break;
      default: ChangeRecord(input, target);
    }
  }
  if (changes == 0) return 0;
  if ((fits & 64) != 0) FitStamps(input, target);
  FitRecord(fits, target);
  FitIndex(fits, image, index);
  return changes;
}

}  // namespace tidepool::memserver
