#include "memserver/traffic/state_tier.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace tidepool::memserver {
namespace {

constexpr uint64_t kStagingBytes = StateTier::kPieceBytesMax;
static_assert(kStagingBytes % kPageBytes == 0);

uint64_t LargestGap(const nvme::Manifest& manifest) {
  if (manifest.entries.size() >= nvme::kManifestEntriesMax) return 0;
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  for (const auto& entry : manifest.entries)
    taken.emplace_back(entry.offset, entry.offset + entry.bytes);
  taken.emplace_back(manifest.capacity, manifest.capacity);
  std::sort(taken.begin(), taken.end());

  uint64_t begin = 0, largest = 0;
  for (const auto& [from, to] : taken) {
    largest = std::max(largest, from - begin);
    begin = to;
  }
  return largest;
}

}  // namespace

uint64_t StateTier::MemoryBytes(size_t directories) {
  return kStagingSlots * kStagingBytes + directories * nvme::kManifestBytes;
}

StateTier::StateTier(nvme::IoQueue* queue, const Clock* clock,
                     std::vector<TierDirectory> directories, std::span<std::byte> memory,
                     const TierOptions& options)
    : queue_(queue),
      clock_(clock),
      directories_(std::move(directories)),
      // Each directory is a line of its data file and its two manifests.
      transfers_(queue, clock,
                 {.transfers_max = kStagingSlots + static_cast<uint32_t>(directories_.size()),
                  .block_bytes = options.block_bytes,
                  .files = 3 * static_cast<uint32_t>(directories_.size()),
                  .files_per_line = 3,
                  .late_ns = options.late_ns,
                  .lost_ns = options.lost_ns}),
      staging_(memory.first(kStagingSlots * kStagingBytes)),
      table_(directories_.size()),
      tables_late_(directories_.size()) {
  TP_CHECK(memory.size() >= MemoryBytes(directories_.size()), "the staging memory is large enough");

  for (uint32_t d = 0; d < directories_.size(); ++d) {
    const nvme::StoreFiles files{
        .data = 3 * d, .manifests = {3 * d + 1, 3 * d + 2}, .tag = kStagingSlots + d};
    const auto buffer = memory.subspan(kStagingSlots * kStagingBytes + d * nvme::kManifestBytes,
                                       nvme::kManifestBytes);
    stores_.emplace_back(directories_[d].manifest, files, &transfers_, buffer);
  }
}

std::vector<uint64_t> StateTier::LargestFree() const {
  std::vector<uint64_t> free;
  for (const auto& store : stores_)
    free.push_back(store.poisoned() ? 0 : LargestGap(store.manifest()));
  return free;
}

std::vector<uint64_t> StateTier::Capacities() const {
  std::vector<uint64_t> capacities;
  for (const auto& store : stores_)
    capacities.push_back(store.poisoned() ? 0 : store.manifest().capacity);
  return capacities;
}

bool StateTier::ReserveRanges(uint64_t key, std::span<const uint64_t> bytes,
                              std::vector<uint64_t>* offsets) {
  if (HasRanges(key)) return false;
  offsets->assign(bytes.size(), 0);

  for (uint32_t d = 0; d < bytes.size(); ++d) {
    if (bytes[d] == 0) continue;
    const auto offset = stores_[d].Reserve(key, bytes[d], d);
    if (!offset) {
      Remove(key);
      return false;
    }
    (*offsets)[d] = *offset;
  }
  return true;
}

bool StateTier::HasRanges(uint64_t key) const {
  return std::any_of(stores_.begin(), stores_.end(), [key](const nvme::SlotStore& store) {
    return store.manifest().Find(key) != nullptr;
  });
}

bool StateTier::Reserve(uint64_t nonce, JobStates* states) {
  std::vector<uint64_t> offsets;
  if (!ReserveRanges(nonce, states->nvme_bytes(), &offsets)) return false;
  states->SetSpillRanges(std::move(offsets));
  return true;
}

bool StateTier::HasRangeIn(uint32_t directory, uint64_t nonce) const {
  const nvme::Manifest& manifest = stores_[directory].manifest();
  return manifest.Find(nonce) != nullptr || manifest.Find(DemotedKey(nonce)) != nullptr;
}

