// StepReport: the metrics of one training step, the common source of the progress line,
// metrics.jsonl and the TensorBoard file, so that they never disagree.
//
// One thread. Rates are of this rank's step; bytes are this rank's copies between host pool and
// rCache in this step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "trainer/output/event_file.h"
#include "trainer/output/writer_lane.h"
#include "trainer/plan/traffic.h"

namespace tidepool::trainer {

struct StepReport {
  uint64_t step = 0, steps = 0;  // 1-based; and the run's number of steps
  // Mean over ranks and micro-batches, before the step's update.
  double loss = 0;
  // Mean over the held-out batches, after the step's update (step 0: before any update).
  std::optional<double> held_out_loss;
  double grad_norm = 0, learning_rate = 0, loss_scale = 1;
  bool skipped = false;
  // Sealed by a process that died before reporting: norm, times and traffic are unknown.
  bool recovered = false;
  // True if a power cut leaves this step; without a value where steps are not logged.
  std::optional<bool> durable = {};
  uint64_t tokens = 0;  // of all ranks
  double seconds = 0;   // of this step, without evaluation
  double eta_seconds = 0;
  // Chunk accesses of this rank (trainer/cache/cached_chunks.h); bytes below are those of all ranks
  // of a pipeline.
  uint64_t hits = 0, ahead = 0, misses = 0, evictions = 0, prefetches = 0, prefetches_late = 0;
  uint64_t evictions_unforeseen = 0;  // of `evictions`: chosen without a plan
  // With a memory limit: of this rank, the most bytes in use since the start. 0: no limit.
  uint64_t memory_most = 0;
  // At the end of the step: compute threads wait briefly for each other
  // (trainer/threads/cpu_watch.h).
  bool cpus_shared = false;
  double waited_seconds = 0;  // this rank's waits for chunks, collectives and the server
  uint64_t bytes_h2d = 0, bytes_d2h = 0;
  uint64_t bytes_h2d_theory = 0, bytes_d2h_theory = 0;  // 0: no plan yet (the recording step)
  // The same and the exchange between ranks, by data group; `groups_theory` is empty without a
  // plan.
  std::vector<GroupTraffic> groups = {}, groups_theory = {};

  // With stages, over all ranks: inputs kept in host memory from forward to backward. 0: no stages.
  uint64_t bytes_boundary = 0;
  // Bytes sent between ranks of a pipeline: boundary tensors in both directions, and the token
  // embedding. 0: one rank.
  uint64_t bytes_linked = 0, bytes_linked_theory = 0;

  // Derived metrics; 0 and 1 if nothing was counted.
  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
  // The share of the step in which this rank waited.
  double waiting_share() const { return seconds > 0 ? std::min(waited_seconds / seconds, 1.0) : 0; }
  double hit_rate() const { return ShareOf(hits, 1); }
  double ahead_rate() const { return ShareOf(ahead, 0); }

 private:
  double ShareOf(uint64_t some, double of_none) const {
    const uint64_t all = hits + ahead + misses;
    return all == 0 ? of_none : static_cast<double>(some) / static_cast<double>(all);
  }
};

// "step 12/200  loss 3.41  412 tok/s  hit 71 %, ahead 26 %  in 12.1 MiB  out 4 MiB  ETA 1:12 min"
std::string ProgressLine(const StepReport& report);
// One JSON object without a newline.
std::string MetricsLine(const StepReport& report);

// How long a stalled file system may delay the run: the other ranks wait for this one.
struct ReportWaits {
  // For the writes of one step; no wait while earlier writes are still pending.
  int64_t step_ns = 5 * kNsPerSecond;
  int64_t end_ns = 60 * kNsPerSecond;  // for everything, after the last step
  // Most queued writes; further ones are counted, logged and dropped.
  size_t queue_max = 4096;
};

// Destinations of reports.
struct ReportTask {
  std::string directory;  // empty: progress only
  uint64_t every = 1;     // steps between progress lines, when not on a terminal
  bool quiet = false;     // no progress lines
  // > 0: the run resumes after that step; metrics.jsonl keeps its lines up to it and is appended
  // to.
  uint64_t sealed = 0;
  ReportWaits waits = {};
  const Clock* clock = nullptr;  // outlives the writer
};

// Writes reports to DIR/metrics.jsonl and a TensorBoard event file there, and progress to stderr
// (one rewritten line on a terminal, else one line every `every` steps). Rank 0 only. A separate
// thread (writer_lane.h) writes the files, and each call waits for it: its data are written when it
// returns, unless the file system stalls.
class ReportWriter {
 public:
  // Errors: kFileWriteFailed.
  static Result<ReportWriter> Open(ReportTask task);
  // True if DIR/metrics.noted still holds the step `sealed`: rank 0 has not finished its report.
  // Any rank may call it.
  static bool IsUnreported(const std::string& directory, uint64_t sealed);
  // Writes the known metrics of a step to DIR/metrics.noted, before the step is sealed. A later
  // process reads them if this one dies before Write. Errors: kFileWriteFailed.
  Status Note(const StepReport& report);
  // The step `sealed` of Open, if it was noted but not written.
  const std::optional<StepReport>& unreported() const { return unreported_; }
  Status Write(const StepReport& report);
  // Ends the rewritten line, so that other output starts on a new line.
  void EndLine();
  // Call after the last step: EndLine, and removes the note. Logs what could not be written.
  void Finish();
  // Number of writes dropped because the queue was full.
  uint64_t dropped() const { return dropped_; }

 private:
  ReportWriter() = default;
  struct Files {  // owned by the lane once they are open
    std::string noted_path;
    UniqueFd metrics, noted;
    std::optional<EventFile> events;

    Status WriteNote(const StepReport& report);
    Status WriteReport(const StepReport& report);
    Status WriteEvents(const StepReport& report);
  };

  Status OpenFiles();
  Status Hand(WriterLane::Job job);

  std::shared_ptr<Files> files_;  // null: progress only
  std::unique_ptr<WriterLane> lane_;
  ReportTask task_;
  uint64_t dropped_ = 0;
  std::optional<StepReport> unreported_;
  bool terminal_ = false, line_open_ = false;
};

}  // namespace tidepool::trainer
