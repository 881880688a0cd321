// Where each table of a job's kept records lies (kept_records.h), and reading records that another
// server has left.
//
// Pure functions, any thread. ReadJobRecords takes any bytes: it allocates no more than a small
// multiple of them and trusts no number before it is checked.
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
  // Jobs of layouts before kLayoutStepSlots end where their slots would be.
  uint64_t EndIn(uint32_t layout) const { return layout < kLayoutStepSlots ? spec_end : end; }
  uint64_t spec_end = 0;
};
RecordsLayout RecordsLayoutOf(const shm::JobSpec& spec, uint64_t spec_bytes);

// Bytes of the planes of a chunk, in the order in which their extents are listed; a plane that the
// job does not have is not listed.
inline constexpr size_t kPlanesMax = 5;
std::array<uint64_t, kPlanesMax> InOrder(const shm::PlaneBytes& bytes);
// How many planes of each chunk are listed: the same for all.
uint64_t PlanesListed(const shm::JobSpec& spec);
// Those of the chunks before this one.
uint64_t PlanesBefore(const shm::JobSpec& spec, ChunkId chunk);

// The parts of a job's records that never change.
struct KeptJob {
  JobId job = 0;
  uint32_t slot = 0;    // in the index
  uint32_t layout = 0;  // that it was made in
  uint64_t nonce = 0;
  uint64_t fingerprint = 0;
  uint32_t uid = 0;
  std::string note;  // empty where none is whole
  std::shared_ptr<const shm::JobSpec> spec;
  uint64_t records_bytes = 0;            // of the records' extent
  std::vector<uint64_t> extent_offsets;  // planes of demoted chunks named as on NVMe
  std::vector<uint64_t> frozen_places;   // in the pool, as `spec` lists them
  // The parts that change, as they were when read.
  Version sealed_version = 0;
  ChunkId demoted = 0;  // the chunks before this one were
};

// Errors: kKeptMemoryBad (which record, what it holds, what it should).
Result<KeptJob> ReadJobRecords(std::span<const std::byte> records, const IndexedJob& indexed);

}  // namespace tidepool::memserver
