// StagedCollective: a host's group (Gloo) for blocks in memory of a device: copied out into
// registered host memory, exchanged there, copied back. Any number of ranks may share one GPU.
//
// One thread (the trainer's main thread). It has no stream of the caller's order: the caller sees
// to it that a block is written by nobody when an operation starts (TransferPipeline does), and
// finds the result when Wait has returned. Start blocks for the copy out, Wait for the copy back.
// Bits are those of the host's group.
// Staging memory is kept: kStagedAtOnce buffers at most, each as large as the largest block, or as
// the parts of the largest all-to-all, both ways. An operation that finds none begins behind the
// oldest one, in a later call of any kind; no call waits for a peer but Wait.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "trainer/comm/collective.h"
#include "trainer/comm/nccl/registered_host.h"

namespace tidepool::trainer {

inline constexpr uint32_t kStagedAtOnce = 4;

class StagedCollective final : public Collective {
 public:
  // Errors: kCudaFailed (no stream).
  static Result<std::unique_ptr<StagedCollective>> Open(std::unique_ptr<Collective> host,
                                                        device::Device* device);
  // Operations in flight are waited for.
  ~StagedCollective() override;

  uint32_t rank() const override { return host_->rank(); }
  uint32_t world() const override { return host_->world(); }
  Ticket StartAllGather(const BlockView& block) override {
    return Start({.kind = OperationKind::kAllGather, .block = block});
  }
  Ticket StartReduceScatter(const BlockView& block) override {
    return Start({.kind = OperationKind::kReduceScatter, .block = block});
  }
  Ticket StartAllToAll(const PartsView& parts) override {
    return Start({.kind = OperationKind::kAllToAll, .parts = parts});
  }
  bool Test(Ticket ticket) override;
  // Errors: those of the host's group, and of the device: kMemoryMapFailed, kCudaFailed.
  Status Wait(Ticket ticket) override;
  Status CompareOrder() override { return host_->CompareOrder(); }
  Status Barrier() override { return host_->Barrier(); }
  Status SumDoubles(double* values, uint64_t count) override {
    return host_->SumDoubles(values, count);
  }
  Status Broadcast(void* bytes, uint64_t size) override { return host_->Broadcast(bytes, size); }

  // Bytes of the staging memory that this group has taken so far.
  uint64_t staging_bytes() const;

 private:
  struct Buffer {
    std::optional<RegisteredHost> memory{};
    bool lent = false;
    std::byte* data() const { return memory ? memory->data() : nullptr; }
    uint64_t bytes() const { return memory ? memory->bytes() : 0; }
  };
  struct Operation {
    enum class Stage : uint8_t { kWaits, kAtHost, kEnded };
    OperationKind kind;
    BlockView block{};
    PartsView parts{};  // of an all-to-all; staged as all of `out`, then all of `in`
    Stage stage = Stage::kWaits;
    Buffer* buffer = nullptr;
    Ticket at_host = 0;
    Status status{};  // once it has ended
  };

  StagedCollective(std::unique_ptr<Collective> host, device::Device* device,
                   std::unique_ptr<device::Stream> stream)
      : host_(std::move(host)), device_(device), stream_(std::move(stream)) {}

  Ticket Start(Operation operation);
  uint64_t StagedBytes(const Operation& operation) const;
  // A free buffer of at least so many bytes; null when all are lent.
  Result<Buffer*> LendBuffer(uint64_t bytes);
  // Begins waiting operations, in order, as far as there are buffers.
  void BeginThoseInTurn();
  void Begin(Operation* operation, Buffer* buffer);
  // The outcome at the host, which is waited for, comes back to the block; the buffer is free.
  void Finish(Operation* operation);
  // The oldest operation that is at the host; null when there is none.
  Operation* OldestAtHost();
  // What the group on the host is to see of the operation goes to its staging memory.
  Status CopyOut(const Operation& operation);
  // The result comes back.
  Status CopyBack(const Operation& operation);
  // Copies `bytes` at `offset` of the block from or to its staging memory; blocks.
  Status Copy(const Operation& operation, bool out, uint64_t offset, uint64_t bytes);
  Status CopyBytes(void* to, const void* from, uint64_t bytes);

  std::unique_ptr<Collective> host_;
  device::Device* device_;
  std::unique_ptr<device::Stream> stream_;
  std::map<Ticket, Operation> in_flight_;
  std::array<Buffer, kStagedAtOnce> buffers_;
  Ticket next_begun_ = 1, last_ = 0;
};

}  // namespace tidepool::trainer
