#include "trainer/comm/staged_collective.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tidepool::trainer {

Result<std::unique_ptr<StagedCollective>> StagedCollective::Open(std::unique_ptr<Collective> host,
                                                                 device::Device* device) {
  TP_ASSIGN_OR_RETURN(auto stream, device->OpenStream());
  return std::unique_ptr<StagedCollective>(
      new StagedCollective(std::move(host), device, std::move(stream)));
}

StagedCollective::~StagedCollective() {
  // Operations use the staging memory, so they end first; a failure has no one to be reported to.
  for (auto& [ticket, operation] : in_flight_) {
    if (operation.stage == Operation::Stage::kAtHost)
      static_cast<void>(host_->Wait(operation.at_host));
  }
}

uint64_t StagedCollective::staging_bytes() const {
  uint64_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.bytes();
  return bytes;
}

Result<StagedCollective::Buffer*> StagedCollective::LendBuffer(uint64_t bytes) {
  const auto is_free = [](const Buffer& buffer) { return !buffer.lent; };
  const auto free = std::find_if(buffers_.begin(), buffers_.end(), is_free);
  if (free == buffers_.end()) return static_cast<Buffer*>(nullptr);
  const auto fits = std::find_if(free, buffers_.end(), [&](const Buffer& one) {
    return is_free(one) && one.bytes() >= bytes;
  });

  Buffer& buffer = fits != buffers_.end() ? *fits : *free;
  if (buffer.bytes() < bytes) {
    buffer.memory.reset();  // freed first: never more memory than is counted
    TP_ASSIGN_OR_RETURN(buffer.memory, RegisteredHost::Create(device_, bytes));
  }
  buffer.lent = true;
  return &buffer;
}

Status StagedCollective::CopyBytes(void* to, const void* from, uint64_t bytes) {
  if (bytes == 0) return {};
  stream_->Copy(to, from, bytes);
  stream_->Synchronize(stream_->Record());
  return stream_->status();
}

Status StagedCollective::Copy(const Operation& operation, bool out, uint64_t offset,
                              uint64_t bytes) {
  std::byte* const at_device = static_cast<std::byte*>(operation.block.data) + offset;
  std::byte* const at_host = operation.buffer->data() + offset;
  return CopyBytes(out ? at_host : at_device, out ? at_device : at_host, bytes);
}

Status StagedCollective::CopyOut(const Operation& operation) {
  const uint64_t shard_bytes = operation.block.shard_bytes();
  switch (operation.kind) {
    case OperationKind::kAllGather:
      return Copy(operation, /*out=*/true, rank() * shard_bytes, shard_bytes);
    case OperationKind::kAllToAll:
      return CopyBytes(operation.buffer->data(), operation.parts.out, operation.parts.out_bytes());
    default: return Copy(operation, /*out=*/true, 0, world() * shard_bytes);
  }
}

Status StagedCollective::CopyBack(const Operation& operation) {
  const uint64_t shard_bytes = operation.block.shard_bytes();
  const uint64_t own = rank() * shard_bytes, behind = own + shard_bytes;
  if (operation.kind == OperationKind::kReduceScatter)
    return Copy(operation, /*out=*/false, own, shard_bytes);
  if (operation.kind == OperationKind::kAllToAll) {
    const std::byte* const staged = operation.buffer->data() + operation.parts.out_bytes();
    return CopyBytes(operation.parts.in, staged, operation.parts.in_bytes());
  }

  // This rank's own shard is already in the block.
  TP_RETURN_IF_ERROR(Copy(operation, /*out=*/false, 0, own));
  return Copy(operation, /*out=*/false, behind, world() * shard_bytes - behind);
}

uint64_t StagedCollective::StagedBytes(const Operation& operation) const {
  return operation.kind == OperationKind::kAllToAll
             ? operation.parts.out_bytes() + operation.parts.in_bytes()
             : world() * operation.block.shard_bytes();
}

Collective::Ticket StagedCollective::Start(Operation operation) {
  in_flight_.emplace(++last_, std::move(operation));
  BeginThoseInTurn();
  return last_;
}

void StagedCollective::BeginThoseInTurn() {
  for (; next_begun_ <= last_; ++next_begun_) {
    Operation& operation = in_flight_.at(next_begun_);
    Result<Buffer*> buffer = LendBuffer(StagedBytes(operation));
    if (buffer.ok() && buffer.value() == nullptr) {
      Operation* const oldest = OldestAtHost();
      if (!host_->Test(oldest->at_host)) return;
      Finish(oldest);
      buffer = LendBuffer(StagedBytes(operation));
    }

    if (buffer.ok()) {
      Begin(&operation, buffer.value());
    } else {
      operation.stage = Operation::Stage::kEnded;
      operation.status = buffer.status();
    }
  }
}

void StagedCollective::Begin(Operation* operation, Buffer* buffer) {
  operation->buffer = buffer;
  operation->status = CopyOut(*operation);
  if (!operation->status.ok()) {
    buffer->lent = false;
    operation->stage = Operation::Stage::kEnded;
    return;
  }

  operation->stage = Operation::Stage::kAtHost;
  if (operation->kind == OperationKind::kAllToAll) {
    PartsView parts = operation->parts;
    parts.out = buffer->data();
    parts.in = buffer->data() + parts.out_bytes();
    operation->at_host = host_->StartAllToAll(parts);
    return;
  }

  BlockView view = operation->block;
  view.data = buffer->data();
  operation->at_host = operation->kind == OperationKind::kAllGather
                           ? host_->StartAllGather(view)
                           : host_->StartReduceScatter(view);
}

StagedCollective::Operation* StagedCollective::OldestAtHost() {
  for (auto& [ticket, operation] : in_flight_) {
    if (operation.stage == Operation::Stage::kAtHost) return &operation;
  }
  return nullptr;
}

void StagedCollective::Finish(Operation* operation) {
  operation->status = host_->Wait(operation->at_host);
  if (operation->status.ok()) operation->status = CopyBack(*operation);
  operation->stage = Operation::Stage::kEnded;
  operation->buffer->lent = false;
}

bool StagedCollective::Test(Ticket ticket) {
  BeginThoseInTurn();
  const auto found = in_flight_.find(ticket);
  TP_CHECK(found != in_flight_.end(),
           "a ticket that this group gave out and that was not waited for");
  const Operation& operation = found->second;
  return operation.stage == Operation::Stage::kEnded ||
         (operation.stage == Operation::Stage::kAtHost && host_->Test(operation.at_host));
}

Status StagedCollective::Wait(Ticket ticket) {
  const auto found = in_flight_.find(ticket);
  TP_CHECK(found != in_flight_.end(), "each ticket is waited for once");
  Operation& operation = found->second;
  // An operation waits for a buffer only while all are lent.
  while (operation.stage == Operation::Stage::kWaits) {
    Finish(OldestAtHost());
    BeginThoseInTurn();
  }
  if (operation.stage == Operation::Stage::kAtHost) Finish(&operation);
  Status status = std::move(operation.status);
  in_flight_.erase(found);
  BeginThoseInTurn();
  return status;
}

}  // namespace tidepool::trainer
