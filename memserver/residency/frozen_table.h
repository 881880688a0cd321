// FrozenTable: the frozen chunks of all users: where in the host pool their bytes lie, how many
// jobs hold them, and which session uploads them.
//
// One thread (the serve loop). Between NextHash and EndHash workers read the bytes of a chunk and
// change its hasher; they do nothing else. Invariants:
//  1. no two chunks of the table have the same user, size and content; users share nothing;
//  2. a chunk's memory was taken when the first job listed it, and is returned when the last job
//     that lists it has gone: `holders` counts the listings by jobs of the table of jobs;
//  3. bytes are written only while the chunk is not sealed, by its one uploader, in order from the
//     start; fetches read them only once it is sealed;
//  4. a chunk is sealed only when all of its bytes were hashed and match its name. The seal is in
//     kept memory before anybody is told about it;
//  5. a new upload begins only when no byte of the former one is at a worker or in flight;
//  6. a session uploads one chunk at a time, so there are at most as many uploads as sessions. That
//     bounds a scan of all uploads, in a turn or at the end of a session, however many chunks a job
//     lists;
//  7. bytes are summed by user as chunks come and go. A job's list is traversed only when the job
//     comes or goes, in slices. Its missing bytes are found from the user's chunks if those are
//     fewer, once per change of the table;
//  8. one job of a user lists at a time, and no chunk of that user is freed meanwhile: what it
//     lacked when it began, less what it has added, is what it still needs (promised_bytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/formats/content_hash.h"
#include "base/ids.h"
#include "base/status.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/residency/kept/kept_records.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

// A frozen chunk's name: whose bytes, and which.
struct FrozenName {
  uint32_t uid = 0;
  uint64_t bytes = 0;
  ContentHash content;
  friend auto operator<=>(const FrozenName&, const FrozenName&) = default;
};

// One chunk of the table.
struct FrozenChunk {
  FrozenName name;
  Extent extent;
  FrozenRecord* record = nullptr;
  std::byte* data = nullptr;
  uint32_t holders = 0;
  bool sealed = false;
  // Members of the upload.
  SessionId uploader = 0;  // 0: none
  JobId uploader_job = 0;
  ChunkId uploader_chunk = 0;  // this chunk's id in that job
  // Byte counts from the start: arrived or in flight; arrived; hashed or at a worker.
  uint64_t started = 0, filled = 0, hashed = 0;
  uint32_t copies = 0;  // in flight
  bool at_worker = false;
  bool wanted = false;       // a rank has waited since the upload began
  uint64_t filled_seen = 0;  // as PollUploads saw it at `moved_ns`
  int64_t moved_ns = 0;
  SessionId rejected = 0;  // session whose bytes did not match the name, until it is answered
  uint32_t awaits = 0;     // former servers that may have been uploading it (see Await)
};

class FrozenTable;

// The frozen chunks of one job, in the order in which it lists them; the destructor releases them.
class FrozenHold {
 public:
  FrozenHold() = default;
  explicit FrozenHold(FrozenTable* table) : table_(table) {}
  ~FrozenHold();
  FrozenHold(FrozenHold&& other) noexcept;
  FrozenHold& operator=(FrozenHold&& other) noexcept;

  std::span<FrozenChunk* const> chunks() const { return chunks_; }
  FrozenTable* table() const { return table_; }
  // True while not all chunks of the job's list are held yet.
  bool listing() const { return lists_for_.has_value(); }

 private:
  friend class FrozenTable;
  FrozenTable* table_ = nullptr;
  std::optional<uint32_t> lists_for_;  // the user, until all are listed
  std::vector<FrozenChunk*> chunks_;
};

class FrozenTable {
 public:
  // Most bytes that a worker hashes at once: about 4 ms.
  static constexpr uint64_t kHashBytesMax = 4 * kMiB;
  // Chunks that are listed, or released, in a turn: about 2 ms.
  static constexpr uint32_t kRowsPerTurn = 2048;
  // An uploader that puts nothing for this long while another rank waits loses its claim.
  static constexpr int64_t kStallNs = 30'000'000'000;

  explicit FrozenTable(HostPool* pool) : pool_(pool) {}
  FrozenTable(const FrozenTable&) = delete;
  FrozenTable& operator=(const FrozenTable&) = delete;

