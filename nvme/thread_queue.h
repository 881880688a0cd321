// ThreadQueue: the IoQueue over pread and pwrite, for systems that deny io_uring: a few threads
// that block in the kernel. Each line of files has its own, so that a drive that blocks holds up no
// other's.
//
// One thread submits and reaps; it shares one lock, held for a few instructions, with the threads
// inside. Allocates only at construction.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/unique_fd.h"
#include "nvme/io_queue.h"

namespace tidepool::nvme {

class ThreadQueue final : public IoQueue {
 public:
  explicit ThreadQueue(const IoQueueOptions& options);
  // Waits for the requests in progress; drops those that no thread has begun.
  ~ThreadQueue() override;

  void Submit(const IoRequest& request) override;
  void Flush() override {}
  std::optional<IoDone> Reap() override;
  uint32_t depth() const override { return depth_; }
  int event_fd() const override { return event_.get(); }
  void ClearEvent() override;
  std::string Name() const override;

 private:
  struct Ended {
    uint64_t tag;
    int32_t value;
  };
  struct Line {
    std::condition_variable there;
    std::vector<IoRequest> waiting;  // ring of depth_ entries
    uint64_t begin = 0, end = 0;
  };
  void Main(Line* line);

  const uint32_t depth_;
  const std::vector<int> files_;
  const uint32_t files_per_line_;
  UniqueFd event_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Line> lines_;
  std::vector<Ended> ended_;  // ring of depth_ entries
  uint64_t ended_begin_ = 0, ended_end_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tidepool::nvme
