#include "memserver/residency/kept/kept_index.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/formats/crc32c.h"
#include "base/planted.h"
#include "base/random.h"

namespace tidepool::memserver {
namespace {

struct ServerNote {
  std::atomic<uint32_t> check;  // over all below, the pool and the place; 0: nobody. Stored last
  int32_t pid;
  uint64_t start, pid_namespace;
};

struct IndexHeader {
  uint32_t magic;
  uint32_t layout;  // changes if a later release adopts the index
  uint64_t pool_nonce;
  uint64_t pool_bytes, own_bytes, piece_bytes;
  uint32_t slots;
  uint32_t crc;  // of all above except the layout
  // The highest number that any job of this pool has had. Numbers, and nonces made from them, are
  // not reused.
  std::atomic<JobId> last_job;
  alignas(64) ServerNote servers[kServersNoted];
};

struct alignas(64) IndexSlot {
  std::atomic<uint64_t> nonce;  // of the job; 0: free. Stored last
  uint64_t records_offset, records_bytes;
  JobId job;
  uint32_t crc;  // of nonce and all above
};

constexpr uint64_t kSlotsAt = 4096;
static_assert(sizeof(IndexHeader) <= kSlotsAt &&
              kSlotsAt + kIndexSlots * sizeof(IndexSlot) == kIndexBytes);

uint32_t CrcOf(const IndexHeader& header) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  return Crc32c({bytes + offsetof(IndexHeader, pool_nonce),
                 offsetof(IndexHeader, crc) - offsetof(IndexHeader, pool_nonce)});
}

uint32_t CrcOf(uint64_t nonce, const IndexSlot& slot) {
  const std::array<uint64_t, 4> name{nonce, slot.records_offset, slot.records_bytes, slot.job};
  return Crc32c(std::as_bytes(std::span(name)));
}

uint32_t CheckOf(const IndexHeader& header, uint32_t place) {
  const ServerNote& note = header.servers[place];
  const std::array<uint64_t, 5> name{header.pool_nonce, place, static_cast<uint64_t>(note.pid),
                                     note.start, note.pid_namespace};
  return Crc32c(std::as_bytes(std::span(name))) | 1;
}

IndexSlot* SlotAt(std::byte* bytes, uint32_t slot) {
  return reinterpret_cast<IndexSlot*>(bytes + kSlotsAt) + slot;
}

Status Bad(const std::string& what) {
  return Status(ErrorId::kKeptMemoryBad, "the index of the kept memory is damaged: " + what);
}

}  // namespace

Result<IndexContents> ReadIndex(std::span<const std::byte> bytes) {
  if (bytes.size() < kIndexBytes) return Bad("it has " + std::to_string(bytes.size()) + " bytes");
  const auto* header = reinterpret_cast<const IndexHeader*>(bytes.data());
  if (header->magic != kIndexMagic) return Bad("it does not begin as an index");
  // The layout is checked first: another one may put the check elsewhere.
  if (header->layout < kKeptLayoutMin || header->layout > kKeptLayout) {
    const std::string known =
        kKeptLayoutMin == kKeptLayout
            ? std::to_string(kKeptLayout)
            : std::to_string(kKeptLayoutMin) + " to " + std::to_string(kKeptLayout);
    return Status(ErrorId::kKeptLayoutUnknown, "the kept memory has layout " +
                                                   std::to_string(header->layout) +
                                                   "; this memserver knows layout " + known);
  }
  if (header->crc != CrcOf(*header)) return Bad("the check over its header does not fit");
  if (header->slots != kIndexSlots)
    return Bad("it has " + std::to_string(header->slots) + " slots");

  IndexContents contents;
  contents.layout = header->layout;
  contents.pool_nonce = header->pool_nonce;
  contents.last_job = header->last_job.load(std::memory_order_relaxed);
  contents.geometry = {header->pool_bytes, header->own_bytes, header->piece_bytes};

  for (uint32_t place = 0; place < kServersNoted; ++place) {
    const ServerNote& note = header->servers[place];
    const uint32_t check = note.check.load(std::memory_order_acquire);
    const bool whole =
        check == CheckOf(*header, place) || TP_PLANTED("recover.server_note_unchecked");
    if (check != 0 && whole)
      contents.servers.push_back({place, {note.pid, note.start, note.pid_namespace}});
  }

  for (uint32_t i = 0; i < kIndexSlots; ++i) {
    const auto* slot = reinterpret_cast<const IndexSlot*>(bytes.data() + kSlotsAt) + i;
    const uint64_t nonce = slot->nonce.load(std::memory_order_acquire);
    if (nonce == 0) continue;
    if (slot->crc == CrcOf(nonce, *slot) || TP_PLANTED("recover.slot_unchecked")) {
      contents.jobs.push_back({i, slot->job, nonce, slot->records_offset, slot->records_bytes});
    } else {
      ++contents.damaged_slots;
    }
  }
  return contents;
}

