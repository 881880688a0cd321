// SpanLog: when memserver copied and updated for one job, for a trace that shows it.
//
// One thread (the serve loop) adds; any thread reads, without waiting. The log is a ring: it keeps
// the last kSpans spans. Times are those of memserver's clock, in nanoseconds. It exists only while
// somebody records the job (PUT /v1/jobs/{job}/spans).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace tidepool::memserver {

// What was done: for a rank, by a worker, or by a drive, in this order.
enum class SpanKind : uint8_t {
  // For a rank.
  kPut,        // weights into the pool
  kFetch,      // parameters out of the pool
  kGradient,   // a gradient shard into the pool
  kGpuUpdate,  // the optimizer's update of a unit of a chunk, on the rank's GPU
  kGpuStore,   // weights of a unit to the states on the rank's GPU, or back for fetches
  // By a worker.
  kUpdate,   // the optimizer's update of a piece of a chunk
  kSum,      // adds a micro-batch's gradients to those before it
  kScan,     // norm of a chunk's gradients
  kConvert,  // between fp32 and 16-bit weights
  kStage,    // a piece into or out of staging, for NVMe
  kCheck,    // compares stored bytes with their checksum or hash
  // By a drive.
  kRead,   // a piece from NVMe into staging
  kWrite,  // a piece from staging to NVMe
};
inline constexpr size_t kSpanKinds = 13;
// "put", "fetch", ...
const char* NameOf(SpanKind kind);
// For whom, or by whom, such a thing is done.
enum class SpanWho : uint8_t { kRank, kWorker, kDrive };
inline SpanWho WhoOf(SpanKind kind) {
  if (kind >= SpanKind::kRead) return SpanWho::kDrive;
  return kind >= SpanKind::kUpdate ? SpanWho::kWorker : SpanWho::kRank;
}

// Something that was done.
struct Span {
  SpanKind kind = SpanKind::kUpdate;
  uint32_t by = 0;  // the number of the rank, the worker or the NVMe directory (WhoOf)
  ChunkId chunk = 0;
  uint32_t piece = 0;  // of the chunk; work that has none: 0
  int64_t begin_ns = 0, end_ns = 0;
};

class SpanLog {
 public:
  static constexpr uint64_t kSpans = 32768;

  // The clock outlives the log.
  explicit SpanLog(const Clock* clock) : clock_(clock), slots_(std::make_unique<Slot[]>(kSpans)) {}

  // The time now, by the clock of all spans.
  int64_t NowNs() const { return clock_->NowNs(); }
  void Add(const Span& span);
  // The spans that are still kept and ended at or after `since_ns`, in the order in which they were
  // added.
  std::vector<Span> Since(int64_t since_ns) const;

 private:
  // The number of the span plus 1 while its words are whole, else 0.
  struct Slot {
    std::atomic<uint64_t> number{0};
    std::array<std::atomic<uint64_t>, 4> words{};
  };
  bool Read(uint64_t number, Span* span) const;

  const Clock* const clock_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> added_{0};
};

}  // namespace tidepool::memserver