void StateTier::Commit(uint64_t key, uint64_t epoch) {
  for (auto& store : stores_) {
    if (store.manifest().Find(key) != nullptr) store.Commit(key, epoch);
  }
}

StateTier::Adopted StateTier::AdoptRanges(uint64_t name, std::span<const uint64_t> bytes,
                                          std::vector<uint64_t>* offsets) const {
  offsets->assign(bytes.size(), 0);
  for (uint32_t d = 0; d < stores_.size(); ++d) {
    const nvme::ManifestEntry* entry = stores_[d].manifest().Find(name);
    if (entry != nullptr && entry->place != d) return Adopted::kOtherOrder;
  }

  for (uint32_t d = 0; d < bytes.size(); ++d) {
    if (bytes[d] == 0) continue;
    const nvme::ManifestEntry* entry =
        d < stores_.size() ? stores_[d].manifest().Find(name) : nullptr;
    if (entry == nullptr || entry->bytes != bytes[d]) return Adopted::kUnknown;
    (*offsets)[d] = entry->offset;
  }
  return Adopted::kYes;
}

StateTier::Adopted StateTier::Adopt(uint64_t nonce, JobStates* states) {
  const std::vector<uint64_t>& demoted = states->placement().demoted_bytes();
  std::vector<uint64_t> spilled = states->nvme_bytes(), offsets;
  for (size_t d = 0; d < demoted.size(); ++d) spilled[d] -= demoted[d];
  if (const Adopted found = AdoptRanges(nonce, spilled, &offsets); found != Adopted::kYes)
    return found;
  for (uint32_t d = 0; d < offsets.size(); ++d) states->SetSpillRange(d, offsets[d]);

  if (states->demoted() == 0) return Adopted::kYes;
  if (const Adopted found = AdoptRanges(DemotedKey(nonce), demoted, &offsets);
      found != Adopted::kYes)
    return found;
  for (uint32_t d = 0; d < offsets.size(); ++d) states->SetDemotedRange(d, offsets[d]);
  return Adopted::kYes;
}

void StateTier::Remove(uint64_t nonce) {
  table_.NoteRemoved(nonce);
  for (uint32_t d = 0; d < stores_.size(); ++d) {
    if (!table_.MayStillWrite(nonce, d)) stores_[d].Remove(nonce);
  }
}

void StateTier::RemoveAllBut(const std::vector<uint64_t>& nonces) {
  for (auto& store : stores_) {
    std::vector<uint64_t> gone;
    for (const auto& entry : store.manifest().entries) {
      if (std::find(nonces.begin(), nonces.end(), entry.job) == nonces.end())
        gone.push_back(entry.job);
    }
    for (const uint64_t nonce : gone) store.Remove(nonce);
  }
}

bool StateTier::IsDurable(std::span<const uint64_t> bytes) const {
  for (size_t d = 0; d < bytes.size(); ++d) {
    if (bytes[d] > 0 && stores_[d].durable_changes() < stores_[d].changes()) return false;
  }
  return true;
}

const TierDirectory* StateTier::PoisonedOf(std::span<const uint64_t> bytes) const {
  for (size_t d = 0; d < bytes.size(); ++d) {
    if (bytes[d] > 0 && stores_[d].poisoned()) return &directories_[d];
  }
  return nullptr;
}

std::span<std::byte> StateTier::Image(uint32_t staging, uint64_t payload_bytes) const {
  return staging_.subspan(staging * kStagingBytes, nvme::kPieceHeaderBytes + payload_bytes);
}

PieceBuffer StateTier::PieceIn(uint32_t staging, uint64_t payload_bytes) const {
  const auto bytes = Image(staging, payload_bytes);
  return {reinterpret_cast<nvme::PieceHeader*>(bytes.data()),
          bytes.subspan(nvme::kPieceHeaderBytes),
          0,
          {},
          {}};
}

void StateTier::Start(uint32_t staging, const PieceTransfer& transfer) {
  PieceTransfer begun = transfer;
  begun.begin_ns = clock_->NowNs();
  table_.BeginTransfer(staging, begun);
  std::byte* const data = staging_.data() + staging * kStagingBytes;
  transfers_.Start({transfer.kind, 3 * table_.at(staging).directory, transfer.offset, data,
                    nvme::kPieceHeaderBytes + transfer.payload_bytes, staging});
}

