// Manifest: the table of contents of one directory of slots: which job has which range of the data
// file, and which epoch is committed.
//
// A value and pure functions, any thread. It is stored twice, in two files of kManifestBytes;
// generation g is written to file g % 2, so that one whole manifest always remains while the other
// is written. Readers take the highest generation that is whole. Invariants: ranges are whole
// pages, inside the capacity, and do not overlap; a job's nonce occurs once and is not 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/units.h"

namespace tidepool::nvme {

inline constexpr uint32_t kManifestMagic = 0x4d4e5054;  // "TPNM"
inline constexpr uint32_t kManifestFormat = 1;
inline constexpr uint32_t kManifestEntriesMax = 1024;
inline constexpr uint64_t kManifestBytes = kPageBytes + kManifestEntriesMax * 48;
static_assert(kManifestBytes % kPageBytes == 0);

// The range of one job, in the format on disk.
struct ManifestEntry {
  uint64_t job = 0;  // nonce
  uint64_t offset = 0, bytes = 0;
  uint64_t epoch = 0;      // committed: all pieces of it are on the medium
  uint64_t has_epoch = 0;  // 0: nothing is committed yet
  uint64_t place = 0;      // number of this directory at the reserving server
};
static_assert(sizeof(ManifestEntry) == 48);

struct Manifest {
  uint64_t generation = 0;
  uint64_t store = 0;     // nonce of the directory's files
  uint64_t capacity = 0;  // of the data file, in bytes
  std::vector<ManifestEntry> entries;

  // The job's entry; null if it has none.
  const ManifestEntry* Find(uint64_t job) const;
  ManifestEntry* Find(uint64_t job);
  // Bytes of all ranges.
  uint64_t used_bytes() const;
  // Start of the first gap of `bytes`; nothing if there is none, or no free entry in the table.
  std::optional<uint64_t> FindGap(uint64_t bytes) const;
};

// Fills exactly kManifestBytes; allocates nothing.
void EncodeManifest(const Manifest& manifest, std::span<std::byte> bytes);
// Decodes a manifest. Errors: kNvmeManifestBad, for any bytes that EncodeManifest does not write.
Result<Manifest> DecodeManifest(std::span<const std::byte> bytes);

}  // namespace tidepool::nvme
