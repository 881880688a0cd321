#include "trainer/comm/staged_collective.h"

#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::trainer {

Result<std::unique_ptr<StagedCollective>> StagedCollective::Open(std::unique_ptr<Collective> host, device::Device* device) {
  TP_ASSIGN_OR_RETURN(auto stream, device->OpenStream());
  return std::unique_ptr<StagedCollective>(new StagedCollective(std::move(host), device, std::move(stream)));
}

StagedCollective::~StagedCollective() {
  // Their memory may not go before; a failure has nobody left to be told to.
  for (auto& [ticket, operation] : in_flight_) {
    if (operation.started.ok()) static_cast<void>(host_->Wait(operation.at_host));
  }
}

Result<RegisteredHost> StagedCollective::TakeStaging(uint64_t bytes) {
  auto& kept = free_[RoundUp(bytes, kPageBytes)];
  if (kept.empty()) return RegisteredHost::Create(device_, bytes);
  RegisteredHost staging = std::move(kept.back());
  kept.pop_back();
  return staging;
}

Status StagedCollective::Copy(const Operation& operation, bool out, uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return {};
  std::byte* const at_device = static_cast<std::byte*>(operation.block.data) + offset;
  std::byte* const at_host = operation.staging.data() + offset;
  stream_->Copy(out ? at_host : at_device, out ? at_device : at_host, bytes);
  stream_->Synchronize(stream_->Record());
  return stream_->status();
}

Collective::Ticket StagedCollective::Start(const BlockView& block, bool gather) {
  const uint64_t shard_bytes = block.shard_elements * BytesOf(block.dtype), bytes = world() * shard_bytes;
  Operation operation{.block = block, .gather = gather, .staging = {}, .at_host = 0, .started = {}};
  Result<RegisteredHost> staging = TakeStaging(bytes);
  operation.started = staging.status();
  if (staging.ok()) {
    operation.staging = std::move(staging).value();
    operation.started = gather ? Copy(operation, /*out=*/true, rank() * shard_bytes, shard_bytes) : Copy(operation, /*out=*/true, 0, bytes);
  }
  if (operation.started.ok()) {
    const BlockView view{operation.staging.data(), block.shard_elements, block.dtype};
    operation.at_host = gather ? host_->StartAllGather(view) : host_->StartReduceScatter(view);
  }
  in_flight_.emplace(++last_, std::move(operation));
  return last_;
}

bool StagedCollective::Test(Ticket ticket) {
  const auto found = in_flight_.find(ticket);
  TP_CHECK(found != in_flight_.end(), "a ticket that this group gave out and that was not waited for");
  return !found->second.started.ok() || host_->Test(found->second.at_host);
}

Status StagedCollective::Wait(Ticket ticket) {
  const auto found = in_flight_.find(ticket);
  TP_CHECK(found != in_flight_.end(), "each ticket is waited for once");
  Operation operation = std::move(found->second);
  in_flight_.erase(found);
  TP_RETURN_IF_ERROR(operation.started);
  TP_RETURN_IF_ERROR(host_->Wait(operation.at_host));
  const uint64_t shard_bytes = operation.block.shard_elements * BytesOf(operation.block.dtype);
  const uint64_t own = rank() * shard_bytes, end = world() * shard_bytes;
  if (operation.gather) {
    // Its own shard is there.
    TP_RETURN_IF_ERROR(Copy(operation, /*out=*/false, 0, own));
    TP_RETURN_IF_ERROR(Copy(operation, /*out=*/false, own + shard_bytes, end - own - shard_bytes));
  } else {
    TP_RETURN_IF_ERROR(Copy(operation, /*out=*/false, own, shard_bytes));
  }
  free_[operation.staging.bytes()].push_back(std::move(operation.staging));
  return {};
}

}  // namespace tidepool::trainer
