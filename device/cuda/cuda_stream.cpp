#include "device/cuda/cuda_stream.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "device/cuda/cuda_host_ranges.h"

namespace tidepool::device {
namespace {

CudaAddress Raw(const void* at) {
  return reinterpret_cast<CudaAddress>(at);
}

// One end of a copy: how many bytes from there on the driver copies in one piece, and whether it
// knows the memory at all.
struct End {
  uint64_t bytes = UINT64_MAX;
  bool known = true;
};

End EndAt(const CudaDriver& cuda, const void* at) {
  if (const auto place = CudaHostRanges::OfProcess().Find(at)) return {.bytes = place->bytes_after};
  // Memory of a GPU, or host memory that other code registered (LibTorch's pinned tensors).
  unsigned type = 0;
  return {.known = cuda.pointer_attribute(&type, kCudaPointerMemoryType, Raw(at)) == kCudaSuccess &&
                   type != 0};
}

}  // namespace

Result<std::unique_ptr<Stream>> CudaStream::Open(std::shared_ptr<CudaContext> context) {
  const CudaDriver& cuda = context->cuda();
  TP_RETURN_IF_ERROR(context->MakeCurrent());
  CUstream_st* native = nullptr;
  TP_RETURN_IF_ERROR(
      cuda.Try("opening a stream", cuda.stream_create, &native, kCudaStreamNonBlocking));
  return std::unique_ptr<Stream>(std::make_unique<CudaStream>(std::move(context), native, true));
}

CudaStream::~CudaStream() {
  const CudaDriver& cuda = context_->cuda();
  (void)context_->MakeCurrent();
  for (CUevent_st* event : marks_) (void)cuda.event_destroy(event);
  for (CUevent_st* event : spare_) (void)cuda.event_destroy(event);
  if (owned_) (void)cuda.stream_destroy(native_);
}

bool CudaStream::Begin() {
  return status_.ok() && Latch(context_->MakeCurrent());
}

bool CudaStream::Latch(Status status) {
  if (status_.ok()) status_ = std::move(status);
  return status_.ok();
}

void CudaStream::Copy(void* dst, const void* src, uint64_t bytes) {
  if (bytes == 0 || !Begin()) return;
  const CudaDriver& cuda = context_->cuda();
  bool counted = false;
  for (uint64_t done = 0; done < bytes;) {
    std::byte* const to = static_cast<std::byte*>(dst) + done;
    const std::byte* const from = static_cast<const std::byte*>(src) + done;
    const End there = EndAt(cuda, to), here = EndAt(cuda, from);

    if (!counted && !(there.known && here.known)) {
      counted = true;
      context_->unregistered_copies.fetch_add(1, std::memory_order_relaxed);
    }

    const uint64_t piece = std::min({bytes - done, there.bytes, here.bytes});
    const CudaCode code = cuda.copy(Raw(to), Raw(from), piece, native_);
    if (code != kCudaSuccess &&
        !Latch(cuda.Error("a copy of " + FormatBytes(bytes), cuda.copy.name, code)))
      return;
    done += piece;
  }
}

void CudaStream::Zero(void* dst, uint64_t bytes) {
  if (bytes == 0 || !Begin()) return;
  const CudaDriver& cuda = context_->cuda();
  const auto place = CudaHostRanges::OfProcess().Find(dst);
  const CudaCode code = cuda.fill(place ? place->address : Raw(dst), 0, bytes, native_);
  if (code != kCudaSuccess)
    Latch(cuda.Error("zeroing " + FormatBytes(bytes), cuda.fill.name, code));
}

void CudaStream::Launch(const Kernel& kernel, const void* arguments, uint64_t items) {
  if (items == 0 || !Begin()) return;
  const CudaDriver& cuda = context_->cuda();
  auto found = context_->KernelOf(kernel);
  if (!found.ok()) {
    Latch(found.status());
    return;
  }

  const uint64_t wanted = DivideUp(items, uint64_t{kernel.threads} * kernel.items_a_thread);
  const CudaLaunch launch = {
      .blocks = {static_cast<unsigned>(std::min(wanted, found->blocks)), 1, 1},
      .threads = {kernel.threads, 1, 1},
      .stream = native_};

  void* parameters[] = {const_cast<void*>(arguments)};  // the driver copies them
  const CudaCode code = cuda.launch(&launch, found->function, parameters, nullptr);
  if (code != kCudaSuccess)
    Latch(cuda.Error("launching " + std::string(kernel.name), cuda.launch.name, code));
}

CudaAddress CudaStream::AddressOf(const Flag* flag) {
  if (const auto place = CudaHostRanges::OfProcess().Find(flag)) return place->address;
  Latch(Status(ErrorId::kCudaFailed,
               "a stream was given a flag that lies in no registered host memory")
            .Fix("register its page first"));
  return 0;
}

void CudaStream::WaitFlag(const Flag* flag, uint64_t value) {
  if (!Begin()) return;
  const CudaDriver& cuda = context_->cuda();
  const CudaAddress address = AddressOf(flag);
  if (address != 0)
    Latch(cuda.Try("waiting for a flag", cuda.stream_wait, native_, address, value, kCudaWaitGeq));
}

void CudaStream::WriteFlag(Flag* flag, uint64_t value) {
  if (!Begin()) return;
  const CudaDriver& cuda = context_->cuda();
  const CudaAddress address = AddressOf(flag);
  if (address != 0)
    Latch(
        cuda.Try("writing a flag", cuda.stream_write, native_, address, value, kCudaWriteDefault));
}

CUevent_st* CudaStream::NewEvent() {
  if (!spare_.empty()) {
    CUevent_st* const event = spare_.back();
    spare_.pop_back();
    return event;
  }
  const CudaDriver& cuda = context_->cuda();
  CUevent_st* event = nullptr;
  Latch(cuda.Try("making an event", cuda.event_create, &event,
                 kCudaEventDisableTiming | kCudaEventBlockingSync));
  return event;
}

Stream::Marker CudaStream::Record() {
  ++last_;
  if (!Begin()) return last_;
  CUevent_st* const event = NewEvent();
  if (event == nullptr) return last_;

  const CudaDriver& cuda = context_->cuda();
  const bool recorded = Latch(cuda.Try("recording a marker", cuda.event_record, event, native_));
  if (recorded) {
    marks_.push_back(event);
  } else {
    spare_.push_back(event);
  }
  return last_;
}

void CudaStream::Pass(Marker marker) {
  for (; passed_ < marker; ++passed_) {
    spare_.push_back(marks_.front());
    marks_.pop_front();
  }
}

bool CudaStream::Passed(Marker marker) {
  if (marker <= passed_) return true;
  if (marks_.empty() || !Begin()) return false;
  const CudaDriver& cuda = context_->cuda();

  while (!marks_.empty()) {
    const CudaCode code = cuda.event_query(marks_.front());
    if (code == kCudaNotReady) break;
    if (code != kCudaSuccess && !Latch(cuda.Error("work of a stream", cuda.event_query.name, code)))
      break;
    Pass(passed_ + 1);
  }
  return marker <= passed_;
}

void CudaStream::WaitMarker(Stream* other, Marker marker) {
  auto* const from = dynamic_cast<CudaStream*>(other);
  TP_CHECK(from != nullptr && marker <= from->last_,
           "a stream waits for a marker that another one of its device has recorded");
  if (from == this || from->Passed(marker) || !Begin() || !Latch(from->status())) return;
  const CudaDriver& cuda = context_->cuda();
  CUevent_st* const event = from->marks_[marker - from->passed_ - 1];
  Latch(cuda.Try("waiting for another stream", cuda.stream_wait_event, native_, event, 0u));
}

void CudaStream::Synchronize(Marker marker) {
  TP_CHECK(marker <= last_, "Synchronize with a marker that was never recorded");
  if (marker <= passed_) return;
  const CudaDriver& cuda = context_->cuda();
  if (Begin() &&
      Latch(cuda.Try("work of a stream", cuda.event_synchronize, marks_[marker - passed_ - 1])))
    return Pass(marker);
  (void)context_->MakeCurrent();
  // A failure can only be an error of the stream, which is kept already.
  (void)cuda.stream_synchronize(native_);
}

}  // namespace tidepool::device
