// ThreadQueue: the IoQueue over pread and pwrite, for systems that deny io_uring: a few threads that block in the kernel.
//
// One thread submits and reaps; the threads inside meet it at one lock, held for a few instructions. It allocates nothing after it was
// made.
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
  // Waits for the requests that threads hold; those that no thread has begun are dropped.
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
  void Main();

  const uint32_t depth_;
  const std::vector<int> files_;
  UniqueFd event_;
  std::mutex mutex_;
  std::condition_variable there_;
  // Rings of depth_ places, guarded by mutex_.
  std::vector<IoRequest> waiting_;
  std::vector<Ended> ended_;
  uint64_t waiting_begin_ = 0, waiting_end_ = 0, ended_begin_ = 0, ended_end_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tidepool::nvme
