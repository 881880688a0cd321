// WriteSteps: streams the gradients and records of a job's steps into memory that a process of its
// user empties (shm/state_stream.h), for as long as the rank that asked for them is there.
// memserver opens, writes and closes no file for it.
//
// A sealed step's gradients lie in their slots until their chunk is updated, so each chunk's update
// waits until its gradients were copied. StepFeed is what serve loop and reading thread share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/residency/job_states.h"
#include "shm/segment.h"

namespace tidepool::memserver {

// A sealed step, and the order in which its chunks are updated; null: that of their ids.
struct SealedStep {
  StepRecord record{};
  std::shared_ptr<const std::vector<ChunkId>> order = {};
};

// Hands sealed steps to the reading thread, and says which chunks it has copied.
class StepFeed {
 public:
  explicit StepFeed(size_t chunks) : copied_(chunks) {}

  // --- the serve loop ---
  void Push(SealedStep step);
  // No further step follows.
  void Close();
  // Ends the stream before it has copied what was pushed; the first reason counts.
  void Abandon(std::string why);
  // True if the update of the last pushed step may begin at this chunk.
  bool IsOpen(ChunkId chunk) const {
    return copied_[chunk].load(std::memory_order_acquire) >= due_;
  }

  // --- the reading thread ---
  // Waits at most `wait_ns` for a step.
  std::optional<SealedStep> Take(int64_t wait_ns);
  void Open(ChunkId chunk, Version version) {
    copied_[chunk].store(version, std::memory_order_release);
  }
  // True when all pushed steps are taken, and no more come.
  bool ended();
  // Why the stream ends early; empty: it does not.
  std::string abandoned();

 private:
  Version due_ = 0;                           // the serve loop's alone
  std::vector<std::atomic<Version>> copied_;  // by chunk: the last version whose gradients were
  std::mutex mutex_;  // of all below; never held while anything is waited for or copied
  std::condition_variable pushed_;
  std::deque<SealedStep> steps_;
  bool closed_ = false;
  std::string abandoned_;
};

// What is streamed, and the notification.
struct StepTask {
  std::shared_ptr<shm::Segment> memory;
  const JobStates* states = nullptr;  // uses saved(), specification, gradient slots
  Version version = 0;                // the first step follows it
  std::shared_ptr<StepFeed> feed;
  std::function<void()> opened;  // called for each chunk that was copied
  std::shared_ptr<std::atomic<bool>> asker_gone = std::make_shared<std::atomic<bool>>(false);
};

// Streams steps until the feed is closed, and reports the end to the reader. Blocks as long as the
// reader is slow, but never longer than `stuck_ns` without a piece being taken. Errors: kSaveFailed
// (the reader is gone, stuck or lies; the feed was abandoned; the daemon ends).
Status WriteSteps(const StepTask& task, const Clock& clock, const std::atomic<bool>& stop,
                  int64_t stuck_ns);

}  // namespace tidepool::memserver
