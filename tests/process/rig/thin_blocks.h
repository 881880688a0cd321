// ThinBlocks: where a thin rank computes: in its rCache on the host, or, when that is memory of a
// GPU, in host memory beside it, with copies on a stream that flags order with the server's.
//
// One thread. The offsets of a Range are those of the rCache either way.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "client/client_options.h"
#include "client/mem_client.h"
#include "device/ballast.h"
#include "device/device.h"
#include "device/gpu_list.h"

namespace tidepool::testing {

struct ThinGpu {
  std::unique_ptr<device::Device> device;
  device::GpuUuid uuid = {};
  device::ExportForm form = device::ExportForm::kVmm;
};

class ThinBlocks {
 public:
  // On the host.
  ThinBlocks() = default;
  // On a GPU. THIN_GPU_ROOM: so many bytes are held for the server's context; THIN_GPU_GROWS: the
  // rest is taken whenever there is some. Errors: those of the device.
  static Result<std::unique_ptr<ThinBlocks>> Bring(ThinGpu gpu, uint64_t bytes);
  ~ThinBlocks();
  ThinBlocks(const ThinBlocks&) = delete;
  ThinBlocks& operator=(const ThinBlocks&) = delete;

  // What the client is to be told; none on the host.
  std::optional<client::BroughtMemory> brought();
  // Before anything else; `client` outlives what follows. Errors: those of the device.
  Status Use(client::MemClient* client);

  // The server has ended: what it had is taken, as LibTorch may, where THIN_GPU_GROWS says so.
  void ServerHasEnded();

  // Before the client goes: nothing is on the stream any more.
  void Rest();

  std::byte* At(const client::Range& range) const {
    return (stream_ != nullptr ? work_.get() : rcache_) + range.rcache_offset;
  }
  // Waits for a fetch into the range; then its first `bytes` are at At. Errors: those of Wait.
  Status Await(client::Ticket fetch, const client::Range& range, uint64_t bytes);
  // What was computed at At goes to where the server takes it from: before weights are put (waits),
  // or a gradient is submitted.
  Status Push(const client::Range& range, uint64_t bytes, bool wait);
  // What ProvideFrozen copies with; empty on the host.
  std::function<Status(uint64_t offset, std::span<const std::byte> bytes)> Copier();
  // A gradient from this range was submitted.
  void Submitted(client::Ticket gradient, const client::Range& range);

 private:
  Status AwaitMarker(device::Stream::Marker marker);
  void Grow();
  void MakeRoom(bool server_comes);

  ThinGpu gpu_;
  std::unique_ptr<device::Ballast> ballast_;
  std::vector<std::unique_ptr<device::Memory>> grown_;
  bool grows_ = false;
  uint64_t bytes_ = 0;
  std::unique_ptr<std::byte, void (*)(std::byte*)> work_{nullptr, [](std::byte*) {}};
  std::unique_ptr<device::Memory> memory_;
  UniqueFd exported_;
  client::MemClient* client_ = nullptr;
  std::byte* rcache_ = nullptr;
  std::vector<std::unique_ptr<device::Registration>> registered_;
  std::unique_ptr<device::Stream> stream_;  // null on the host
  // By offset: what must have been copied before the next fetch into it.
  std::map<uint64_t, client::TicketFlags> last_submitted_;
};

}  // namespace tidepool::testing
