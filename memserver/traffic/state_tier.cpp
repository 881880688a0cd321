#include "memserver/traffic/state_tier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "base/point.h"

namespace tidepool::memserver {
namespace {

constexpr uint64_t kStagingBytes = StateTier::kPieceBytesMax;
static_assert(kStagingBytes % kPageBytes == 0);

uint64_t LargestGap(const nvme::Manifest& manifest) {
  if (manifest.entries.size() >= nvme::kManifestEntriesMax) return 0;
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  for (const auto& entry : manifest.entries) taken.emplace_back(entry.offset, entry.offset + entry.bytes);
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

StateTier::StateTier(nvme::IoQueue* queue, const Clock* clock, std::vector<TierDirectory> directories, std::span<std::byte> memory,
                     uint32_t block_bytes)
    : queue_(queue),
      directories_(std::move(directories)),
      transfers_(queue, clock,
                 {.transfers_max = kStagingSlots + static_cast<uint32_t>(directories_.size()),
                  .block_bytes = block_bytes,
                  .files = 3 * static_cast<uint32_t>(directories_.size())}),
      staging_(memory.first(kStagingSlots * kStagingBytes)),
      moving_(kStagingSlots) {
  TP_CHECK(memory.size() >= MemoryBytes(directories_.size()), "the staging memory is large enough");
  for (uint32_t d = 0; d < directories_.size(); ++d) {
    const nvme::StoreFiles files{.data = 3 * d, .manifests = {3 * d + 1, 3 * d + 2}, .tag = kStagingSlots + d};
    const auto buffer = memory.subspan(kStagingSlots * kStagingBytes + d * nvme::kManifestBytes, nvme::kManifestBytes);
    stores_.emplace_back(directories_[d].manifest, files, &transfers_, buffer);
  }
  for (uint32_t i = kStagingSlots; i > 0; --i) free_.push_back(i - 1);
}

std::vector<uint64_t> StateTier::LargestFree() const {
  std::vector<uint64_t> free;
  for (const auto& store : stores_) free.push_back(store.poisoned() ? 0 : LargestGap(store.manifest()));
  return free;
}

std::vector<uint64_t> StateTier::Capacities() const {
  std::vector<uint64_t> capacities;
  for (const auto& store : stores_) capacities.push_back(store.poisoned() ? 0 : store.manifest().capacity);
  return capacities;
}

bool StateTier::Reserve(uint64_t nonce, JobStates* states) {
  for (uint32_t d = 0; d < states->nvme_bytes().size(); ++d) {
    if (states->nvme_bytes()[d] == 0) continue;
    const auto offset = stores_[d].Reserve(nonce, states->nvme_bytes()[d], d);
    if (!offset) {
      Remove(nonce);
      return false;
    }
    states->SetSpillRange(d, *offset);
  }
  return true;
}

StateTier::Adopted StateTier::Adopt(uint64_t nonce, JobStates* states) {
  for (uint32_t d = 0; d < stores_.size(); ++d) {
    const nvme::ManifestEntry* entry = stores_[d].manifest().Find(nonce);
    if (entry != nullptr && entry->place != d) return Adopted::kOtherOrder;
  }
  for (uint32_t d = 0; d < states->nvme_bytes().size(); ++d) {
    if (states->nvme_bytes()[d] == 0) continue;
    const nvme::ManifestEntry* entry = d < stores_.size() ? stores_[d].manifest().Find(nonce) : nullptr;
    if (entry == nullptr || entry->bytes != states->nvme_bytes()[d]) return Adopted::kUnknown;
    states->SetSpillRange(d, entry->offset);
  }
  return Adopted::kYes;
}

void StateTier::Remove(uint64_t nonce) {
  for (auto& store : stores_) store.Remove(nonce);
}

void StateTier::RemoveAllBut(const std::vector<uint64_t>& nonces) {
  for (auto& store : stores_) {
    std::vector<uint64_t> gone;
    for (const auto& entry : store.manifest().entries) {
      if (std::find(nonces.begin(), nonces.end(), entry.job) == nonces.end()) gone.push_back(entry.job);
    }
    for (const uint64_t nonce : gone) store.Remove(nonce);
  }
}

bool StateTier::IsDurable(const JobStates& states) const {
  for (size_t d = 0; d < states.nvme_bytes().size(); ++d) {
    if (states.nvme_bytes()[d] > 0 && stores_[d].durable_changes() < stores_[d].changes()) return false;
  }
  return true;
}

const TierDirectory* StateTier::PoisonedOf(const JobStates& states) const {
  for (size_t d = 0; d < states.nvme_bytes().size(); ++d) {
    if (states.nvme_bytes()[d] > 0 && stores_[d].poisoned()) return &directories_[d];
  }
  return nullptr;
}

std::optional<uint32_t> StateTier::TakeStaging() {
  if (free_.empty()) return std::nullopt;
  const uint32_t staging = free_.back();
  free_.pop_back();
  return staging;
}

void StateTier::ReturnStaging(uint32_t staging) {
  TP_CHECK(std::find(free_.begin(), free_.end(), staging) == free_.end(), "a staging slot is returned once");
  free_.push_back(staging);
}

StagedPiece StateTier::PieceIn(uint32_t staging, uint64_t payload_bytes) const {
  const auto bytes = staging_.subspan(staging * kStagingBytes, kStagingBytes);
  return {reinterpret_cast<nvme::PieceHeader*>(bytes.data()), bytes.subspan(nvme::kPieceHeaderBytes, payload_bytes), {}, {}};
}

void StateTier::Start(const TierTransfer& transfer) {
  moving_[transfer.staging] = transfer;
  std::byte* const data = staging_.data() + transfer.staging * kStagingBytes;
  transfers_.Start(
      {transfer.kind, 3 * transfer.directory, transfer.offset, data, nvme::kPieceHeaderBytes + transfer.payload_bytes, transfer.staging});
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
    if (ended.tag >= kStagingSlots) {
      stores_[ended.tag - kStagingSlots].End(ended);
      continue;
    }
    const TierTransfer& transfer = moving_[ended.tag];
    *done = {transfer.kind, transfer.staging, transfer.job, ended.error, ended.offset, transfer.directory};
    return true;
  }
  return false;
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
