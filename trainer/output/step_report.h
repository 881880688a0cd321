// StepReport: the figures of one training step, and the one place from which the progress line,
// metrics.jsonl and the TensorBoard file are made, so that they never disagree.
//
// One thread. Rates are of this rank's step; bytes are this rank's copies between host pool and
// rCache in this step.
#pragma once

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
  uint64_t step = 0, steps = 0;  // 1-based, and how many the run does
  // Mean over ranks and micro-batches, before the step's update.
  double loss = 0;
  // Mean over the held-out batches, after the step's update (step 0: before any)
  std::optional<double> held_out_loss;
  double grad_norm = 0, learning_rate = 0, loss_scale = 1;
  bool skipped = false;
  // Sealed by a process that died before it reported: norm, times and traffic are not known.
  bool recovered = false;
  uint64_t tokens = 0;  // of all ranks
  double seconds = 0;   // of this step, without evaluation
  double eta_seconds = 0;
  // Chunk accesses of this rank (trainer/cache/cached_chunks.h); bytes below are those of all ranks
  // of a pipeline.
  uint64_t hits = 0, ahead = 0, misses = 0, evictions = 0, prefetches = 0, prefetches_late = 0;
  // At the end of the step: compute threads wait shortly for each other
  // (trainer/threads/cpu_watch.h)
  bool cpus_shared = false;
  double waited_seconds = 0;  // this rank's waits for chunks, collectives and the server
  uint64_t bytes_h2d = 0, bytes_d2h = 0;
  uint64_t bytes_h2d_theory = 0, bytes_d2h_theory = 0;  // 0: no plan yet (the recording step)
  // The same and what ranks exchange, by data group; `groups_theory` is empty where there is no
  // plan yet.
  std::vector<GroupTraffic> groups = {}, groups_theory = {};

  // With stages, of all ranks: their inputs, which waited in host memory from forward to backward.
  // 0: no stages.
  uint64_t bytes_boundary = 0;
  // What ranks of a pipeline sent each other: boundary tensors in both directions, and the token
  // embedding. 0: one rank.
  uint64_t bytes_linked = 0, bytes_linked_theory = 0;

  // Derived figures; 0 and 1 where nothing was counted.
  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
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

// How far a file system that stands still may hold up the run: the other ranks wait for this one.
struct ReportWaits {
  // For the writes of one step; there is no wait while earlier writes still stand.
  int64_t step_ns = 5 * kNsPerSecond;
  int64_t end_ns = 60 * kNsPerSecond;  // for all of it, behind the last step
  // Writes that may be queued; further ones are counted, logged and dropped.
  size_t queue_max = 4096;
};

// Where reports go.
struct ReportTask {
  std::string directory;  // empty: progress only
  uint64_t every = 1;     // steps between lines of progress, off a terminal
  bool quiet = false;     // no progress
  // > 0: the run goes on behind that step; metrics.jsonl keeps its lines up to it and is appended
  // to.
  uint64_t sealed = 0;
  ReportWaits waits = {};
  const Clock* clock = nullptr;  // outlives the writer
};

// Writes reports to DIR/metrics.jsonl and a TensorBoard event file there, and progress to stderr
// (one line rewritten on a terminal, one line each `every` steps otherwise). Rank 0 only. Files are
// written by a thread of their own (writer_lane.h), for which each call waits: what it wrote is
// there when it returns, unless the file system stands still.
class ReportWriter {
 public:
  // Errors: kFileWriteFailed.
  static Result<ReportWriter> Open(ReportTask task);
  // True when DIR/metrics.noted still holds the step `sealed`: rank 0 has not finished its report.
  // Any rank may ask.
  static bool IsUnreported(const std::string& directory, uint64_t sealed);
  // Writes what is known of a step to DIR/metrics.noted, before the step is sealed. A later process
  // reads it there when this one dies before Write. Errors: kFileWriteFailed.
  Status Note(const StepReport& report);
  // The step `sealed` of Open, when it was noted but not written.
  const std::optional<StepReport>& unreported() const { return unreported_; }
  Status Write(const StepReport& report);
  // Ends the rewritten line, so that other output starts on its own.
  void EndLine();
  // After the last step: EndLine, and what was noted goes. Says in the log what could not be
  // written.
  void Finish();
  // Writes that found no room in the queue.
  uint64_t dropped() const { return dropped_; }

 private:
  ReportWriter() = default;
  struct Files {  // the lane's once they are open
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
