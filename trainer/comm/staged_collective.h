// StagedCollective: runs a host group (Gloo) on blocks in device memory: copied to registered host
// memory, exchanged there, copied back. Any number of ranks may share one GPU.
//
// One thread (the trainer's main thread). Operations are not ordered with a stream: the caller
// ensures that nobody writes a block when an operation starts (TransferPipeline does), and finds
// the result when Wait has returned. Start blocks for the copy out, Wait for the copy back. The
// bits are those of the host group.
// Staging memory is kept: at most kStagedAtOnce buffers, each as large as the largest block, or as
// both directions of the largest all-to-all. An operation that finds no buffer begins after the
// oldest one, in a later call of any kind; only Wait waits for a peer.
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
  // Waits for operations in flight.
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
  // Errors: those of the host group and of the device: kMemoryMapFailed, kCudaFailed.
  Status Wait(Ticket ticket) override;
  Status CompareOrder() override { return host_->CompareOrder(); }
  Status Barrier() override { return host_->Barrier(); }
  Status SumDoubles(double* values, uint64_t count) override {
    return host_->SumDoubles(values, count);
  }
  Status Broadcast(void* bytes, uint64_t size) override { return host_->Broadcast(bytes, size); }

  // Bytes of staging memory that this group has allocated so far.
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
  // A free buffer of at least `bytes`; null when all are lent.
  Result<Buffer*> LendBuffer(uint64_t bytes);
  // Begins waiting operations, in order, while there are buffers.
  void BeginThoseInTurn();
  void Begin(Operation* operation, Buffer* buffer);
  // Waits for the outcome on the host, copies it back to the block and frees the buffer.
  void Finish(Operation* operation);
  // The oldest operation that the host group is working on; null if none.
  Operation* OldestAtHost();
  // Copies the host group's input to staging memory.
  Status CopyOut(const Operation& operation);
  // Copies the result back.
  Status CopyBack(const Operation& operation);
  // Copies `bytes` at `offset` between the block and its staging memory; blocks.
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
