// StagedCollective: a host's group (Gloo) for blocks in memory of a device: copied out into registered host memory, exchanged there, copied
// back. Any number of ranks may share one GPU.
//
// One thread (the trainer's main thread). It has no stream of the caller's order: the caller sees to it that a block is written by nobody
// when an operation starts (TransferPipeline does), and finds the result when Wait has returned. Start blocks for the copy out, Wait for
// the copy back. Bits are those of the host's group. Staging memory is kept: as many blocks of each size as were in flight at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "trainer/comm/collective.h"
#include "trainer/comm/registered_host.h"

namespace tidepool::trainer {

class StagedCollective final : public Collective {
 public:
  // Errors: kCudaFailed (no stream).
  static Result<std::unique_ptr<StagedCollective>> Open(std::unique_ptr<Collective> host, device::Device* device);
  // Operations in flight are waited for.
  ~StagedCollective() override;

  uint32_t rank() const override { return host_->rank(); }
  uint32_t world() const override { return host_->world(); }
  Ticket StartAllGather(const BlockView& block) override { return Start(block, /*gather=*/true); }
  Ticket StartReduceScatter(const BlockView& block) override { return Start(block, /*gather=*/false); }
  bool Test(Ticket ticket) override;
  // Errors: those of the host's group, and of the device: kMemoryMapFailed, kCudaFailed.
  Status Wait(Ticket ticket) override;
  Status Barrier() override { return host_->Barrier(); }
  Status SumDoubles(double* values, uint64_t count) override { return host_->SumDoubles(values, count); }
  Status Broadcast(void* bytes, uint64_t size) override { return host_->Broadcast(bytes, size); }

 private:
  struct Operation {
    BlockView block;
    bool gather;
    RegisteredHost staging;
    Ticket at_host = 0;
    Status started;  // not ok: nothing was started at the host's group
  };

  StagedCollective(std::unique_ptr<Collective> host, device::Device* device, std::unique_ptr<device::Stream> stream)
      : host_(std::move(host)), device_(device), stream_(std::move(stream)) {}

  Ticket Start(const BlockView& block, bool gather);
  Result<RegisteredHost> TakeStaging(uint64_t bytes);
  // Copies `bytes` at `offset` of the block from or to its staging memory; blocks.
  Status Copy(const Operation& operation, bool out, uint64_t offset, uint64_t bytes);

  std::unique_ptr<Collective> host_;
  device::Device* device_;
  std::unique_ptr<device::Stream> stream_;
  std::map<Ticket, Operation> in_flight_;
  std::map<uint64_t, std::vector<RegisteredHost>> free_;  // by bytes
  Ticket last_ = 0;
};

}  // namespace tidepool::trainer
