// TransferQueue: transfers of any length over an IoQueue: cut into blocks, continued after short
// answers, retried after errors.
//
// One thread. It owns the memory of a transfer from Start until Next has returned it, in every
// case, because the system may write to it until then. Allocates only at construction.
//   short, EAGAIN, EINTR   continued (the latter two after a pause)
//   EIO and others         retried kTriesMax times after 1, 10 and 100 ms, then the transfer ends
//                          with the error
//   end of file            an error at once: files are preallocated
//   a failed flush         an error at once: a second one could succeed although data is lost
//   no answer at all       reported by NextLate after late_ns, and again after lost_ns; the memory
//                          stays the queue's until an answer comes
//   no place in its line   the same, since its start or the last answer in the line; after lost_ns
//                          it ends with ETIMEDOUT, never issued
// Each line of files (those of one drive) has its own order and its own share of the queue's depth:
// a drive that does not answer takes nothing from another.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "nvme/io_queue.h"

namespace tidepool::nvme {

inline constexpr uint32_t kTriesMax = 3;

// A read or write of one file, or a flush of it.
struct Transfer {
  IoKind kind = IoKind::kRead;
  uint32_t file = 0;
  uint64_t offset = 0;
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  uint64_t tag = 0;  // returned with the result
};

// The end of a transfer.
struct TransferDone {
  uint64_t tag = 0;
  int error = 0;             // 0, or an errno
  uint64_t offset = 0;       // in the file, of the block that failed
  uint32_t repetitions = 0;  // retries of blocks, after errors
  bool late = false;         // NextLate has reported it
  bool unissued = false;     // it ended as lost before the system had any of it
};

// A transfer that has not been answered.
struct TransferLate {
  uint64_t tag = 0;
  uint64_t offset = 0;    // in the file, of the block
  int64_t waited_ns = 0;  // since the system got the block, or since the block began to wait for
                          // that
  bool lost = false;      // longer than lost_ns
};

// The number of transfers, their block size, and their time limits.
struct TransferOptions {
  uint32_t transfers_max = 64;
  uint32_t block_bytes = 1u << 20;
  uint32_t files = 3;                    // of the queue
  uint32_t files_per_line = 0;           // consecutive files of one drive; 0: all are one line
  int64_t stall_ns = 10 * kNsPerSecond;  // a block that takes longer is counted
  int64_t late_ns = 30 * kNsPerSecond;   // reported after this time
  int64_t lost_ns = 300 * kNsPerSecond;  // reported again after this time
};

class TransferQueue {
 public:
  TransferQueue(IoQueue* queue, const Clock* clock, const TransferOptions& options);

  // True if one more transfer may start.
  bool HasRoom() const { return free_ > 0; }
  // Starts a transfer. Requires HasRoom().
  void Start(const Transfer& transfer);
  // Advances all transfers; true if something was done.
  bool Progress();
  // A transfer that has ended; false if there is none.
  bool Next(TransferDone* done);
  // A transfer that has become late or lost; false if there is none. It ends like any other if its
  // answer comes after all. A transfer that ends because it is lost is reported here first.
  bool NextLate(TransferLate* late);

  // True from Start of a transfer with this tag until Next has returned it.
  bool Holds(uint64_t tag) const;
  uint32_t in_flight() const { return static_cast<uint32_t>(slots_.size()) - free_; }
  // When the next retry is due, by the clock; INT64_MAX: none.
  int64_t next_retry_ns() const { return next_retry_ns_; }
  uint64_t bytes_read() const;
  uint64_t bytes_written() const;
  struct Moved {
    uint64_t read = 0, written = 0;
  };
  const Moved& moved(uint32_t file) const { return moved_[file]; }
  uint64_t repetitions() const { return repetitions_; }
  // Number of blocks that the system has now held for longer than stall_ns.
  uint32_t Stalled() const;

 private:
  struct Slot {
    Transfer transfer;
    int64_t started_ns = 0;
    uint64_t issued = 0;
    uint32_t open_blocks = 0;
    TransferDone done;
    bool used = false;
    bool lost = false;
  };
  struct Line {
    std::vector<uint32_t> order;  // ring of slots with blocks not issued yet, in order of Start
    uint64_t begin = 0, end = 0;
    uint32_t out = 0;         // blocks in flight
    int64_t answered_ns = 0;  // when the last of them was answered
  };
  struct Block {
    uint32_t slot = 0;
    uint64_t begin = 0;  // in the transfer
    uint32_t bytes = 0;
    uint32_t errors = 0, pauses = 0;
    int64_t since_ns = 0;  // time of submission, or, while it waits, its due time
    enum class State : uint8_t { kFree, kOut, kWaiting } state = State::kFree;
  };
  Line& LineOf(uint32_t slot) { return lines_[slots_[slot].transfer.file / files_per_line_]; }
  bool IssueNew(int64_t now, Line* line);
  void FindLate(int64_t now);
  void FindLateIn(Line* line, int64_t now);
  void TellLate(Slot* slot, uint64_t offset, int64_t waited_ns);
  bool IssueWaiting(int64_t now);
  void Submit(uint32_t index, int64_t now);
  void End(uint32_t index, int32_t value, int64_t now);
  void Repeat(Block* block, int64_t now, int64_t pause_ns);
  void Fail(uint32_t index, int error);
  void CloseBlock(uint32_t index);
  void FinishIfDone(uint32_t slot);

  IoQueue* const queue_;
  const Clock* const clock_;
  const TransferOptions options_;
  std::vector<Slot> slots_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> free_blocks_;
  const uint32_t files_per_line_;
  std::vector<Line> lines_;
  uint32_t line_depth_ = 0;
  std::vector<uint32_t> finished_;  // ring
  uint64_t finished_begin_ = 0, finished_end_ = 0;
  std::vector<TransferLate> late_;  // not reported yet; the last one is reported first
  int64_t next_look_ns_ = 0;        // next check for late transfers
  uint32_t free_ = 0;
  uint32_t waiting_ = 0;
  bool writes_submitted_ = false;  // since the last Flush
  int64_t next_retry_ns_ = INT64_MAX;
  std::vector<Moved> moved_;  // by file
  uint64_t repetitions_ = 0;
};

}  // namespace tidepool::nvme
