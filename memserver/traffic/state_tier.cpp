#include "memserver/traffic/state_tier.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"

namespace tidepool::memserver {
namespace {

// Staging slots left to each other directory, whatever one of them holds; and the fewest that one
// may hold.
constexpr uint32_t kLeftToOthers = 4, kTakenMin = 8;

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
      transfers_(queue, clock,
                 {.transfers_max = kStagingSlots + static_cast<uint32_t>(directories_.size()),
                  .block_bytes = options.block_bytes,
                  .files = 3 * static_cast<uint32_t>(directories_.size()),
                  .files_per_line = 3,
                  .late_ns = options.late_ns,
                  .lost_ns = options.lost_ns}),
      staging_(memory.first(kStagingSlots * kStagingBytes)),
      slots_(kStagingSlots),
      taken_(directories_.size()),
      taken_max_(std::max<uint32_t>(
          kTakenMin,
          kStagingSlots -
              std::min<uint32_t>(kStagingSlots,
                                 kLeftToOthers * static_cast<uint32_t>(directories_.size() - 1)))),
      late_(kStagingSlots + directories_.size()) {
  TP_CHECK(memory.size() >= MemoryBytes(directories_.size()), "the staging memory is large enough");
  for (uint32_t d = 0; d < directories_.size(); ++d) {
    const nvme::StoreFiles files{
        .data = 3 * d, .manifests = {3 * d + 1, 3 * d + 2}, .tag = kStagingSlots + d};
    const auto buffer = memory.subspan(kStagingSlots * kStagingBytes + d * nvme::kManifestBytes,
                                       nvme::kManifestBytes);
    stores_.emplace_back(directories_[d].manifest, files, &transfers_, buffer);
  }
  for (uint32_t i = kStagingSlots; i > 0; --i) free_.push_back(i - 1);
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
  for (uint32_t d = 0; d < offsets.size(); ++d) states->SetSpillRange(d, offsets[d]);
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
  const std::vector<uint64_t>& demoted = states->demoted_bytes();
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

bool StateTier::MayStillWrite(uint64_t nonce, uint32_t directory) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.disowned && slot.transfer.kind == nvme::IoKind::kWrite &&
           slot.transfer.nonce == nonce && slot.directory == directory;
  });
}

void StateTier::Remove(uint64_t nonce) {
  for (Slot& slot : slots_) slot.removed |= slot.disowned && slot.transfer.nonce == nonce;
  for (uint32_t d = 0; d < stores_.size(); ++d) {
    if (!MayStillWrite(nonce, d)) stores_[d].Remove(nonce);
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

std::optional<uint32_t> StateTier::TakeStaging(uint32_t directory) {
  if (!HasStaging(directory)) return std::nullopt;
  const uint32_t staging = free_.back();
  free_.pop_back();
  slots_[staging] = {.directory = directory, .transfer = {}};
  ++taken_[directory];
  return staging;
}

void StateTier::ReturnStaging(uint32_t staging) {
  TP_CHECK(std::find(free_.begin(), free_.end(), staging) == free_.end(),
           "a staging slot is returned once");
  free_.push_back(staging);
  --taken_[slots_[staging].directory];
}

void StateTier::Disown(uint32_t staging) {
  slots_[staging].disowned = true;
}

// Takes back the slot of a disowned transfer that has ended.
void StateTier::TakeBack(uint32_t staging) {
  const Slot slot = slots_[staging];
  slots_[staging].disowned = false;
  ReturnStaging(staging);
  if (slot.removed && !MayStillWrite(slot.transfer.nonce, slot.directory))
    stores_[slot.directory].Remove(slot.transfer.nonce);
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

void StateTier::Start(const TierTransfer& transfer) {
  slots_[transfer.staging].transfer = transfer;
  std::byte* const data = staging_.data() + transfer.staging * kStagingBytes;
  transfers_.Start({transfer.kind, 3 * transfer.directory, transfer.offset, data,
                    nvme::kPieceHeaderBytes + transfer.payload_bytes, transfer.staging});
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
    if (slots_[ended.tag].disowned) {
      TakeBack(static_cast<uint32_t>(ended.tag));
      continue;
    }
    const TierTransfer& transfer = slots_[ended.tag].transfer;
    *done = {transfer.kind, transfer.staging, transfer.job,
             ended.error,   ended.offset,     transfer.directory};
    return true;
  }
  return false;
}

bool StateTier::NextLate(TierLate* late) {
  nvme::TransferLate told;
  if (!transfers_.NextLate(&told)) return false;
  const auto staging = static_cast<uint32_t>(told.tag);
  *late = {.transfer = {},
           .offset = told.offset,
           .since_ns = clock_->NowNs() - told.waited_ns,
           .waited_ns = told.waited_ns,
           .of_tables = staging >= kStagingSlots,
           .lost = told.lost};
  if (late->of_tables) {
    late->transfer.directory = staging - kStagingSlots;
    if (late->lost) stores_[late->transfer.directory].GiveUp(ETIMEDOUT);
  } else {
    late->transfer = slots_[staging].transfer;
  }
  late_[staging] = *late;
  return true;
}

std::vector<TierLate> StateTier::Late() const {
  std::vector<TierLate> all;
  for (const auto& each : late_) {
    if (!each) continue;
    all.push_back(*each);
    all.back().waited_ns = clock_->NowNs() - each->since_ns;
  }
  return all;
}

void StateTier::EndLate(uint64_t tag, bool answered) {
  if (!late_[tag]) return;  // not even reported
  if (answered) {
    const TierLate& late = *late_[tag];
    LogWarn("a drive has answered after all",
            {{"directory", directories_[late.transfer.directory].path},
             {"offset", late.offset},
             {"job", late.transfer.job},
             {"seconds", static_cast<double>(clock_->NowNs() - late.since_ns) / kNsPerSecond}});
  }
  late_[tag].reset();
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
