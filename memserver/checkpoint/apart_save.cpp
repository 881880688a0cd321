#include "memserver/checkpoint/apart_save.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/planted.h"
#include "base/unique_fd.h"
#include "memserver/checkpoint/weights_file.h"

namespace tidepool::memserver {

namespace {

constexpr int kLookMs = 100;  // poll interval of the stop mark and the time

enum class Word : char {
  kReady = 'u',
  kReadyInOneTable = 's',
  kRead = 'r',
  kAnswered = 'a',
  kDone = 'd'
};

// State shared by both threads. Each word over the channel passes the turn, and with it everything
// below, to the other side.
struct Shared {
  SaveRequest request;  // its tensors are read by asking
  SaveLimits limits;
  std::atomic<bool> stop{false};
  int other_end = -1;  // of the channel, in the saving thread's table
  // A question of the saving thread, and the answer.
  size_t tensor = 0;
  uint64_t first = 0;
  std::span<float> values;
  Status status;
  std::atomic<uint64_t> turns{0};  // orders the above; the kernel's sockets do so too
};

bool Say(Shared* shared, int channel, Word word) {
  shared->turns.fetch_add(1, std::memory_order_acq_rel);
  return send(channel, &word, sizeof word, MSG_NOSIGNAL) == sizeof word;
}

// False if the other side is gone.
bool Hear(Shared* shared, int channel, Word* word) {
  ssize_t received = 0;
  do {
    received = recv(channel, word, sizeof *word, 0);
  } while (received < 0 && errno == EINTR);
  shared->turns.fetch_add(1, std::memory_order_acq_rel);
  return received == sizeof *word;
}

bool SendDescriptor(int channel, int fd) {
  std::byte word{};
  iovec part{&word, sizeof word};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};

  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();

  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(channel, &message, MSG_NOSIGNAL) == sizeof word;
}

UniqueFd ReceiveDescriptor(int channel) {
  std::byte word{};
  iovec part{&word, sizeof word};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};

  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_LEN(sizeof(int));

  if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) != sizeof word) return {};
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return UniqueFd(fd);
}

// Gives this thread a descriptor table of its own, with the standard descriptors and `fd`.
bool KeepOnly(int fd) {
#ifdef __SANITIZE_THREAD__
  static_cast<void>(fd);
  return false;  // this sanitizer confuses equal numbers in two tables
#else
  const auto kept = static_cast<unsigned>(fd);
  constexpr unsigned kFirst = STDERR_FILENO + 1;
  if (close_range(kept + 1, ~0U, CLOSE_RANGE_UNSHARE) != 0) return false;
  return kept <= kFirst || close_range(kFirst, kept - 1, 0) == 0;
#endif
}

// On the saving thread: the other thread reads, because its descriptors and devices are not in this
// table, and planes in the pool may belong to another job by the time that this thread returns from
// the kernel.
Status AskFor(Shared* shared, int channel, size_t tensor, uint64_t first, std::span<float> values) {
  shared->tensor = tensor;
  shared->first = first;
  shared->values = values;
  Word word{};
  if (Say(shared, channel, Word::kRead) && Hear(shared, channel, &word) && word == Word::kAnswered)
    return shared->status;
  return Status(ErrorId::kSaveFailed, "the save was given up");
}

void SaveOn(const std::shared_ptr<Shared>& shared) {
  pthread_setname_np(pthread_self(), "tp-save");
  const int channel_fd = shared->other_end;
  // In a sandbox that does not know the call, the thread stays in the shared table.
  const bool own_table = !TP_PLANTED("checkpoint.table_shared") && KeepOnly(channel_fd);
  if (!Say(shared.get(), channel_fd, own_table ? Word::kReady : Word::kReadyInOneTable)) return;
  shared->request.directory = ReceiveDescriptor(channel_fd);
  shared->status = WriteWeightsFile(shared->request, shared->limits);
  // The client may remove the directory as soon as it has the result.
  shared->request.directory.Reset();
  shared->request.lane.reset();
  Say(shared.get(), channel_fd, Word::kDone);
  if (own_table) close(channel_fd);
}

