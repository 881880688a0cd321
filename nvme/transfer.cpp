#include "nvme/transfer.h"

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <utility>

#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"

namespace tidepool::nvme {
namespace {

// A device that keeps returning EAGAIN no longer accepts requests.
constexpr uint32_t kPausesMax = 1000;
constexpr int64_t kPauseNs = kNsPerMs / 10;
// A rest that is smaller than this fraction of a block joins the block before it, so that the
// header page of a piece is no request of its own.
constexpr uint32_t kRestPart = 8;

int64_t BackOffNs(uint32_t errors) {
  int64_t pause = kNsPerMs;
  for (uint32_t i = 1; i < errors; ++i) pause *= 10;
  return pause;
}

}  // namespace

TransferQueue::TransferQueue(IoQueue* queue, const Clock* clock, const TransferOptions& options)
    : queue_(queue),
      clock_(clock),
      options_(options),
      slots_(options.transfers_max),
      blocks_(queue->depth()),
      files_per_line_(options.files_per_line == 0 ? options.files : options.files_per_line),
      lines_(DivideUp(options.files, files_per_line_)),
      line_depth_(std::max<uint32_t>(1, queue->depth() / static_cast<uint32_t>(lines_.size()))),
      finished_(options.transfers_max),
      free_(options.transfers_max),
      moved_(options.files) {
  // Allocates everything that transfers need later.
  for (Line& line : lines_) line.order.resize(options.transfers_max);
  late_.reserve(2 * options.transfers_max);
  TP_CHECK(options.block_bytes > 0 && options.block_bytes % kPageBytes == 0,
           "blocks are whole pages");
  for (uint32_t i = queue->depth(); i > 0; --i) free_blocks_.push_back(i - 1);
}

void TransferQueue::Start(const Transfer& transfer) {
  const auto slot =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& each) { return !each.used; });
  TP_CHECK(slot != slots_.end(), "Start only when there is room");
  TP_CHECK(transfer.offset % kPageBytes == 0 && transfer.bytes % kPageBytes == 0,
           "transfers are whole pages");
  TP_CHECK(transfer.file < moved_.size(), "the queue has this file");
  TP_CHECK(transfer.bytes > 0 || transfer.kind == IoKind::kSync, "a transfer moves something");

  *slot = Slot{.transfer = transfer,
               .started_ns = clock_->NowNs(),
               .done = {.tag = transfer.tag},
               .used = true};
  --free_;
  const auto index = static_cast<uint32_t>(slot - slots_.begin());
  Line& line = LineOf(index);
  line.order[line.end++ % line.order.size()] = index;
}

bool TransferQueue::Progress() {
  if (in_flight() == 0) return false;
  const int64_t now = clock_->NowNs();
  bool worked = false;
  while (auto done = queue_->Reap()) {
    End(static_cast<uint32_t>(done->tag), done->result.Read(), now);
    worked = true;
  }

  worked |= IssueWaiting(now);
  for (Line& line : lines_) worked |= IssueNew(now, &line);
  queue_->Flush();
  if (std::exchange(writes_submitted_, false)) TP_POINT("nvme.writes_out");
  FindLate(now);
  return worked;
}

bool TransferQueue::IssueNew(int64_t now, Line* line) {
  bool issued = false;
  while (line->begin < line->end && !free_blocks_.empty() && line->out < line_depth_) {
    const uint32_t index = line->order[line->begin % line->order.size()];
    Slot& slot = slots_[index];
    const uint64_t left = slot.transfer.bytes - slot.issued;
    const bool sync = slot.transfer.kind == IoKind::kSync;
    // After an error the blocks not issued yet are skipped.
    if ((left == 0 && !sync) || slot.done.error != 0) {
      ++line->begin;
      FinishIfDone(index);
      continue;
    }

    const uint32_t block = free_blocks_.back();
    free_blocks_.pop_back();
    const uint64_t most = left < options_.block_bytes + options_.block_bytes / kRestPart
                              ? left
                              : options_.block_bytes;
    blocks_[block] = {.slot = index, .begin = slot.issued, .bytes = static_cast<uint32_t>(most)};

    slot.issued += blocks_[block].bytes;
    ++slot.open_blocks;
    ++line->out;
    if (slot.issued == slot.transfer.bytes) ++line->begin;
    Submit(block, now);
    issued = true;
  }
  return issued;
}

