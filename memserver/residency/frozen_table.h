// FrozenTable: the frozen chunks of all users: which bytes lie where in the host pool, for how many
// jobs, and who is putting them there.
//
// One thread (the serve loop). Workers read the bytes of a chunk and change its hasher between
// NextHash and EndHash, nothing else. Invariants:
//  1. no two chunks of the table have one user, size and content; users share nothing;
//  2. a chunk's memory was taken when the first job listed it, and goes back when the last job that
//     lists it has gone: `holders` counts the listings by jobs of the table of jobs;
//  3. bytes are written only while the chunk is not sealed, by its one uploader, in order from the
//     start; they are read by fetches only when it is sealed;
//  4. a chunk is sealed only when all of its bytes were hashed, and are what its name says. The
//     seal is in kept memory before anybody is told of it;
//  5. a new upload begins only when nothing of the former one is at a worker or on its way;
//  6. a session uploads one chunk at a time, so there are at most as many uploads as sessions: what
//     looks at all of them, each turn or when a session ends, is bounded by that, whatever number
//     of chunks a job lists;
//  7. bytes are added up by user as chunks come and go. What a job lists is gone through only when
//     it comes and goes itself, and then in slices; to say what it lacks, the user's chunks are,
//     where those are fewer, and once for each change of the table;
//  8. one job of a user lists at a time, and meanwhile no chunk of that user goes away: so what it
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

// Whose bytes, and which.
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
  // The upload.
  SessionId uploader = 0;  // 0: nobody
  JobId uploader_job = 0;
  ChunkId uploader_chunk = 0;  // this chunk's id in that job
  // Bytes from the start: in flight or in; in; hashed or at a worker.
  uint64_t started = 0, filled = 0, hashed = 0;
  uint32_t copies = 0;  // in flight
  bool at_worker = false;
  bool wanted = false;       // a rank has waited since the upload began
  uint64_t filled_seen = 0;  // by PollUploads, at `moved_ns`
  int64_t moved_ns = 0;
  SessionId rejected = 0;  // whose bytes did not match the name, until it is answered
  uint32_t awaits = 0;     // former servers that may have been putting it (see Await)
};

class FrozenTable;

// The frozen chunks of one job, in the order in which it lists them; lets go of them when
// destroyed.
class FrozenHold {
 public:
  FrozenHold() = default;
  explicit FrozenHold(FrozenTable* table) : table_(table) {}
  ~FrozenHold();
  FrozenHold(FrozenHold&& other) noexcept;
  FrozenHold& operator=(FrozenHold&& other) noexcept;

  std::span<FrozenChunk* const> chunks() const { return chunks_; }
  FrozenTable* table() const { return table_; }
  // Not all chunks of the job's list are held yet.
  bool listing() const { return lists_for_.has_value(); }

 private:
  friend class FrozenTable;
  FrozenTable* table_ = nullptr;
  std::optional<uint32_t> lists_for_;  // the user, until all are listed
  std::vector<FrozenChunk*> chunks_;
};

class FrozenTable {
 public:
  // Most bytes of one piece of work for a worker: about 4 ms.
  static constexpr uint64_t kHashBytesMax = 4 * kMiB;
  // Chunks that are listed, or let go of, in a turn: about 2 ms.
  static constexpr uint32_t kRowsPerTurn = 2048;
  // An uploader that puts nothing for so long while another rank waits loses its claim.
  static constexpr int64_t kStallNs = 30'000'000'000;

  explicit FrozenTable(HostPool* pool) : pool_(pool) {}
  FrozenTable(const FrozenTable&) = delete;
  FrozenTable& operator=(const FrozenTable&) = delete;