Status NoThread(const char* what) {
  return Status(ErrorId::kSaveFailed, std::string("memserver has no ") + what + " for a save")
      .Why(std::strerror(errno));
}

class SaveInWork {
 public:
  SaveInWork(SaveRequest request, const ApartSaveLimits& limits)
      : limits_(limits),
        name_(request.name),
        directory_(std::move(request.directory)),
        shared_(std::make_shared<Shared>()) {
    shared_->request = std::move(request);
    shared_->limits = {.clock = limits.clock,
                       .deadline_ns = limits.clock->NowNs() + limits.timeout_ns,
                       .stop = &shared_->stop};
  }

  Status Run() {
    std::array<int, 2> ends{-1, -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
      return NoThread("descriptor");
    channel_ = UniqueFd(ends[0]);
    other_end_ = UniqueFd(ends[1]);
    shared_->other_end = ends[1];
    LeadReadsHere();

    try {
      std::thread([shared = shared_] { SaveOn(shared); }).detach();
    } catch (const std::system_error&) {
      return NoThread("thread");
    }
    return Serve();
  }

 private:
  void LeadReadsHere() {
    sources_ = shared_->request.tensors;
    for (size_t i = 0; i < sources_.size(); ++i) {
      SavedTensor& tensor = shared_->request.tensors[i];
      if (tensor.data != nullptr && TP_PLANTED("checkpoint.written_from_the_pool")) continue;
      tensor.data = nullptr;
      tensor.read = [shared = shared_.get(), i](uint64_t first, std::span<float> values) {
        return AskFor(shared, shared->other_end, i, first, values);
      };
    }
  }

  Status Serve() {
    const Clock& clock = *limits_.clock;
    int64_t end_ns = clock.NowNs() + limits_.timeout_ns + limits_.grace_ns;
    for (;;) {
      if (!stopping_ && limits_.stop->load(std::memory_order_relaxed)) {
        stopping_ = true;
        shared_->stop.store(true, std::memory_order_relaxed);
        end_ns = std::min(end_ns, clock.NowNs() + limits_.grace_ns);
      }

      pollfd entry{channel_.get(), POLLIN, 0};
      const int ready = poll(&entry, 1, kLookMs);
      if (ready <= 0 && clock.NowNs() >= end_ns) return GiveUp();
      if (ready <= 0) continue;

      Word word{};
      if (!Hear(shared_.get(), channel_.get(), &word)) return NoThread("channel");
      switch (word) {
        // The saving thread has a copy of its own.
        case Word::kReady: other_end_.Reset(); [[fallthrough]];
        case Word::kReadyInOneTable: PassDirectory(); break;
        case Word::kRead: Answer(); break;
        case Word::kDone: return shared_->status;
        case Word::kAnswered: break;
      }
    }
  }

  void PassDirectory() {
    SendDescriptor(channel_.get(), directory_.get());
    directory_.Reset();
  }

  void Answer() {
    shared_->status = ReadValues(sources_[shared_->tensor], shared_->first, shared_->values);
    Say(shared_.get(), channel_.get(), Word::kAnswered);
  }

  // Once the thread returns, it uses only its own data.
  Status GiveUp() {
    shared_->stop.store(true, std::memory_order_relaxed);
    // If the table is shared, the thread may still use its end of the channel, so the number stays
    // taken.
    [[maybe_unused]] const int left = other_end_.Release();
    return Status(ErrorId::kSaveFailed,
                  "saving '" + name_ + "' was given up: the file system has not answered in time")
        .Fix("look at where the directory lies: a server that is gone, a drive that hangs");
  }

  const ApartSaveLimits& limits_;
  const std::string name_;
  UniqueFd directory_;
  std::shared_ptr<Shared> shared_;
  UniqueFd channel_, other_end_;
  std::vector<SavedTensor> sources_;  // the saving thread sees none of them
  bool stopping_ = false;
};

}  // namespace

Status SaveApart(SaveRequest request, const ApartSaveLimits& limits) {
  return SaveInWork(std::move(request), limits).Run();
}

}  // namespace tidepool::memserver
