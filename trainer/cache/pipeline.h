// Pipeline: the pipeline for the kind of memory: AheadPipeline if streams of a device and of all
// collectives provide the order, else TransferPipeline.
//
// One thread (the trainer's main thread). With both, the same calls in the same order start the
// same requests and collectives.
#pragma once

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "trainer/cache/ahead_pipeline.h"
#include "trainer/cache/transfer_pipeline.h"

namespace tidepool::trainer {

class Pipeline {
  using Form = std::variant<std::unique_ptr<TransferPipeline>, std::unique_ptr<AheadPipeline>>;
  template <typename Call>
  auto Visit(const Call& call) const {
    return std::visit([&](const auto& pipeline) { return call(*pipeline); }, form_);
  }

 public:
  // The implementation that the setup's streams and groups allow.
  static Pipeline Open(PipelineSetup setup);

  // Begins a pass: numbers its operations from here on.
  void BeginPass() {
    Visit([](auto& pipeline) { pipeline.BeginPass(); });
  }
  // Fetches this rank's shard of the chunk to `block`, after all uses of the block, then
  // all-gathers; or fetches the whole chunk (PipelineSetup::exchange).
  OpId Fetch(ChunkId chunk, std::byte* block, const Wanted& wanted, const BlockPast& past) {
    return Visit([&](auto& pipeline) { return pipeline.Fetch(chunk, block, wanted, past); });
  }
  // Reduces the block over the group, then sends this rank's shard to the server.
  OpId Submit(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch) {
    return Visit(
        [&](auto& pipeline) { return pipeline.Submit(chunk, block, version, micro_batch); });
  }
  // Sends a shard of zeros, for which the group exchanges nothing: without bytes where the server
  // takes that, else from `block`, which holds them.
  OpId SubmitZeros(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch) {
    return Visit(
        [&](auto& pipeline) { return pipeline.SubmitZeros(chunk, block, version, micro_batch); });
  }
  // Notes that an operator is in the compute stream; true if a mark should follow.
  bool Used() {
    return Visit([](auto& pipeline) { return pipeline.Used(); });
  }
  // Records a mark after all work in the compute stream.
  UseMark Mark() {
    return Visit([](auto& pipeline) { return pipeline.Mark(); });
  }
  // Operators that begin afterwards see the transfer's result. Waits, or makes the compute stream
  // wait.
  Status Wait(OpId id, bool prefetched) {
    return Visit([&](auto& pipeline) { return pipeline.Wait(id, prefetched); });
  }
  Status Progress() {
    return Visit([](auto& pipeline) { return pipeline.Progress(); });
  }
  Status WaitAll() {
    return Visit([](auto& pipeline) { return pipeline.WaitAll(); });
  }
  // Waits for all transfers, and lets the groups compare their orders.
  Status FinishPass() {
    return Visit([](auto& pipeline) { return pipeline.FinishPass(); });
  }
  Status AwaitOperators() {
    return Visit([](auto& pipeline) { return pipeline.AwaitOperators(); });
  }
  // By data group.
  std::vector<GroupTraffic> traffic() const {
    return Visit([](const auto& pipeline) { return pipeline.traffic(); });
  }
  uint64_t wait_ns() const {
    return Visit([](const auto& pipeline) { return pipeline.wait_ns(); });
  }
  uint64_t late() const {
    return Visit([](const auto& pipeline) { return pipeline.late(); });
  }

 private:
  explicit Pipeline(Form form) : form_(std::move(form)) {}

  Form form_;
};

}  // namespace tidepool::trainer
