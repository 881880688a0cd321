#include "memserver/residency/frozen_table.h"

#include <algorithm>
#include <array>
#include <new>
#include <set>
#include <string>
#include <utility>

#include "base/buggify.h"
#include "base/check.h"
#include "base/hot.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "shm/spec/frozen.h"
#include "shm/spec/spec_sums.h"

namespace tidepool::memserver {
namespace {

// Only jobs of one user share frozen chunks.
uint32_t NamedUser(uint32_t uid) {
  return TP_PLANTED("residency.frozen_of_any_user") ? 0 : uid;
}

FrozenName NameOf(const shm::FrozenChunkSpec& chunk, uint32_t uid) {
  return {NamedUser(uid), shm::FrozenBytes(chunk), chunk.content};
}

}  // namespace

FrozenHold::~FrozenHold() {
  if (table_ != nullptr) table_->LetGo(this);
}

FrozenHold::FrozenHold(FrozenHold&& other) noexcept
    : table_(std::exchange(other.table_, nullptr)),
      lists_for_(std::exchange(other.lists_for_, std::nullopt)),
      chunks_(std::exchange(other.chunks_, {})) {}

FrozenHold& FrozenHold::operator=(FrozenHold&& other) noexcept {
  std::swap(table_, other.table_);
  std::swap(lists_for_, other.lists_for_);
  std::swap(chunks_, other.chunks_);
  return *this;
}

uint64_t FrozenTable::MissingBytes(const shm::JobSpec& spec, uint32_t uid) const {
  if (spec.frozen.empty()) return 0;
  if (!users_.contains(NamedUser(uid))) return shm::FrozenPoolBytes(spec);

  const auto& sums = spec.sums.made;
  if (sums == nullptr || TP_PLANTED("residency.missing_counted_each_time"))
    return CountMissing(spec, uid);
  for (const Missing& known : missing_) {
    if (known.uid == uid && known.sums.lock() == sums) return known.bytes;
  }
  if (missing_.size() == kMissingMax) missing_.erase(missing_.begin());
  missing_.push_back({sums, uid, CountMissing(spec, uid)});
  return missing_.back().bytes;
}

uint64_t FrozenTable::CountMissing(const shm::JobSpec& spec, uint32_t uid) const {
  TP_POINT("server.frozen_counted");
  const auto& sums = spec.sums.made;
  const uint32_t owner = NamedUser(uid);
  const auto user = users_.find(owner);

  if (sums != nullptr && user != users_.end() && user->second.chunks < sums->frozen.size()) {
    uint64_t bytes = sums->frozen_pool_bytes;
    for (auto it = chunks_.lower_bound({owner, 0, {}});
         it != chunks_.end() && it->first.uid == owner; ++it) {
      const bool listed = std::binary_search(sums->frozen.begin(), sums->frozen.end(),
                                             std::pair(it->first.bytes, it->first.content));
      if (listed) bytes -= it->second->extent.bytes;
    }
    return bytes;
  }

  std::set<FrozenName> missing;
  for (const shm::FrozenChunkSpec& chunk : spec.frozen) {
    const FrozenName name = NameOf(chunk, uid);
    if (!chunks_.contains(name)) missing.insert(name);
  }
  uint64_t sum = 0;
  for (const FrozenName& name : missing) sum += shm::FrozenExtentBytes(name.bytes);
  return sum;
}

// The bytes are not zeroed: all of them are written before any is read.
FrozenChunk* FrozenTable::Add(const FrozenName& name, const Extent& extent) {
  auto chunk = std::make_unique<FrozenChunk>();
  chunk->name = name;
  chunk->extent = extent;
  chunk->record = reinterpret_cast<FrozenRecord*>(extent.data);
  chunk->data = extent.data + kPageBytes;
  // Reserved here so that a claim allocates nothing.
  if (uploads_.capacity() <= chunks_.size()) uploads_.reserve(2 * chunks_.size() + 1);
  OfUser& user = users_[name.uid];
  ++user.chunks;
  user.bytes += extent.bytes;
  pool_bytes_ += extent.bytes;
  missing_.clear();
  return chunks_.emplace(name, std::move(chunk)).first->second.get();
}

Result<FrozenHold> FrozenTable::Begin(const shm::JobSpec& spec, uint32_t uid) {
  FrozenHold hold(this);
  if (spec.frozen.empty()) return hold;
  const bool first = promised_.emplace(uid, MissingBytes(spec, uid)).second;
  if (!first && !TP_PLANTED("residency.frozen_listed_together")) {
    return Status(ErrorId::kNotReady, "job " + spec.name +
                                          " waits until the frozen chunks of another job of this "
                                          "user are listed");
  }
  hold.lists_for_ = uid;
  return hold;
}

Result<FrozenChunk*> FrozenTable::FindOrAdd(const shm::JobSpec& spec, const FrozenName& name) {
  const auto found = chunks_.find(name);
  if (found != chunks_.end()) return found->second.get();
  std::vector<Extent> extents;
  if (!pool_->Take(std::array{shm::FrozenExtentBytes(name.bytes)}, &extents)) {
    return Status(ErrorId::kPoolFull, "a frozen chunk of job " + spec.name + " needs " +
                                          FormatBytes(name.bytes) +
                                          " of host memory in one run; free are runs of at most " +
                                          FormatBytes(pool_->largest_free_bytes()));
  }

  FrozenChunk* const chunk = Add(name, extents.front());
  auto* record = new (chunk->record) FrozenRecord{};
  record->uid = name.uid;
  record->bytes = name.bytes;
  record->content = name.content;
  record->crc = CrcOf(*record);
  record->magic = kFrozenMagic;
  return chunk;
}

Status FrozenTable::TakeMore(const shm::JobSpec& spec, uint32_t rows, FrozenHold* hold) {
  if (!hold->lists_for_) return Status();
  const uint32_t uid = *hold->lists_for_;
  const size_t end = std::min<uint64_t>(spec.frozen.size(), uint64_t{hold->chunks_.size()} + rows);
  while (hold->chunks_.size() < end) {
    TP_POINT("server.frozen_listed");
    const uint64_t before = pool_bytes_;
    TP_ASSIGN_OR_RETURN(FrozenChunk * chunk,
                        FindOrAdd(spec, NameOf(spec.frozen[hold->chunks_.size()], uid)));
    uint64_t& promised = promised_[uid];
    promised -= std::min(promised, pool_bytes_ - before);

    ++chunk->holders;
    hold->chunks_.push_back(chunk);
    if (!chunk->sealed && (chunk->awaits & awaited_) != 0)
      return Status(ErrorId::kNotReady,
                    "a frozen chunk of job " + spec.name +
                        " waits for the end of a memserver that was killed, which may be putting "
                        "it still");
  }

  if (end < spec.frozen.size()) return Status();
  promised_.erase(uid);
  hold->lists_for_.reset();
  return Status();
}

Result<FrozenHold> FrozenTable::Take(const shm::JobSpec& spec, uint32_t uid) {
  TP_ASSIGN_OR_RETURN(FrozenHold hold, Begin(spec, uid));
  TP_RETURN_IF_ERROR(TakeMore(spec, UINT32_MAX, &hold));
  return hold;
}

void FrozenTable::Await(FrozenChunk* chunk, uint32_t servers) {
  chunk->awaits |= servers;
  awaited_ |= servers;
}

void FrozenTable::LetGo(FrozenHold* hold) {
  if (hold->lists_for_) promised_.erase(*hold->lists_for_);
  leaving_.insert(leaving_.end(), hold->chunks_.begin(), hold->chunks_.end());
  const bool at_once = TP_PLANTED("residency.frozen_let_go_at_once");
  if (!TP_BUGGIFY("residency.let_go_later")) ReleaseMore(at_once ? UINT32_MAX : kRowsPerTurn);
}

TP_HOT bool FrozenTable::ReleaseMore(uint32_t rows) {
  const size_t before = leaving_.size();
  for (; rows > 0 && !leaving_.empty(); --rows) {
    FrozenChunk* const chunk = leaving_.back();
    // No chunk of a user is freed while one of the user's jobs is listing.
    if (promised_.contains(chunk->name.uid)) break;
    leaving_.pop_back();
    TP_POINT("server.frozen_let_go");
    Release(chunk);
  }
  return leaving_.size() < before;
}

uint64_t FrozenTable::promised_bytes() const {
  uint64_t sum = 0;
  for (const auto& [uid, bytes] : promised_) sum += bytes;
  return sum;
}

Result<FrozenHold> FrozenTable::Recover(const shm::JobSpec& spec, uint32_t uid,
                                        std::span<const uint64_t> places) {
  FrozenHold hold(this);
  for (size_t i = 0; i < spec.frozen.size(); ++i) {
    const FrozenName name = NameOf(spec.frozen[i], uid);
    const auto found = chunks_.find(name);
    FrozenChunk* chunk = found == chunks_.end() ? nullptr : found->second.get();
    std::vector<Extent> extents;
    const bool known = chunk != nullptr && chunk->extent.offset == places[i];
    const bool placed =
        known || (chunk == nullptr &&
                  pool_->TakeAt(places[i], shm::FrozenExtentBytes(name.bytes), &extents));

    if (placed && !known) {
      chunk = Add(name, extents.front());
      const FrozenRecord& record = *chunk->record;
      const bool named = record.magic == kFrozenMagic && record.crc == CrcOf(record) &&
                         record.uid == uid && record.bytes == name.bytes &&
                         record.content == name.content;
      chunk->sealed = named && record.sealed.load(std::memory_order_acquire) == kFrozenSealed;

      if (!named) {
        pool_->Release(extents);
        Erase(name);
        chunk = nullptr;
      }
    }

    if (!placed || chunk == nullptr) {
      return Status(ErrorId::kKeptMemoryBad, "frozen chunk " + std::to_string(i) +
                                                 " of a job does not lie where the job has it");
    }
    ++chunk->holders;
    hold.chunks_.push_back(chunk);
  }
  return hold;
}

void FrozenTable::Release(FrozenChunk* chunk) {
  TP_CHECK(chunk->holders > 0, "a frozen chunk is let go once for each time that it was taken");
  if (--chunk->holders > 0 && !TP_PLANTED("residency.frozen_released_early")) return;
  if (chunk->uploader != 0) std::erase(uploads_, chunk);
  pool_->Release({&chunk->extent, 1});
  Erase(FrozenName(chunk->name));
}

void FrozenTable::Erase(const FrozenName& name) {
  const auto it = chunks_.find(name);
  const uint64_t bytes = it->second->extent.bytes;
  chunks_.erase(it);
  pool_bytes_ -= bytes;
  missing_.clear();
  const auto user = users_.find(name.uid);
  user->second.bytes -= bytes;
  if (--user->second.chunks == 0) users_.erase(user);
}

bool FrozenTable::IsUploadingAnother(SessionId session, const FrozenChunk* chunk) const {
  return std::any_of(uploads_.begin(), uploads_.end(), [session, chunk](const FrozenChunk* other) {
    return other != chunk && other->uploader == session;
  });
}

FrozenTable::Claim FrozenTable::TakeClaim(FrozenChunk* chunk, SessionId session, JobId job,
                                          ChunkId id) {
  if (chunk->rejected == session) {
    chunk->rejected = 0;
    return Claim::kRejected;
  }
  if (chunk->sealed) return Claim::kAlreadyPresent;

  const bool is_other = chunk->uploader != 0 && chunk->uploader != session;
  const bool complete = chunk->uploader == session && chunk->started == chunk->name.bytes;
  chunk->wanted = chunk->wanted || is_other;
  if (is_other || complete || chunk->copies > 0 || chunk->at_worker ||
      IsUploadingAnother(session, chunk))
    return Claim::kWait;

  if (chunk->uploader == 0) uploads_.push_back(chunk);
  chunk->uploader = session;
  chunk->uploader_job = job;
  chunk->uploader_chunk = id;
  chunk->started = chunk->filled = chunk->hashed = chunk->filled_seen = 0;
  chunk->moved_ns = 0;
  chunk->wanted = false;
  new (&chunk->record->hasher) ContentHasher();
  TP_POINT("server.frozen_claimed");
  return Claim::kYours;
}

void FrozenTable::StartPut(FrozenChunk* chunk, uint64_t bytes) {
  chunk->started += bytes;
  ++chunk->copies;
}

void FrozenTable::EndPut(FrozenChunk* chunk, uint64_t bytes) {
  chunk->filled += bytes;
  --chunk->copies;
  TP_POINT("server.frozen_put");
}

// A chunk may still name the session as the one whose bytes were rejected; that is harmless, since
// session numbers are not reused.
void FrozenTable::Leave(SessionId session) {
  const auto own = std::find_if(uploads_.begin(), uploads_.end(), [session](const auto* chunk) {
    return chunk->uploader == session;
  });
  if (own != uploads_.end()) EndUpload(*own);
}

void FrozenTable::EndUpload(FrozenChunk* chunk) {
  chunk->uploader = 0;
  std::erase(uploads_, chunk);
  ++changes_;
}

TP_HOT FrozenChunk* FrozenTable::NextHash(JobId job, uint64_t* begin, uint64_t* bytes) {
  for (FrozenChunk* chunk : uploads_) {
    if (chunk->uploader_job != job || chunk->at_worker || chunk->hashed == chunk->filled) continue;
    *begin = chunk->hashed;
    *bytes = std::min(kHashBytesMax, chunk->filled - chunk->hashed);
    chunk->hashed += *bytes;
    chunk->at_worker = true;
    return chunk;
  }
  return nullptr;
}

bool FrozenTable::EndHash(FrozenChunk* chunk) {
  chunk->at_worker = false;
  if (chunk->uploader == 0) {  // the uploader has gone: waiting ranks may begin now
    ++changes_;
    return false;
  }
  if (chunk->hashed < chunk->name.bytes) return false;
  const ContentHash found = chunk->record->hasher.Finish();
  const bool same = found == chunk->name.content || TP_PLANTED("residency.frozen_hash_unchecked");

  if (same) {
    chunk->record->sealed.store(kFrozenSealed, std::memory_order_release);
    chunk->sealed = true;
    TP_POINT("server.frozen_sealed");
  } else {
    chunk->rejected = chunk->uploader;
    LogWarn("a frozen chunk was put with other bytes than its name says",
            {{"job", chunk->uploader_job},
             {"name", HexOf(chunk->name.content)},
             {"found", HexOf(found)}});
  }

  EndUpload(chunk);
  return same;
}

bool FrozenTable::PollUploads(int64_t now_ns) {
  FrozenChunk* stalled = nullptr;
  for (FrozenChunk* chunk : uploads_) {
    const bool idle = chunk->copies == 0 && !chunk->at_worker && chunk->filled < chunk->name.bytes;
    if (chunk->filled_seen != chunk->filled || chunk->moved_ns == 0 || !idle) {
      chunk->filled_seen = chunk->filled;
      chunk->moved_ns = now_ns;
    } else if (chunk->wanted && now_ns - chunk->moved_ns >= kStallNs) {
      stalled = chunk;
    }
  }

  if (stalled == nullptr) return false;
  LogWarn("an uploader of a frozen chunk puts nothing while others wait: it loses its claim",
          {{"job", stalled->uploader_job},
           {"name", HexOf(stalled->name.content)},
           {"bytes", stalled->filled}});
  EndUpload(stalled);
  return true;
}

std::map<uint32_t, uint64_t> FrozenTable::BytesByUser() const {
  std::map<uint32_t, uint64_t> bytes;
  for (const auto& [uid, user] : users_) bytes[uid] = user.bytes;
  for (const auto& [uid, promised] : promised_) bytes[uid] += promised;
  return bytes;
}

}  // namespace tidepool::memserver
