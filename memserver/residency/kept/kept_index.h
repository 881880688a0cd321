// KeptIndex: the table of contents of kept memory: the geometry of the host pool, and where each
// job's records lie in it.
//
// Lies in a memfd of its own, beside the pool's; the keeper holds both. One writer (the serve
// loop); read once, at the start of the next server. Clients never share any of it. A job is in the
// index exactly while a restart may continue it: its slot is published by one 64-bit store when the
// job's records are complete, and cleared by one when the job's removal begins (or, while a GPU
// still copies for it, when that has ended).
//
// Its header also names the servers whose copies may still be under way: each notes its process
// before it serves, and clears the note when it stops with nothing under way. Servers of layout 8
// that do not know the header left zeros there, which mean that nothing is known.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/residency/pool/host_pool.h"
#include "shm/segment.h"

namespace tidepool::memserver {

// Layout of the index and of all kept records. A server continues kept memory of its own layout and
// of layouts down to kKeptLayoutMin, whose jobs it carries over unchanged; it refuses any other.
// These are variables so that a test can build the next release.
extern const uint32_t kKeptLayout;
extern const uint32_t kKeptLayoutMin;

inline constexpr uint32_t kIndexMagic = 0x49445054;  // "TPDI"
inline constexpr uint32_t kIndexSlots = 1024;        // upper bound of jobs_max
inline constexpr uint64_t kIndexBytes = 4096 + uint64_t{kIndexSlots} * 64;

inline constexpr uint32_t kServersNoted = 32;  // bits of JobRecord::gpu_servers

// Identifies a process beyond the life of a pidfd: a reused pid has another start.
struct ProcessName {
  int32_t pid = 0;  // 0: unknown
  uint64_t start = 0;
  uint64_t pid_namespace = 0;  // inode; in another namespace the pid names another process
  friend bool operator==(const ProcessName&, const ProcessName&) = default;
};
struct NotedServer {
  uint32_t place = 0;
  ProcessName process;
};
// A set of servers is a bit mask of their places.
constexpr uint32_t BitOf(uint32_t place) {
  return uint32_t{1} << place;
}

// A job that the index names.
struct IndexedJob {
  uint32_t slot = 0;
  JobId job = 0;
  uint64_t nonce = 0;
  uint64_t records_offset = 0, records_bytes = 0;  // in the pool
};

// The contents of the index.
struct IndexContents {
  uint32_t layout = 0;
  uint64_t pool_nonce = 0;
  JobId last_job = 0;  // highest number of any job; arbitrary if damaged
  PoolGeometry geometry;
  std::vector<IndexedJob> jobs;
  uint32_t damaged_slots = 0;  // claimed by a job, but their checksum is wrong
  std::vector<NotedServer> servers;
};

// Reads the trustworthy part of `bytes`. Errors: kKeptLayoutUnknown (names both layouts),
// kKeptMemoryBad.
Result<IndexContents> ReadIndex(std::span<const std::byte> bytes);

class KeptIndex {
 public:
  // Errors: kMemoryMapFailed.
  static Result<std::unique_ptr<KeptIndex>> Create(const PoolGeometry& geometry,
                                                   uint64_t pool_nonce);
  // Takes over the index of a server that has ended: slots that cannot be trusted are cleared, and
  // the layout becomes this server's. Errors: those of ReadIndex, kKeptMemoryBad (the descriptor is
  // something else), kMemoryMapFailed.
  static Result<std::unique_ptr<KeptIndex>> Adopt(UniqueFd fd, IndexContents* contents);

  // Adds a job and returns its slot. `records` is complete: its magic is stored. Requires a free
  // slot (jobs_max is at most kIndexSlots).
  uint32_t Add(JobId job, uint64_t nonce, const Extent& records);
  void Remove(uint32_t slot);

  // Notes a server's process; returns the bit of its place, or nothing if all are taken.
  std::optional<uint32_t> NoteServer(const ProcessName& process);
  // Clears servers whose copies are no longer under way.
  void ForgetServers(uint32_t servers);

  // A name for job `job` that no other job of this pool ever had.
  uint64_t NonceOf(JobId job) const;
  int fd() const { return segment_->fd(); }

 private:
  explicit KeptIndex(std::unique_ptr<shm::Segment> segment) : segment_(std::move(segment)) {}
  std::unique_ptr<shm::Segment> segment_;
};

}  // namespace tidepool::memserver
