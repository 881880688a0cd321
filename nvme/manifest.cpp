#include "nvme/manifest.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/formats/crc32c.h"

namespace tidepool::nvme {
namespace {

struct ManifestHeader {
  uint32_t magic;
  uint32_t format;
  uint64_t generation, store, capacity;
  uint32_t entries;
  uint32_t reserved;
};

// The last 4 bytes of the file.
constexpr uint64_t kCrcAt = kManifestBytes - 4;
constexpr uint64_t kEntriesAt = kPageBytes / 2;  // the table ends before the checksum
static_assert(sizeof(ManifestHeader) <= kEntriesAt &&
              kEntriesAt + kManifestEntriesMax * sizeof(ManifestEntry) <= kCrcAt);

Status Bad(const std::string& what) {
  return Status(ErrorId::kNvmeManifestBad,
                "a manifest of the NVMe directory cannot be trusted: " + what);
}

Status CheckEntries(const Manifest& manifest) {
  std::vector<ManifestEntry> sorted = manifest.entries;
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });

  uint64_t end = 0;
  for (const ManifestEntry& entry : sorted) {
    const bool pages =
        entry.offset % kPageBytes == 0 && entry.bytes % kPageBytes == 0 && entry.bytes > 0;
    if (!pages || entry.job == 0 || entry.has_epoch > 1) return Bad("an entry is malformed");
    if (entry.offset < end || entry.offset > manifest.capacity ||
        entry.bytes > manifest.capacity - entry.offset) {
      return Bad("ranges overlap or leave the file");
    }
    end = entry.offset + entry.bytes;
  }

  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.job < b.job; });
  const auto twice = std::adjacent_find(
      sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.job == b.job; });
  return twice == sorted.end() ? Status() : Bad("a job is named twice");
}

}  // namespace

const ManifestEntry* Manifest::Find(uint64_t job) const {
  const auto it = std::find_if(entries.begin(), entries.end(),
                               [job](const ManifestEntry& entry) { return entry.job == job; });
  return it == entries.end() ? nullptr : &*it;
}
ManifestEntry* Manifest::Find(uint64_t job) {
  return const_cast<ManifestEntry*>(std::as_const(*this).Find(job));
}

uint64_t Manifest::used_bytes() const {
  uint64_t sum = 0;
  for (const ManifestEntry& entry : entries) sum += entry.bytes;
  return sum;
}

std::optional<uint64_t> Manifest::FindGap(uint64_t bytes) const {
  if (entries.size() >= kManifestEntriesMax || bytes > capacity) return std::nullopt;
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  for (const ManifestEntry& entry : entries)
    taken.emplace_back(entry.offset, entry.offset + entry.bytes);
  taken.emplace_back(capacity, capacity);
  std::sort(taken.begin(), taken.end());

  uint64_t begin = 0;
  for (const auto& [from, to] : taken) {
    if (from - begin >= bytes) return begin;
    begin = to;
  }
  return std::nullopt;
}

void EncodeManifest(const Manifest& manifest, std::span<std::byte> bytes) {
  TP_CHECK(bytes.size() == kManifestBytes && manifest.entries.size() <= kManifestEntriesMax,
           "a manifest has one size");
  std::memset(bytes.data(), 0, bytes.size());

  const ManifestHeader header{.magic = kManifestMagic,
                              .format = kManifestFormat,
                              .generation = manifest.generation,
                              .store = manifest.store,
                              .capacity = manifest.capacity,
                              .entries = static_cast<uint32_t>(manifest.entries.size()),
                              .reserved = 0};
  std::memcpy(bytes.data(), &header, sizeof header);

  if (!manifest.entries.empty()) {
    std::memcpy(bytes.data() + kEntriesAt, manifest.entries.data(),
                manifest.entries.size() * sizeof(ManifestEntry));
  }
  const uint32_t crc = Crc32c(bytes.first(kCrcAt));
  std::memcpy(bytes.data() + kCrcAt, &crc, sizeof crc);
}

Result<Manifest> DecodeManifest(std::span<const std::byte> bytes) {
  if (bytes.size() != kManifestBytes)
    return Bad("it has " + std::to_string(bytes.size()) + " bytes");
  uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + kCrcAt, sizeof crc);
  if (crc != Crc32c(bytes.first(kCrcAt))) return Bad("its checksum does not fit");

  ManifestHeader header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kManifestMagic) return Bad("it does not begin as a manifest");
  if (header.format != kManifestFormat)
    return Bad("it has format " + std::to_string(header.format) +
               "; this memserver knows format 1");
  if (header.entries > kManifestEntriesMax || header.capacity % kPageBytes != 0)
    return Bad("a number is out of range");

  Manifest manifest{header.generation, header.store, header.capacity, {}};
  manifest.entries.resize(header.entries);
  if (header.entries > 0) {
    std::memcpy(manifest.entries.data(), bytes.data() + kEntriesAt,
                header.entries * sizeof(ManifestEntry));
  }
  TP_RETURN_IF_ERROR(CheckEntries(manifest));
  return manifest;
}

}  // namespace tidepool::nvme
