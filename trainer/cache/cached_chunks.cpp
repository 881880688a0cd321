#include "trainer/cache/cached_chunks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/planted.h"

namespace tidepool::trainer {

CachedChunks::CachedChunks(PipelineSetup setup)
    : setup_(std::move(setup)),
      layout_(*setup_.layout),
      table_(&layout_, setup_.rank, setup_.service->attachment().rcache,
             setup_.service->attachment().rcache_bytes - setup_.tail_bytes),
      pipeline_(Pipeline::Open(setup_)),
      states_(&layout_),
      entries_(layout_.chunks.size()) {}

std::byte* CachedChunks::AddressOf(ParameterId parameter) const {
  return table_.place(layout_.parameters[parameter].chunk) + layout_.ByteBegin(parameter);
}

CacheCounters CachedChunks::counters() const {
  CacheCounters counters = counters_;
  counters.late_prefetches = pipeline_.late();
  counters.wait_ns = pipeline_.wait_ns();
  counters.traffic = pipeline_.traffic();
  const GroupTraffic sum = SumOf(counters.traffic);
  counters.bytes_h2d = sum.fetched;
  counters.bytes_d2h = sum.handed_in;
  return counters;
}

void CachedChunks::BeginPass(bool stale) {
  pipeline_.BeginPass();
  if (stale) DropStale();
  for (const ChunkId chunk : table_.Placed()) states_.BeginPass(chunk);
}

void CachedChunks::DropStale() {
  MarkUses();
  for (const ChunkId chunk : table_.Placed()) {
    if (layout_.chunks[chunk].frozen) continue;
    Unmap(chunk);
    table_.Give(chunk);
  }
}

// --- pinning ---

bool CachedChunks::Pin(std::span<const ChunkId> chunks) {
  const auto is_pinned = [this](ChunkId chunk) { return IsPinned(chunk); };
  const bool nested = std::all_of(chunks.begin(), chunks.end(), is_pinned);
  for (const ChunkId chunk : chunks) {
    if (entries_[chunk].pins++ == 0)
      pinned_.insert(std::lower_bound(pinned_.begin(), pinned_.end(), chunk), chunk);
  }
  if (nested) return false;

  // Consecutive operators on the same chunks share a mark: each mark is a fence in the stream.
  if (!std::all_of(used_.begin(), used_.end(), is_pinned)) MarkUses();
  return true;
}

void CachedChunks::Unpin(std::span<const ChunkId> chunks) {
  bool used = false;
  for (const ChunkId chunk : chunks) {
    TP_CHECK(IsPinned(chunk), "what is released was acquired");
    if (--entries_[chunk].pins > 0) continue;
    pinned_.erase(std::lower_bound(pinned_.begin(), pinned_.end(), chunk));
    if (!table_.has(chunk)) continue;
    if (std::find(used_.begin(), used_.end(), chunk) == used_.end()) used_.push_back(chunk);
    used = true;
  }
  if (used && pipeline_.Used()) MarkUses();
}

void CachedChunks::MarkUses() {
  if (used_.empty()) return;
  const UseMark mark = TP_PLANTED("cache.uses_unmarked") ? 0 : pipeline_.Mark();
  for (const ChunkId chunk : used_) table_.set_last_use(chunk, mark);
  used_.clear();
}

bool CachedChunks::AnyHeld() const {
  return !pinned_.empty() || std::any_of(entries_.begin(), entries_.end(),
                                         [](const Entry& entry) { return entry.gradient; });
}

// --- in ---

std::vector<ChunkId> CachedChunks::Candidates() const {
  std::vector<ChunkId> candidates;
  for (const ChunkId chunk : table_.cached()) {
    if (!IsPinned(chunk) && !entries_[chunk].gradient) candidates.push_back(chunk);
  }
  return candidates;
}

void CachedChunks::Evict(ChunkId victim, ChunkId successor) {
  MarkUses();
  ++counters_.evictions;
  Unmap(victim);
  table_.Replace(victim, successor);
}

void CachedChunks::Shed(ChunkId victim) {
  MarkUses();
  ++counters_.evictions;
  Unmap(victim);
  table_.Give(victim);
}

void CachedChunks::Trim(uint64_t most, const ReleaseMemory& release) {
  while (table_.with_memory() > most) {
    const BlockTable::FreeBlock block = table_.FreeWithMemory();
    if (block.data == nullptr || !pipeline_.Wait(block.past.op, /*prefetched=*/false).ok()) return;
    if (!release(block.data, layout_.BlockBytes())) return;
    table_.LoseMemory();
  }
}

void CachedChunks::Fetch(ChunkId chunk, const Wanted& wanted, bool ahead) {
  table_.set_last_op(chunk,
                     pipeline_.Fetch(chunk, table_.place(chunk), wanted, table_.past(chunk)));
  const Status held = states_.ChangeChunk(chunk, TensorState::kHold);
  TP_CHECK(held.ok(), "a chunk that is fetched was nowhere");

  entries_[chunk].left_out = false;
  (ahead ? entries_[chunk].prefetched : entries_[chunk].demanded) = true;
  ++(ahead ? counters_.prefetches : counters_.misses);
}

Status CachedChunks::HandOut(ChunkId chunk) {
  Entry& entry = entries_[chunk];
  const bool prefetched = entry.prefetched && !entry.demanded;
  counters_.ahead += prefetched;
  counters_.hits += !entry.demanded && !prefetched;
  entry.demanded = entry.prefetched = false;
  TP_RETURN_IF_ERROR(pipeline_.Wait(table_.past(chunk).op, prefetched));

  if (!entry.mapped) moves_.push_back({chunk, table_.place(chunk)});
  entry.mapped = true;
  return {};
}

Status CachedChunks::TakeForGradients(ChunkId chunk) {
  Entry& entry = entries_[chunk];
  entry.gradient = true;
  entry.left_out = false;
  TP_RETURN_IF_ERROR(pipeline_.Wait(table_.past(chunk).op, /*prefetched=*/false));

  if (entry.mapped) moves_.push_back({chunk, nullptr});
  entry.mapped = false;
  if (states_.state(layout_.chunks[chunk].first_parameter) == TensorState::kFree)
    TP_RETURN_IF_ERROR(states_.ChangeChunk(chunk, TensorState::kHold));
  Zero(chunk, 0, layout_.chunks[chunk].elements);
  return {};
}

void CachedChunks::Zero(ChunkId chunk, uint64_t element_begin, uint64_t element_end) {
  if (element_begin == element_end) return;
  const uint64_t element_bytes = BytesOf(layout_.chunks[chunk].dtype);
  std::byte* const at = table_.place(chunk) + element_begin * element_bytes;
  const uint64_t bytes = (element_end - element_begin) * element_bytes;
  setup_.streams.compute != nullptr ? setup_.streams.compute->Zero(at, bytes)
                                    : static_cast<void>(std::memset(at, 0, bytes));
}

// --- out ---

void CachedChunks::Unmap(ChunkId chunk) {
  // The caller does not know a chunk that was never handed out.
  if (entries_[chunk].mapped) moves_.push_back({chunk, nullptr});
  entries_[chunk].mapped = entries_[chunk].demanded = entries_[chunk].prefetched = false;
  if (std::exchange(entries_[chunk].left_out, false)) return;
  const Status freed = states_.ChangeChunk(chunk, TensorState::kFree);
  TP_CHECK(freed.ok(), "no operator uses a chunk that leaves");
}

void CachedChunks::Submit(ChunkId chunk, Version version, uint32_t micro_batch) {
  std::erase(used_, chunk);  // the submission follows its uses
  table_.set_last_op(chunk, pipeline_.Submit(chunk, table_.place(chunk), version, micro_batch));
  ++counters_.submits;

  entries_[chunk].gradient = false;
  Unmap(chunk);
  table_.Give(chunk);
}

Status CachedChunks::SubmitZeros(ChunkId chunk, Version version, uint32_t micro_batch) {
  std::erase(used_, chunk);
  ++counters_.zeros;
  std::byte* place = setup_.service->attachment().rcache;
  if (!setup_.service->attachment().takes_zeros) {
    TP_RETURN_IF_ERROR(TakeForGradients(chunk));
    place = table_.place(chunk);
  }

  const OpId op = pipeline_.SubmitZeros(chunk, place, version, micro_batch);
  if (std::exchange(entries_[chunk].gradient, false)) table_.set_last_op(chunk, op);
  Unmap(chunk);
  table_.Give(chunk);
  return {};
}

OpId CachedChunks::SubmitSum(ChunkId chunk, std::byte* place, Version version) {
  ++counters_.submits;
  return pipeline_.Submit(chunk, place, version, /*micro_batch=*/0);
}

void CachedChunks::TakeMoves(std::vector<Move>* out) {
  out->insert(out->end(), moves_.begin(), moves_.end());
  moves_.clear();
}

}  // namespace tidepool::trainer