  // Pool bytes of the chunks that the job lists and the user does not have yet.
  uint64_t MissingBytes(const shm::JobSpec& spec, uint32_t uid) const;
  // Begins to list the chunks of a job, and promises it the pool bytes that it lacks. Errors:
  // kNotReady while another job of the user is listing.
  Result<FrozenHold> Begin(const shm::JobSpec& spec, uint32_t uid);
  // Takes up to `rows` more of them, in order; the hold is no longer listing() when it has all.
  // Errors: kPoolFull if the pool is too fragmented (admission has checked the sum before),
  // kNotReady if a former server may still put a chunk.
  Status TakeMore(const shm::JobSpec& spec, uint32_t rows, FrozenHold* hold);
  // Lists all of them at once.
  Result<FrozenHold> Take(const shm::JobSpec& spec, uint32_t uid);
  // Releases holds that went away, in slices; true when there were some.
  bool ReleaseMore(uint32_t rows);
  // No new job shares the chunk until these former servers have ended, unless it is sealed.
  void Await(FrozenChunk* chunk, uint32_t servers);
  void ForgetServers(uint32_t servers) { awaited_ &= ~servers; }
  // Takes over the chunks that another server left at these places of the pool. Errors:
  // kKeptMemoryBad.
  Result<FrozenHold> Recover(const shm::JobSpec& spec, uint32_t uid,
                             std::span<const uint64_t> places);

  enum class Claim {
    kAlreadyPresent,
    // Nobody uploads it, or the asker did and asks again: the asker must put it, from the start.
    kYours,
    kWait,      // another session puts it, or the asker's upload of another chunk has not ended
    kRejected,  // what the asker had put does not match the name
  };
  // Claims the upload. `id` is the chunk's id in that job.
  Claim TakeClaim(FrozenChunk* chunk, SessionId session, JobId job, ChunkId id);
  // The uploader begins to put `bytes` from offset `started` on.
  void StartPut(FrozenChunk* chunk, uint64_t bytes);
  void EndPut(FrozenChunk* chunk, uint64_t bytes);
  // The put's bytes will not arrive, because its session ends.
  void DropPut(FrozenChunk* chunk) { --chunk->copies; }
  // Ends the upload of a session that ends.
  void Leave(SessionId session);

  // The next bytes for a worker, from an upload by this job: `bytes` of the chunk from `begin` on.
  // Null: none.
  FrozenChunk* NextHash(JobId job, uint64_t* begin, uint64_t* bytes);
  // The bytes of NextHash are in the record's hasher. True if this seals the chunk.
  bool EndHash(FrozenChunk* chunk);
  bool uploading() const { return !uploads_.empty(); }
  // Takes claims from uploaders that hold up others. True if there was one.
  bool PollUploads(int64_t now_ns);

  // Grows whenever a waiting claim or fetch may go on.
  uint64_t changes() const { return changes_; }
  // Pool bytes of frozen chunks, and bytes promised to jobs that are listing.
  uint64_t pool_bytes() const { return pool_bytes_; }
  uint64_t promised_bytes() const;
  // The sum of both, by user.
  std::map<uint32_t, uint64_t> BytesByUser() const;
  const std::map<FrozenName, std::unique_ptr<FrozenChunk>>& chunks() const { return chunks_; }
  // Chunks that count as held until ReleaseMore reaches them.
  std::span<FrozenChunk* const> leaving() const { return leaving_; }

 private:
  friend class FrozenHold;
  struct OfUser {
    uint64_t bytes = 0;  // of the pool
    uint64_t chunks = 0;
  };
  // A cached answer of MissingBytes, valid until a chunk comes or goes.
  struct Missing {
    std::weak_ptr<const shm::SpecSums> sums;  // of the specification
    uint32_t uid = 0;
    uint64_t bytes = 0;
  };
  static constexpr size_t kMissingMax = 64;

  void LetGo(FrozenHold* hold);
  void Release(FrozenChunk* chunk);
  Result<FrozenChunk*> FindOrAdd(const shm::JobSpec& spec, const FrozenName& name);
  FrozenChunk* Add(const FrozenName& name, const Extent& extent);
  void Erase(const FrozenName& name);
  uint64_t CountMissing(const shm::JobSpec& spec, uint32_t uid) const;
  bool IsUploadingAnother(SessionId session, const FrozenChunk* chunk) const;
  void EndUpload(FrozenChunk* chunk);

  HostPool* const pool_;
  std::map<FrozenName, std::unique_ptr<FrozenChunk>> chunks_;
  std::map<uint32_t, OfUser> users_;  // only users with chunks in the table
  uint64_t pool_bytes_ = 0;
  std::map<uint32_t, uint64_t> promised_;  // by user, while one of the user's jobs lists
  std::vector<FrozenChunk*> leaving_;      // taken from the back
  uint32_t awaited_ = 0;                   // former servers that have not ended
  mutable std::vector<Missing> missing_;   // the oldest first
  std::vector<FrozenChunk*> uploads_;      // those with an uploader
  uint64_t changes_ = 0;
};

}  // namespace tidepool::memserver