bool TransferQueue::IssueWaiting(int64_t now) {
  if (waiting_ == 0 || now < next_retry_ns_) return false;
  next_retry_ns_ = INT64_MAX;
  for (uint32_t i = 0; i < blocks_.size(); ++i) {
    Block& block = blocks_[i];
    if (block.state != Block::State::kWaiting) continue;
    if (block.since_ns > now) {
      next_retry_ns_ = std::min(next_retry_ns_, block.since_ns);
      continue;
    }

    --waiting_;
    Submit(i, now);
  }
  return true;
}

void TransferQueue::Submit(uint32_t index, int64_t now) {
  Block& block = blocks_[index];
  const Transfer& transfer = slots_[block.slot].transfer;
  block.state = Block::State::kOut;
  block.since_ns = now;
  writes_submitted_ |= transfer.kind == IoKind::kWrite;
  queue_->Submit({transfer.kind, transfer.file, transfer.offset + block.begin,
                  transfer.data + block.begin, block.bytes, index});
}

void TransferQueue::Repeat(Block* block, int64_t now, int64_t pause_ns) {
  block->state = Block::State::kWaiting;
  block->since_ns = now + pause_ns;
  next_retry_ns_ = std::min(next_retry_ns_, block->since_ns);
  ++waiting_;
}

void TransferQueue::End(uint32_t index, int32_t value, int64_t now) {
  Block& block = blocks_[index];
  TP_CHECK(block.state == Block::State::kOut, "a block ends once");
  const IoKind kind = slots_[block.slot].transfer.kind;
  LineOf(block.slot).answered_ns = now;
  if (value >= 0 && (kind == IoKind::kSync || TP_PLANTED("nvme.short_taken_for_whole")))
    return CloseBlock(index);
  if (value < 0 && TP_PLANTED("nvme.result_dropped")) return CloseBlock(index);
  // Neither error says anything about the medium, not even for a flush.
  const bool undone = value == -EAGAIN || value == -EINTR;
  if (kind == IoKind::kSync && !undone) return Fail(index, -value);
  if (value >= 0) {
    Moved& of_file = moved_[slots_[block.slot].transfer.file];
    if (kind == IoKind::kRead) of_file.read += static_cast<uint64_t>(value);
    if (kind == IoKind::kWrite) of_file.written += static_cast<uint64_t>(value);
    const auto moved = std::min<uint32_t>(static_cast<uint32_t>(value), block.bytes);
    if (moved == block.bytes) return CloseBlock(index);
    if (moved == 0 && kind == IoKind::kRead) return Fail(index, ENODATA);
    // Only whole pages count: a direct transfer must continue at a page boundary.
    const uint32_t pages = moved / kPageBytes * kPageBytes;
    block.begin += pages;
    block.bytes -= pages;
    if (pages > 0) return Submit(index, now);
    value = -EAGAIN;
  }

  if (value == -EAGAIN || value == -EINTR) {
    if (++block.pauses > kPausesMax) return Fail(index, -value);
    return Repeat(&block, now, kPauseNs);
  }
  if (++block.errors > kTriesMax) return Fail(index, -value);
  ++slots_[block.slot].done.repetitions;
  ++repetitions_;
  Repeat(&block, now, BackOffNs(block.errors));
}

void TransferQueue::Fail(uint32_t index, int error) {
  Slot& slot = slots_[blocks_[index].slot];
  if (slot.done.error == 0) {
    slot.done.error = error;
    slot.done.offset = slot.transfer.offset + blocks_[index].begin;
  }
  CloseBlock(index);
}

void TransferQueue::CloseBlock(uint32_t index) {
  blocks_[index].state = Block::State::kFree;
  free_blocks_.push_back(index);
  const uint32_t slot = blocks_[index].slot;
  --slots_[slot].open_blocks;
  --LineOf(slot).out;
  FinishIfDone(slot);
}

