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

// What was done. Up to kGradient: a copy for a rank. From kUpdate on: work of a worker.
enum class SpanKind : uint8_t {
  kPut,       // weights into the pool
  kFetch,     // parameters out of the pool
  kGradient,  // a gradient shard into the pool
  kUpdate,    // the optimizer's update of a piece of a chunk
  kSum,       // adds a micro-batch's gradients to those before it
  kScan,      // norm of a chunk's gradients
  kConvert,   // between fp32 and 16-bit weights
  kStage,     // a piece into or out of staging, for NVMe
  kCheck,     // compares stored bytes with their checksum or hash
};
// "put", "fetch", ...
const char* NameOf(SpanKind kind);
inline bool IsCopy(SpanKind kind) {
  return kind <= SpanKind::kGradient;
}

// Something that was done.
struct Span {
  SpanKind kind = SpanKind::kUpdate;
  uint32_t by = 0;  // a copy: the rank it is for; work: the worker
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
