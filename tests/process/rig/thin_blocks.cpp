#include "tests/process/rig/thin_blocks.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/units.h"
#include "shm/flag_pages.h"

namespace tidepool::testing {

Result<std::unique_ptr<ThinBlocks>> ThinBlocks::Bring(ThinGpu gpu, uint64_t bytes) {
  auto blocks = std::make_unique<ThinBlocks>();
  blocks->bytes_ = bytes;
  blocks->gpu_ = std::move(gpu);
  device::Device& device = *blocks->gpu_.device;
  const char* room = std::getenv("THIN_GPU_ROOM");
  blocks->ballast_ = std::make_unique<device::Ballast>(
      &device, room == nullptr ? 0 : std::strtoull(room, nullptr, 10));
  blocks->grows_ = std::getenv("THIN_GPU_GROWS") != nullptr;
  TP_RETURN_IF_ERROR(blocks->ballast_->Take());
  TP_ASSIGN_OR_RETURN(blocks->memory_, device.CreateExportable(bytes, &blocks->exported_));
  auto* work = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, RoundUp(bytes, kPageBytes)));
  blocks->work_ = {work, [](std::byte* each) { std::free(each); }};
  TP_ASSIGN_OR_RETURN(auto registered, device.Register(work, RoundUp(bytes, kPageBytes)));
  blocks->registered_.push_back(std::move(registered));
  TP_ASSIGN_OR_RETURN(blocks->stream_, device.OpenStream());
  return blocks;
}

ThinBlocks::~ThinBlocks() {
  Rest();
}

void ThinBlocks::Rest() {
  if (stream_ == nullptr) return;
  if (client_ != nullptr) shm::FlagPages(client_->attachment().flags).PoisonDone();
  stream_->Synchronize(stream_->Record());
  stream_.reset();
  registered_.clear();
}

void ThinBlocks::Grow() {
  for (uint64_t bytes = 64 * kMiB; bytes >= 2 * kMiB; bytes /= 2) {
    for (;;) {
      UniqueFd exported;
      auto memory = gpu_.device->CreateExportable(bytes, &exported);
      if (!memory.ok()) break;
      grown_.push_back(std::move(memory).value());
    }
  }
}

void ThinBlocks::ServerHasEnded() {
  if (client_ == nullptr || !grows_) return;
  // It is free when the process has ended altogether, which is a little later than its connections.
  SteadyClock clock;
  const int64_t end_ns = clock.NowNs() + 10 * kNsPerSecond;
  for (const size_t before = grown_.size(); grown_.size() == before && clock.NowNs() < end_ns;
       clock.SleepNs(kNsPerMs))
    Grow();
}

void ThinBlocks::MakeRoom(bool server_comes) {
  if (server_comes) return ballast_->Free();
  (void)ballast_->Take();
  if (grows_) Grow();
}

std::optional<client::BroughtMemory> ThinBlocks::brought() {
  if (stream_ == nullptr) return std::nullopt;
  client::BroughtMemory brought;
  brought.form = static_cast<uint32_t>(gpu_.form);
  brought.uuid = gpu_.uuid;
  brought.descriptor = exported_.get();
  brought.data = memory_->data();
  brought.bytes = memory_->bytes();
  brought.make_room = [this](bool server_comes) { MakeRoom(server_comes); };
  return brought;
}

Status ThinBlocks::Use(client::MemClient* client) {
  client_ = client;
  rcache_ = client->attachment().rcache;
  if (stream_ == nullptr) return Status();
  const client::Attachment& attachment = client->attachment();
  TP_ASSIGN_OR_RETURN(auto registered,
                      gpu_.device->Register(attachment.flags, attachment.flags_bytes));
  registered_.push_back(std::move(registered));
  return Status();
}

Status ThinBlocks::AwaitMarker(device::Stream::Marker marker) {
  SteadyClock clock;
  while (!stream_->Passed(marker)) {
    TP_RETURN_IF_ERROR(stream_->status());
    TP_RETURN_IF_ERROR(client_->Check());
    if (!stream_->Progress(kMiB)) clock.SleepNs(20'000);
  }
  return Status();
}

Status ThinBlocks::Await(client::Ticket fetch, const client::Range& range, uint64_t bytes) {
  if (stream_ != nullptr) {
    const client::TicketFlags flags = client_->FlagsOf(fetch);
    if (const auto last = last_submitted_.find(range.rcache_offset);
        last != last_submitted_.end()) {
      stream_->WaitFlag(last->second.done, last->second.value);
      last_submitted_.erase(last);
    }
    stream_->WriteFlag(flags.ready, flags.value);
    stream_->WaitFlag(flags.done, flags.value);
    stream_->Copy(At(range), memory_->data() + range.rcache_offset, bytes);
    TP_RETURN_IF_ERROR(AwaitMarker(stream_->Record()));
  }
  return client_->Wait(fetch).status();
}

Status ThinBlocks::Push(const client::Range& range, uint64_t bytes, bool wait) {
  if (stream_ == nullptr) return Status();
  stream_->Copy(memory_->data() + range.rcache_offset, At(range), bytes);
  return wait ? AwaitMarker(stream_->Record()) : Status();
}

std::function<Status(uint64_t, std::span<const std::byte>)> ThinBlocks::Copier() {
  if (stream_ == nullptr) return nullptr;
  return [this](uint64_t offset, std::span<const std::byte> bytes) {
    std::memcpy(work_.get() + offset, bytes.data(), bytes.size());
    return Push({.rcache_offset = offset}, bytes.size(), true);
  };
}

void ThinBlocks::Submitted(client::Ticket gradient, const client::Range& range) {
  if (stream_ == nullptr) return;
  const client::TicketFlags flags = client_->FlagsOf(gradient);
  stream_->WriteFlag(flags.ready, flags.value);
  last_submitted_[range.rcache_offset] = flags;
}

}  // namespace tidepool::testing
