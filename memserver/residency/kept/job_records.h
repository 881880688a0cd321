// The layout of the tables in a job's kept records (kept_records.h), and reading records that
// another server left.
//
// Pure functions, any thread. ReadJobRecords accepts any bytes: it allocates no more than a small
// multiple of them and checks every number before it trusts it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "memserver/residency/kept/kept_index.h"
#include "memserver/residency/kept/kept_records.h"
#include "shm/spec/job_spec.h"
#include "shm/spec/state_bytes.h"

namespace tidepool::memserver {

// Offsets from the start of the records; each table ends where the next begins.
struct RecordsLayout {
  uint64_t chunks = 0, staging = 0, progress = 0, shards = 0, norm_sums = 0, extents = 0,
           frozen = 0, spec = 0, slots = 0, end = 0;
  // Jobs of layouts before kLayoutStepSlots end where their slots would begin.
  uint64_t EndIn(uint32_t layout) const { return layout < kLayoutStepSlots ? spec_end : end; }
  uint64_t spec_end = 0;
};
RecordsLayout RecordsLayoutOf(const shm::JobSpec& spec, uint64_t spec_bytes);

// The number of planes of a chunk, listed in the order of their extents; a plane that the job does
// not have is not listed.
inline constexpr size_t kPlanesMax = 5;
std::array<uint64_t, kPlanesMax> InOrder(const shm::PlaneBytes& bytes);
// The number of listed planes of each chunk: the same for all.
uint64_t PlanesListed(const shm::JobSpec& spec);
// The number of listed planes of the chunks before this one.
uint64_t PlanesBefore(const shm::JobSpec& spec, ChunkId chunk);

// The contents of a job's records. First the parts that never change.
struct KeptJob {
  JobId job = 0;
  uint32_t slot = 0;    // in the index
  uint32_t layout = 0;  // layout that the job was made in
  uint64_t nonce = 0;
  uint64_t fingerprint = 0;
  uint32_t uid = 0;
  std::string note;  // empty if damaged or absent
  std::shared_ptr<const shm::JobSpec> spec;
  uint64_t records_bytes = 0;            // of the records' extent
  std::vector<uint64_t> extent_offsets;  // planes of demoted chunks are named as on NVMe
  std::vector<uint64_t> frozen_places;   // in the pool, in the order of `spec`
  // The parts that change, as read.
  Version sealed_version = 0;
  ChunkId demoted = 0;  // the chunks before this one were demoted
};

// Reads a job's records. Errors: kKeptMemoryBad (which record, its value, the right one).
Result<KeptJob> ReadJobRecords(std::span<const std::byte> records, const IndexedJob& indexed);

}  // namespace tidepool::memserver
