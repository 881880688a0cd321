#include "tests/fakes/slow_device.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/host/operation_queue.h"

namespace tidepool::memserver {

class SlowDevice::SlowStream final : public device::Stream {
 public:
  explicit SlowStream(SlowDevice* device) : device_(device) { device_->streams_.push_back(this); }
  ~SlowStream() override { std::erase(device_->streams_, this); }

  void Copy(void* dst, const void* src, uint64_t bytes) override {
    copies_.push_back({.dst = static_cast<std::byte*>(dst),
                       .src = static_cast<const std::byte*>(src),
                       .bytes = bytes});
  }
  void Zero(void* dst, uint64_t bytes) override { Copy(dst, nullptr, bytes); }
  // Computed as a whole when as many bytes have moved as it has.
  void Launch(const device::Kernel& kernel, const void* arguments, uint64_t items) override {
    copies_.push_back({.bytes = items * kernel.item_bytes,
                       .call = device::OperationQueue::CallOf(kernel, arguments),
                       .items = items});
  }
  void WaitFlag(const device::Flag*, uint64_t) override {
    TP_CHECK(false, "the server's streams never wait for a trainer");
  }
  void WriteFlag(device::Flag* flag, uint64_t value) override {
    TP_CHECK(!copies_.empty() && copies_.back().marker == 0,
             "the loop writes a flag behind a copy");
    copies_.back().flag = flag;
    copies_.back().value = value;
  }
  Status status() const override { return device_->failure_; }
  Marker Record() override {
    TP_CHECK(!copies_.empty() && copies_.back().marker == 0,
             "the loop records one marker behind its copies");
    return copies_.back().marker = ++last_marker_;
  }
  bool Passed(Marker marker) override { return passed_ >= marker; }
  void WaitMarker(Stream*, Marker) override {
    TP_CHECK(false, "the loop orders nothing by markers");
  }
  bool Progress(uint64_t) override { return false; }
  void Synchronize(Marker) override { TP_CHECK(false, "the loop never waits"); }

  bool busy() const { return !copies_.empty(); }
  void Move(uint64_t bytes) {
    PendingCopy& copy = copies_.front();
    const uint64_t now = std::min(bytes, copy.bytes);
    if (copy.call == nullptr && copy.src == nullptr) {
      std::memset(copy.dst, 0, now);
      copy.dst += now;
    } else if (copy.call == nullptr) {
      if (device_->team_ == nullptr) std::memcpy(copy.dst, copy.src, now);
      if (device_->team_ != nullptr) device_->team_->Copy(copy.dst, copy.src, now, now);
      copy.dst += now;
      copy.src += now;
    }
    copy.bytes -= now;
    if (copy.bytes > 0) return;
    if (copy.call != nullptr) copy.call->kernel->host(copy.call->arguments.data(), 0, copy.items);
    if (copy.flag != nullptr) copy.flag->store(copy.value, std::memory_order_release);
    passed_ = std::max(passed_, copy.marker);
    copies_.pop_front();
  }

 private:
  struct PendingCopy {
    std::byte* dst = nullptr;
    const std::byte* src = nullptr;  // null: zeros
    uint64_t bytes = 0;
    std::unique_ptr<const device::KernelCall> call = nullptr;  // not a copy, but this
    uint64_t items = 0;
    Marker marker = 0;
    device::Flag* flag = nullptr;  // written when it has ended
    uint64_t value = 0;
  };
  SlowDevice* const device_;
  std::deque<PendingCopy> copies_;
  Marker last_marker_ = 0, passed_ = 0;
};

Result<std::unique_ptr<device::Stream>> SlowDevice::OpenStream() {
  return std::unique_ptr<device::Stream>(std::make_unique<SlowStream>(this));
}

Result<std::unique_ptr<device::Registration>> SlowDevice::Register(void*, uint64_t) {
  if (!registers_) return Status(ErrorId::kCudaFailed, "this device registers nothing");
  return std::make_unique<device::Registration>();
}

Result<std::unique_ptr<device::Memory>> SlowDevice::CreateExportable(uint64_t, UniqueFd*) {
  return Status(ErrorId::kInternal, "a slow device makes no memory");
}

Result<std::unique_ptr<device::Memory>> SlowDevice::Import(const UniqueFd&, uint64_t) {
  return Status(ErrorId::kInternal, "a slow device makes no memory");
}

uint32_t SlowDevice::busy() const {
  return static_cast<uint32_t>(std::count_if(
      streams_.begin(), streams_.end(), [](const SlowStream* stream) { return stream->busy(); }));
}

void SlowDevice::Move(uint32_t index, uint64_t bytes) {
  for (SlowStream* stream : streams_) {
    if (!stream->busy()) continue;
    if (index-- == 0) return stream->Move(bytes);
  }
  TP_CHECK(false, "the index names a busy stream");
}

std::unique_ptr<Gpu> GpuOf(SlowDevice* slow, std::span<const std::span<std::byte>> pool,
                           const std::string& root_complex, DoneBy done) {
  class Forward final : public device::Device {
   public:
    explicit Forward(SlowDevice* to) : to_(to) {}
    std::string name() const override { return "cuda:0"; }
    Result<std::unique_ptr<device::Registration>> Register(void* begin, uint64_t bytes) override {
      return to_->Register(begin, bytes);
    }
    Result<std::unique_ptr<device::Stream>> OpenStream() override { return to_->OpenStream(); }
    Status Prepare(const device::Kernel& kernel) override { return to_->Prepare(kernel); }
    Result<std::unique_ptr<device::Memory>> CreateExportable(uint64_t bytes,
                                                             UniqueFd* fd) override {
      return to_->CreateExportable(bytes, fd);
    }
    Result<std::unique_ptr<device::Memory>> Import(const UniqueFd& fd, uint64_t bytes) override {
      return to_->Import(fd, bytes);
    }

   private:
    SlowDevice* const to_;
  };
  device::Gpu facts;
  facts.name = "slow";
  return std::make_unique<Gpu>(
      facts,
      OpenedGpu{
          .device = std::make_unique<Forward>(slow), .form_note = {}, .done = {done, "a test"}},
      pool, root_complex);
}

}  // namespace tidepool::memserver
