// StageLinks: sends boundary tensors between pipeline stages on different ranks, and a tied token
// embedding between the first and the last stage, which both read it, when two ranks hold them.
//
// One thread (the trainer's main thread); host memory. Messages are sent in the background; Receive
// blocks. A link carries the messages of one direction between two ranks, in the order in which
// both ranks reach them: forward by ascending stage and micro-batch, then backward by descending
// stage and ascending micro-batch. Both ends know each message's name and size from the plan: a
// rank that sends a different message ends the step.
// Memory: a sent tensor is kept alive until the send has completed.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/status.h"
#include "trainer/comm/rank_link.h"
#include "trainer/pipeline/stage_plan.h"

namespace tidepool::trainer {

// One message.
struct StageMessage {
  enum class Kind : uint8_t {
    kOutput,    // of `stage`, to the rank of the next stage
    kGradient,  // of the input of `stage`, to the rank of the stage before
    kHead,      // the token embedding, from the first stage's rank to the last stage's
    kHeadPart,  // the last stage's part of its gradient, back
  };
  Kind kind = Kind::kOutput;
  uint32_t stage = 0, micro_batch = 0;

  // "output of stage 3, micro-batch 0".
  std::string Name() const;
};

// The links that the ranks of a pipeline need; the order is the same on all ranks.
std::vector<LinkSpec> LinksOf(const StageCuts& cuts);

class StageLinks {
 public:
  // `links`: one per entry of LinksOf(plan->cuts); null where this rank is at neither end. All
  // outlive the object.
  StageLinks(const StagePlan* plan, std::vector<RankLink*> links);
  // Gives up messages in flight and closes their links.
  ~StageLinks();
  StageLinks(const StageLinks&) = delete;
  StageLinks& operator=(const StageLinks&) = delete;

  // Sends a tensor; nobody may write to it until Finish. Never waits.
  void Send(const StageMessage& message, const at::Tensor& tensor);
  // Receives into a contiguous tensor; blocks. Errors: those of RankLink::Wait.
  Status Receive(const StageMessage& message, const at::Tensor& tensor);
  // Waits until all sends have completed. Errors: those of RankLink::Wait.
  Status Finish();

  // Bytes of tensors that this rank has sent and received since construction.
  uint64_t sent_bytes() const { return sent_bytes_; }
  uint64_t received_bytes() const { return received_bytes_; }

 private:
  struct InFlight {
    RankLink* link = nullptr;
    uint64_t number = 0;
    at::Tensor tensor;
    std::string name;
  };
  RankLink* LinkFor(const StageMessage& message) const;
  void ForgetThoseGone();

  const StagePlan& plan_;
  const std::vector<LinkSpec> specs_;
  const std::vector<RankLink*> links_;
  std::deque<InFlight> in_flight_;
  uint64_t sent_bytes_ = 0, received_bytes_ = 0;
};

}  // namespace tidepool::trainer
