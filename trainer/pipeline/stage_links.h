// StageLinks: what ranks of a pipeline hand to each other: boundary tensors between stages, and the
// token embedding where the first and the last stage, which both read it, are on two ranks.
//
// One thread (the trainer's main thread); host memory. Messages go in the background; one that is
// received is waited for. A link has the messages of one direction between two ranks, in the order
// in which both ranks come to them: forward by ascending stage and micro-batch, then backward by
// descending stage and ascending micro-batch. Each message is named by what it is, and both ends
// know its size from the plan: a rank that is elsewhere, or sends something else, ends the step.
// Memory: a tensor that is sent is kept until it has gone.
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

// Links that the ranks of a pipeline need, in an order that is the same on all ranks.
std::vector<LinkSpec> LinksOf(const StageCuts& cuts);

class StageLinks {
 public:
  // `links`: of LinksOf(plan->cuts), null where this rank is at neither end. All outlive the
  // object.
  StageLinks(const StagePlan* plan, std::vector<RankLink*> links);
  // What is still in flight is given up, and the links with it.
  ~StageLinks();
  StageLinks(const StageLinks&) = delete;
  StageLinks& operator=(const StageLinks&) = delete;

  // Sends a tensor; nobody may write to it until Finish. Never waits.
  void Send(const StageMessage& message, const at::Tensor& tensor);
  // Fills a contiguous tensor. Waits for it. Errors: those of RankLink::Wait.
  Status Receive(const StageMessage& message, const at::Tensor& tensor);
  // Waits until all that was sent has gone. Errors: likewise.
  Status Finish();

  // Bytes of tensors that this rank has sent and received, since it was made.
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
