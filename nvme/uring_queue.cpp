#include "nvme/uring_queue.h"

#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/system/last_words.h"

namespace tidepool::nvme {

struct UringQueue::Ring {
  io_uring ring{};
  const char* mode = "";
};

namespace {

// From the best to the plainest; older kernels support fewer flags. A ring with the
// single-submitter flag starts disabled, because the thread that enables it becomes the submitter.
struct Mode {
  unsigned flags;
  const char* name;
};
constexpr std::array<Mode, 3> kModes{{
    {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
         IORING_SETUP_R_DISABLED,
     "deferred completions"},
    {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, "cooperative completions"},
    {0, "plain"},
}};

}  // namespace

Result<std::unique_ptr<UringQueue>> UringQueue::Open(const IoQueueOptions& options) {
  auto ring = std::make_unique<Ring>();
  int error = 0;
  for (const Mode& mode : kModes) {
    error = io_uring_queue_init(options.depth, &ring->ring, mode.flags);
    ring->mode = mode.name;
    if (error != -EINVAL) break;
  }
  if (error != 0) {
    return Status(ErrorId::kNvmeRingDenied,
                  std::string("the system gives no io_uring: ") + std::strerror(-error));
  }
  // A forked process would keep the ring, and with it the locks of its files, beyond this one.
  io_uring_ring_dontfork(&ring->ring);
  std::unique_ptr<UringQueue> queue(new UringQueue(options, std::move(ring)));
  queue->Register(options);
  return queue;
}

UringQueue::UringQueue(const IoQueueOptions& options, std::unique_ptr<Ring> ring)
    : depth_(options.depth),
      files_(options.files),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      ring_(std::move(ring)) {
  if (!event_.valid()) DieOutOf("descriptor for an event");
}

UringQueue::~UringQueue() {
  io_uring_queue_exit(&ring_->ring);
}

void UringQueue::Register(const IoQueueOptions& options) {
  files_registered_ = io_uring_register_files(&ring_->ring, files_.data(),
                                              static_cast<unsigned>(files_.size())) == 0;
  if (!files_registered_) lacks_ = "files cannot be registered";

  std::vector<iovec> memory;
  for (const auto& buffer : options.buffers) memory.push_back({buffer.data(), buffer.size()});
  if (!memory.empty()) {
    const int error = io_uring_register_buffers(&ring_->ring, memory.data(),
                                                static_cast<unsigned>(memory.size()));
    if (error == 0) buffers_ = options.buffers;
    if (error != 0) {
      lacks_ = std::string("memory cannot be registered: ") + std::strerror(-error) +
               (error == -ENOMEM ? " (see `ulimit -l`)" : "");
    }
  }

  if (io_uring_register_eventfd(&ring_->ring, event_.get()) != 0) DieOutOf("event of an io_uring");
}

std::string UringQueue::Name() const {
  return std::string("io_uring, ") + ring_->mode +
         (buffers_.empty() ? "" : ", registered buffers") +
         (files_registered_ ? ", registered files" : "");
}

int UringQueue::BufferOf(const std::byte* data, uint32_t bytes) const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (data >= buffers_[i].data() && data + bytes <= buffers_[i].data() + buffers_[i].size())
      return static_cast<int>(i);
  }
  return -1;
}

void UringQueue::Submit(const IoRequest& request) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring);
  TP_CHECK(sqe != nullptr, "no more requests are out than the ring has places");
  const int buffer = BufferOf(request.data, request.bytes);
  const int file = files_registered_ ? static_cast<int>(request.file) : files_[request.file];
  if (request.kind == IoKind::kSync) {
    io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);
  } else if (request.kind == IoKind::kRead) {
    // The kernel need not pin registered memory.
    if (buffer >= 0) {
      io_uring_prep_read_fixed(sqe, file, request.data, request.bytes, request.offset, buffer);
    } else {
      io_uring_prep_read(sqe, file, request.data, request.bytes, request.offset);
    }
  } else if (buffer >= 0) {
    io_uring_prep_write_fixed(sqe, file, request.data, request.bytes, request.offset, buffer);
  } else {
    io_uring_prep_write(sqe, file, request.data, request.bytes, request.offset);
  }

  if (files_registered_) sqe->flags |= IOSQE_FIXED_FILE;
  sqe->user_data = request.tag;
}

void UringQueue::Flush() {
  if (!enabled_ && (ring_->ring.flags & IORING_SETUP_R_DISABLED) != 0) {
    // liburing 2.3 declares a function for this, and does not export it.
    const auto enabled = syscall(__NR_io_uring_register, ring_->ring.ring_fd,
                                 IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
    TP_CHECK(enabled == 0, "a ring that was made disabled can be enabled");
  }
  enabled_ = true;
  if (io_uring_sq_ready(&ring_->ring) == 0) return;
  // Requests that the system does not accept now stay in the ring for the next call, which comes
  // soon: the event reports work.
  const int taken = io_uring_submit(&ring_->ring);
  TP_CHECK(taken >= 0 || taken == -EAGAIN || taken == -EBUSY || taken == -EINTR || taken == -ENOMEM,
           "the ring takes requests");
  if (io_uring_sq_ready(&ring_->ring) > 0) (void)eventfd_write(event_.get(), 1);
}

std::optional<IoDone> UringQueue::Reap() {
  if (!enabled_) return std::nullopt;
  io_uring_cqe* cqe = nullptr;
  if (io_uring_peek_cqe(&ring_->ring, &cqe) != 0 || cqe == nullptr) return std::nullopt;
  const uint64_t tag = cqe->user_data;
  const int32_t value = cqe->res;
  io_uring_cqe_seen(&ring_->ring, cqe);
  return std::optional<IoDone>(IoDone{tag, IoResult(value)});
}

void UringQueue::ClearEvent() {
  eventfd_t count = 0;
  (void)eventfd_read(event_.get(), &count);
}

}  // namespace tidepool::nvme
