#include "nvme/slot_store.h"

#include <utility>

#include "base/check.h"
#include "base/planted.h"

namespace tidepool::nvme {

SlotStore::SlotStore(Manifest manifest, const StoreFiles& files, TransferQueue* transfers,
                     std::span<std::byte> buffer)
    : manifest_(std::move(manifest)), files_(files), transfers_(transfers), buffer_(buffer) {
  TP_CHECK(buffer.size() == kManifestBytes, "the buffer holds one manifest");
  manifest_.entries.reserve(kManifestEntriesMax);
}

std::optional<uint64_t> SlotStore::Reserve(uint64_t job, uint64_t bytes, uint64_t place) {
  TP_CHECK(manifest_.Find(job) == nullptr && bytes > 0 && bytes % kPageBytes == 0,
           "a job reserves once, whole pages");
  const auto gap = manifest_.FindGap(bytes);
  if (!gap) return std::nullopt;
  manifest_.entries.push_back({.job = job, .offset = *gap, .bytes = bytes, .place = place});
  ++changes_;
  return gap;
}

void SlotStore::Commit(uint64_t job, uint64_t epoch) {
  ManifestEntry* entry = manifest_.Find(job);
  TP_CHECK(entry != nullptr, "a job that commits has reserved");
  entry->epoch = epoch;
  entry->has_epoch = 1;
  ++changes_;
}

void SlotStore::Remove(uint64_t job) {
  if (std::erase_if(manifest_.entries,
                    [job](const ManifestEntry& entry) { return entry.job == job; }) > 0)
    ++changes_;
}

bool SlotStore::Progress() {
  if (out_ || poisoned_ || !transfers_->HasRoom()) return false;
  if (step_ == Step::kIdle && !dirty()) return false;
  if (step_ == Step::kIdle) {
    // This commit makes the changes encoded now durable; later changes belong to the next one.
    writing_ = changes_;
    ++manifest_.generation;
    EncodeManifest(manifest_, buffer_);
    step_ = TP_PLANTED("nvme.data_not_flushed") ? Step::kWrite : Step::kFlushData;
  }
  Begin(step_);
  return true;
}

void SlotStore::Begin(Step step) {
  const uint32_t manifest =
      files_.manifests[TP_PLANTED("nvme.one_manifest") ? 0 : manifest_.generation % 2];
  Transfer transfer{.kind = IoKind::kSync, .file = files_.data, .tag = files_.tag};
  if (step == Step::kFlushManifest) transfer.file = manifest;
  if (step == Step::kWrite)
    transfer = {IoKind::kWrite, manifest, 0, buffer_.data(), kManifestBytes, files_.tag};
  transfers_->Start(transfer);
  out_ = true;
}

void SlotStore::GiveUp(int error) {
  TP_CHECK(out_, "what is given up is out");
  poisoned_ = true;
  error_ = error;
}

void SlotStore::End(const TransferDone& done) {
  TP_CHECK(out_, "a transfer ends once");
  out_ = false;
  if (poisoned_) return;  // given up before
  if (done.error != 0 && !TP_PLANTED("nvme.flush_repeated")) {
    poisoned_ = true;
    error_ = done.error;
    return;
  }

  switch (step_) {
    case Step::kFlushData: step_ = Step::kWrite; break;
    case Step::kWrite: step_ = Step::kFlushManifest; break;
    case Step::kFlushManifest:
      step_ = Step::kIdle;
      durable_ = writing_;
      break;
    case Step::kIdle: break;
  }
}

}  // namespace tidepool::nvme