  // Bytes of the pool for the chunks that the job lists and the user does not have yet.
  uint64_t MissingBytes(const shm::JobSpec& spec, uint32_t uid) const;
  // Begins to list the chunks of a job, and promises it what it lacks of the pool. Errors:
  // kNotReady while another job of the user is doing so.
  Result<FrozenHold> Begin(const shm::JobSpec& spec, uint32_t uid);
  // Takes up to so many more of them, in order; the hold is no longer listing() when all are there.
  // Errors: kPoolFull when the pool is too fragmented (admission has checked the sum before),
  // kNotReady where a former server may still put a chunk.
  Status TakeMore(const shm::JobSpec& spec, uint32_t rows, FrozenHold* hold);
  // All at once.
  Result<FrozenHold> Take(const shm::JobSpec& spec, uint32_t uid);
  // Holds that went away are let go of in slices; true when there were some.
  bool ReleaseMore(uint32_t rows);
  // The chunk is shared with nobody new until these former servers have ended, unless it is sealed.
  void Await(FrozenChunk* chunk, uint32_t servers);
  void ForgetServers(uint32_t servers) { awaited_ &= ~servers; }
  // The chunks as another server has left them, at these places of the pool. Errors:
  // kKeptMemoryBad.
  Result<FrozenHold> Recover(const shm::JobSpec& spec, uint32_t uid,
                             std::span<const uint64_t> places);

  enum class Claim {
    kAlreadyPresent,
    // Nobody uploads it, or the asker did and asks again: the asker is to put it, from the start.
    kYours,
    kWait,      // another session puts it, or the asker has not ended the upload of another chunk
    kRejected,  // what the asker had put is not what the name says
  };
  // `id` is the chunk's id in that job.
  Claim TakeClaim(FrozenChunk* chunk, SessionId session, JobId job, ChunkId id);
  // The uploader begins to put `bytes` from `started` on.
  void StartPut(FrozenChunk* chunk, uint64_t bytes);
  void EndPut(FrozenChunk* chunk, uint64_t bytes);
  // The put's bytes will not arrive, because its session ends.
  void DropPut(FrozenChunk* chunk) { --chunk->copies; }
  // The session ends: its upload does.
  void Leave(SessionId session);

  // The next bytes for a worker, of an upload by this job: `bytes` of the chunk from `begin` on.
  // Null: none.
  FrozenChunk* NextHash(JobId job, uint64_t* begin, uint64_t* bytes);
  // The bytes of NextHash are in the record's hasher. True when the chunk is sealed with them.
  bool EndHash(FrozenChunk* chunk);
  bool uploading() const { return !uploads_.empty(); }
  // Takes claims from uploaders that hold up others. True when there was one.
  bool PollUploads(int64_t now_ns);

  // Grows whenever a waiting claim or fetch may go on.
  uint64_t changes() const { return changes_; }
  // Bytes of the pool that frozen chunks take, and that jobs which list were promised besides.
  uint64_t pool_bytes() const { return pool_bytes_; }
  uint64_t promised_bytes() const;
  // Both together.
  std::map<uint32_t, uint64_t> BytesByUser() const;
  const std::map<FrozenName, std::unique_ptr<FrozenChunk>>& chunks() const { return chunks_; }
  // Those that count as held until ReleaseMore comes to them.
  std::span<FrozenChunk* const> leaving() const { return leaving_; }

 private:
  friend class FrozenHold;
  struct OfUser {
    uint64_t bytes = 0;  // of the pool
    uint64_t chunks = 0;
  };
  // An answer of MissingBytes, good until a chunk comes or goes.
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
  std::map<uint32_t, OfUser> users_;  // with chunks in the table
  uint64_t pool_bytes_ = 0;
  std::map<uint32_t, uint64_t> promised_;  // by user, while a job of it lists
  std::vector<FrozenChunk*> leaving_;      // from the back
  uint32_t awaited_ = 0;                   // former servers that have not ended
  mutable std::vector<Missing> missing_;   // the oldest first
  std::vector<FrozenChunk*> uploads_;      // those with an uploader
  uint64_t changes_ = 0;
};

}  // namespace tidepool::memserver
