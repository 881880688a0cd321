// UringQueue: the IoQueue over io_uring.
//
// Made by any thread; from the first Flush on it belongs to the thread that called it (the ring is
// set up for a single submitter).
#pragma once

#include "base/status.h"
#include "base/unique_fd.h"
#include "nvme/io_queue.h"

namespace tidepool::nvme {

class UringQueue final : public IoQueue {
 public:
  // Opens a queue. Errors: kNvmeRingDenied, with the system's reason.
  static Result<std::unique_ptr<UringQueue>> Open(const IoQueueOptions& options);
  ~UringQueue() override;

  void Submit(const IoRequest& request) override;
  void Flush() override;
  std::optional<IoDone> Reap() override;
  uint32_t depth() const override { return depth_; }
  int event_fd() const override { return event_.get(); }
  void ClearEvent() override;
  std::string Name() const override;
  // Why memory or files are not registered; empty if they are.
  const std::string& lacks() const { return lacks_; }

 private:
  struct Ring;
  UringQueue(const IoQueueOptions& options, std::unique_ptr<Ring> ring);
  void Register(const IoQueueOptions& options);
  int BufferOf(const std::byte* data, uint32_t bytes) const;

  const uint32_t depth_;
  const std::vector<int> files_;
  std::vector<std::span<std::byte>> buffers_;  // empty: not registered
  bool files_registered_ = false;
  bool enabled_ = false;
  std::string lacks_;
  UniqueFd event_;
  std::unique_ptr<Ring> ring_;
};

}  // namespace tidepool::nvme