// Blocks in flight may still access the memory, so the transfer ends with the last of them.
void TransferQueue::FinishIfDone(uint32_t index) {
  Slot& slot = slots_[index];
  const Line& line = LineOf(index);
  const bool queued = line.begin < line.end && line.order[line.begin % line.order.size()] == index;
  const bool all_issued = slot.issued == slot.transfer.bytes || slot.done.error != 0;
  if (slot.open_blocks > 0 || !all_issued || queued || !slot.used) return;
  finished_[finished_end_++ % finished_.size()] = index;
}

bool TransferQueue::Next(TransferDone* done) {
  if (finished_begin_ == finished_end_) return false;
  Slot& slot = slots_[finished_[finished_begin_++ % finished_.size()]];
  *done = slot.done;
  slot.used = false;
  ++free_;
  return true;
}

// Checks often enough to keep each limit within an eighth of it.
void TransferQueue::FindLate(int64_t now) {
  if (now < next_look_ns_) return;
  next_look_ns_ = now + options_.late_ns / 8;
  for (const Block& block : blocks_) {
    if (block.state != Block::State::kOut) continue;
    Slot& slot = slots_[block.slot];
    TellLate(&slot, slot.transfer.offset + block.begin, now - block.since_ns);
  }
  for (Line& line : lines_) FindLateIn(&line, now);
}

// Checks transfers that are queued behind unanswered blocks. The system has none of their blocks,
// so a lost transfer ends here and does not begin when the drive wakes up.
void TransferQueue::FindLateIn(Line* line, int64_t now) {
  const size_t size = line->order.size();
  uint64_t kept = line->begin;
  for (uint64_t at = line->begin; at < line->end; ++at) {
    const uint32_t index = line->order[at % size];
    Slot& slot = slots_[index];
    if (slot.open_blocks == 0)
      TellLate(&slot, slot.transfer.offset + slot.issued,
               now - std::max(slot.started_ns, line->answered_ns));

    if (slot.open_blocks == 0 && slot.done.error != 0) {
      finished_[finished_end_++ % finished_.size()] = index;
    } else {
      line->order[kept++ % size] = index;
    }
  }
  line->end = kept;
}

void TransferQueue::TellLate(Slot* slot, uint64_t offset, int64_t waited_ns) {
  const bool lost = waited_ns >= options_.lost_ns && !slot->lost,
             late = waited_ns >= options_.late_ns && !slot->done.late;
  if (!lost && !late) return;
  slot->done.late = true;
  slot->lost |= lost;
  late_.push_back({slot->transfer.tag, offset, waited_ns, lost});

  const bool all_issued = slot->open_blocks > 0 && slot->issued == slot->transfer.bytes;
  if (!lost || all_issued || slot->done.error != 0) return;
  slot->done.error = ETIMEDOUT;  // so that the rest is skipped
  slot->done.offset = offset;
  slot->done.unissued = slot->open_blocks == 0;
}

bool TransferQueue::NextLate(TransferLate* late) {
  if (late_.empty()) return false;
  *late = late_.back();
  late_.pop_back();
  return true;
}

bool TransferQueue::Holds(uint64_t tag) const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [tag](const Slot& slot) { return slot.used && slot.transfer.tag == tag; });
}

uint64_t TransferQueue::bytes_read() const {
  return std::accumulate(moved_.begin(), moved_.end(), uint64_t{0},
                         [](uint64_t sum, const Moved& file) { return sum + file.read; });
}

uint64_t TransferQueue::bytes_written() const {
  return std::accumulate(moved_.begin(), moved_.end(), uint64_t{0},
                         [](uint64_t sum, const Moved& file) { return sum + file.written; });
}

uint32_t TransferQueue::Stalled() const {
  if (in_flight() == 0) return 0;
  const int64_t now = clock_->NowNs();
  return static_cast<uint32_t>(
      std::count_if(blocks_.begin(), blocks_.end(), [&](const Block& block) {
        return block.state == Block::State::kOut && now - block.since_ns > options_.stall_ns;
      }));
}

}  // namespace tidepool::nvme