bool StateTier::Progress() {
  bool worked = false;
  for (auto& store : stores_) worked |= store.dirty() && store.Progress();
  worked |= transfers_.Progress();
  return worked;
}

bool StateTier::Next(TierDone* done) {
  nvme::TransferDone ended;
  while (transfers_.Next(&ended)) {
    if (ended.late) EndLate(ended.tag, !ended.unissued);
    if (ended.tag >= kStagingSlots) {
      stores_[ended.tag - kStagingSlots].End(ended);
      continue;
    }

    const auto staging = static_cast<uint32_t>(ended.tag);
    if (!EndPiece(staging)) continue;
    const StagedPiece& piece = table_.at(staging);

    *done = {.kind = piece.transfer.kind,
             .staging = staging,
             .owner = piece.owner,
             .job = piece.job,
             .error = ended.error,
             .offset = ended.offset,
             .directory = piece.directory};
    return true;
  }
  return false;
}

// Returns false for the transfer of an abandoned piece. The range that it was written to may then
// be removed too.
bool StateTier::EndPiece(uint32_t staging) {
  const StagedPiece piece = table_.at(staging);
  if (table_.EndTransfer(staging)) return true;
  const uint64_t range = piece.transfer.range;
  if (piece.range_removed && !table_.MayStillWrite(range, piece.directory))
    stores_[piece.directory].Remove(range);
  return false;
}

bool StateTier::NextLate(TierLate* late) {
  nvme::TransferLate told;
  if (!transfers_.NextLate(&told)) return false;
  const int64_t now = clock_->NowNs();
  const Lateness lateness{
      .told = true, .lost = told.lost, .offset = told.offset, .since_ns = now - told.waited_ns};

  if (told.tag >= kStagingSlots) {
    const uint64_t directory = told.tag - kStagingSlots;
    tables_late_[directory] = lateness;
    if (told.lost) stores_[directory].GiveUp(ETIMEDOUT);
  } else {
    table_.NoteLate(static_cast<uint32_t>(told.tag), lateness);
  }
  *late = LateIn(told.tag, now);
  return true;
}

// Describes the late transfer with this tag: a staging slot, or, behind those, a directory.
TierLate StateTier::LateIn(uint64_t tag, int64_t now_ns) const {
  TierLate late;
  late.of_tables = tag >= kStagingSlots;
  if (late.of_tables) {
    late.directory = static_cast<uint32_t>(tag - kStagingSlots);
  } else {
    late.staging = static_cast<uint32_t>(tag);
    late.piece = table_.at(late.staging);
    late.directory = late.piece.directory;
  }

  const Lateness& lateness = late.of_tables ? tables_late_[late.directory] : late.piece.late;
  late.offset = lateness.offset;
  late.since_ns = lateness.since_ns;
  late.waited_ns = now_ns - lateness.since_ns;
  late.lost = lateness.lost;
  return late;
}

std::vector<TierLate> StateTier::Late() const {
  std::vector<TierLate> all;
  for (uint64_t tag = 0; tag < kStagingSlots + directories_.size(); ++tag) {
    const bool late = tag < kStagingSlots ? table_.at(static_cast<uint32_t>(tag)).late.told
                                          : tables_late_[tag - kStagingSlots].told;
    if (late) all.push_back(LateIn(tag, clock_->NowNs()));
  }
  return all;
}

void StateTier::EndLate(uint64_t tag, bool answered) {
  Lateness& lateness = tag < kStagingSlots ? table_.at(static_cast<uint32_t>(tag)).late
                                           : tables_late_[tag - kStagingSlots];

  if (lateness.told && answered) {
    const TierLate late = LateIn(tag, clock_->NowNs());
    LogWarn("a drive has answered after all",
            {{"directory", directories_[late.directory].path},
             {"offset", late.offset},
             {"job", late.piece.job},
             {"seconds", static_cast<double>(late.waited_ns) / kNsPerSecond}});
  }
  lateness = {};
}

uint64_t StateTier::capacity_bytes() const {
  uint64_t sum = 0;
  for (const auto& store : stores_) sum += store.manifest().capacity;
  return sum;
}

uint64_t StateTier::used_bytes() const {
  uint64_t sum = 0;
  for (const auto& store : stores_) sum += store.manifest().used_bytes();
  return sum;
}

}  // namespace tidepool::memserver
