// OperationRunner: executes a host stream's operations in order, a bounded piece at a time,
// resuming in the middle of a copy.
//
// One thread (the consumer of its queue). It holds no lock and never waits: an operation that
// cannot continue yet is reported as kBlocked. The caller reads passed markers from the counter,
// which any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "device/host/copy_team.h"
#include "device/host/operation_queue.h"

namespace tidepool::device {

class OperationRunner {
 public:
  enum class State {
    kWorked,   // the budget is used up, or a marker passed: call again
    kBlocked,  // the oldest operation waits for a flag or another stream
    kIdle,     // nothing is queued
  };
  struct Progress {
    State state = State::kIdle;
    bool worked = false;         // at least one operation or piece was done
    bool marker_passed = false;  // passed() has grown
  };

  // `passed` receives the number of the last marker that has passed (release). `team` helps with
  // large copies; null: this thread copies alone.
  OperationRunner(OperationQueue* queue, std::shared_ptr<Flag> passed, CopyTeam* team = nullptr)
      : queue_(queue), passed_(std::move(passed)), team_(team) {}

  // Works until about `bytes_max` bytes are copied or zeroed (each other operation counts as
  // kOperationCost), a flag blocks, or nothing is left.
  Progress Run(uint64_t bytes_max);

 private:
  static constexpr uint64_t kOperationCost = 256;  // bytes; bounds a run of flags and markers
  // Executes (a piece of) `operation`; returns the cost, 0 if it is blocked. Pops a finished one.
  uint64_t Execute(const Operation& operation, uint64_t bytes_max, Progress* progress);
  uint64_t CopyPiece(const Operation& operation, uint64_t bytes_max);
  uint64_t ZeroPiece(const Operation& operation, uint64_t bytes_max);
  uint64_t KernelPiece(const Operation& operation, uint64_t bytes_max);
  // `count` more of the bytes or items of the front operation are done.
  void Moved(const Operation& operation, uint64_t count);

  OperationQueue* queue_;
  const std::shared_ptr<Flag> passed_;
  CopyTeam* team_;
  uint64_t moved_ = 0;  // done of the front operation: bytes, or items of a kernel
};

}  // namespace tidepool::device