Result<std::unique_ptr<KeptIndex>> KeptIndex::Create(const PoolGeometry& geometry,
                                                     uint64_t pool_nonce) {
  TP_ASSIGN_OR_RETURN(
      std::unique_ptr<shm::Segment> segment,
      shm::Segment::Create("tidepool-index", kIndexBytes, shm::PeerAccess::kReadWrite));

  auto* header = new (segment->data()) IndexHeader{};
  header->magic = kIndexMagic;
  header->layout = kKeptLayout;
  header->pool_nonce = pool_nonce;
  header->pool_bytes = geometry.bytes;
  header->own_bytes = geometry.own_bytes;
  header->piece_bytes = geometry.piece_bytes;
  header->slots = kIndexSlots;
  header->crc = CrcOf(*header);
  for (uint32_t i = 0; i < kIndexSlots; ++i) new (SlotAt(segment->data(), i)) IndexSlot{};
  return std::unique_ptr<KeptIndex>(new KeptIndex(std::move(segment)));
}

Result<std::unique_ptr<KeptIndex>> KeptIndex::Adopt(UniqueFd fd, IndexContents* contents) {
  auto mapped = shm::Segment::Map(std::move(fd), kIndexBytes, shm::PeerAccess::kReadWrite);
  if (mapped.status().id() == ErrorId::kMemoryMapFailed) return mapped.status();
  if (!mapped.ok()) return Bad(mapped.status().what());
  std::unique_ptr<shm::Segment> segment = std::move(mapped).value();
  TP_ASSIGN_OR_RETURN(*contents, ReadIndex({segment->data(), segment->bytes()}));

  std::vector<bool> trusted(kIndexSlots, false);
  for (const IndexedJob& job : contents->jobs) trusted[job.slot] = true;
  for (uint32_t i = 0; i < kIndexSlots; ++i) {
    if (!trusted[i]) SlotAt(segment->data(), i)->nonce.store(0, std::memory_order_release);
  }

  reinterpret_cast<IndexHeader*>(segment->data())->layout = kKeptLayout;
  std::unique_ptr<KeptIndex> index(new KeptIndex(std::move(segment)));
  uint32_t noted = 0;
  for (const NotedServer& server : contents->servers) noted |= BitOf(server.place);
  index->ForgetServers(~noted);
  return index;
}

std::optional<uint32_t> KeptIndex::NoteServer(const ProcessName& process) {
  auto* header = reinterpret_cast<IndexHeader*>(segment_->data());
  for (uint32_t place = 0; place < kServersNoted; ++place) {
    ServerNote& note = header->servers[place];
    if (note.check.load(std::memory_order_relaxed) != 0) continue;

    note.pid = process.pid;
    note.start = process.start;
    note.pid_namespace = process.pid_namespace;
    note.check.store(CheckOf(*header, place), std::memory_order_release);
    return BitOf(place);
  }
  return std::nullopt;
}

void KeptIndex::ForgetServers(uint32_t servers) {
  auto* header = reinterpret_cast<IndexHeader*>(segment_->data());
  for (uint32_t place = 0; place < kServersNoted; ++place) {
    if ((servers & BitOf(place)) != 0)
      header->servers[place].check.store(0, std::memory_order_release);
  }
}

uint32_t KeptIndex::Add(JobId job, uint64_t nonce, const Extent& records) {
  TP_CHECK(nonce != 0, "a job's nonce is not 0");
  auto* header = reinterpret_cast<IndexHeader*>(segment_->data());
  if (header->last_job.load(std::memory_order_relaxed) < job &&
      !TP_PLANTED("residency.last_job_not_kept"))
    header->last_job.store(job, std::memory_order_release);

  for (uint32_t i = 0; i < kIndexSlots; ++i) {
    IndexSlot* slot = SlotAt(segment_->data(), i);
    if (slot->nonce.load(std::memory_order_relaxed) != 0) continue;

    slot->records_offset = records.offset;
    slot->records_bytes = records.bytes;
    slot->job = job;
    slot->crc = CrcOf(nonce, *slot);
    slot->nonce.store(nonce, std::memory_order_release);
    return i;
  }
  TP_CHECK(false, "there are as many slots as jobs may be");
  return 0;
}

void KeptIndex::Remove(uint32_t slot) {
  SlotAt(segment_->data(), slot)->nonce.store(0, std::memory_order_release);
}

uint64_t KeptIndex::NonceOf(JobId job) const {
  const uint64_t pool = reinterpret_cast<const IndexHeader*>(segment_->data())->pool_nonce;
  return SplitMix64(pool ^ (uint64_t{job} << 32)).Next() | 1;
}

}  // namespace tidepool::memserver
