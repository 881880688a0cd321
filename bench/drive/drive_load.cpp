#include "bench/drive/drive_load.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "bench/harness/row.h"
#include "nvme/io_queue.h"
#include "nvme/page_memory.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kBlock = kMiB;
constexpr uint32_t kBlocks = 64;  // of the file, each with its own memory
constexpr uint64_t kBurst = 8;    // blocks of backlog processed at once
constexpr int kLookMilliseconds = 1;

struct Wish {
  std::atomic<uint64_t> read, written;  // bytes per second
};

Wish* MapWish(const std::string& directory) {
  const UniqueFd file(open((directory + "/load").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid() || ftruncate(file.get(), kPageBytes) != 0)
    Die("no file can be made in " + directory);
  void* const page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (page == MAP_FAILED) Die("a page cannot be mapped");
  return static_cast<Wish*>(page);
}

class Load {
 public:
  Load(const std::string& directory, const Wish* wish)
      : wish_(wish),
        file_(open((directory + "/bystander").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT,
                   0600)),
        memory_(OrDie(nvme::PageMemory::Map(kBlocks * kBlock))) {
    if (!file_.valid()) Die("no file can be made in " + directory);

    for (uint32_t block = 0; block < kBlocks; ++block) {
      if (pwrite(file_.get(), Memory(block), kBlock, static_cast<off_t>(block * kBlock)) !=
          static_cast<ssize_t>(kBlock))
        Die("the drive fails");
      free_.push_back(block);
    }

    nvme::IoQueueOptions options;
    options.depth = kBlocks;
    options.files = {file_.get()};
    options.buffers = {memory_.bytes()};
    queue_ = nvme::OpenIoQueue(options).queue;
  }

  void Turn() {
    const int64_t now = clock_.NowNs();
    const int64_t passed = std::min(now - last_ns_, kNsPerSecond);
    last_ns_ = now;

    Begin(nvme::IoKind::kRead, wish_->read.load(std::memory_order_relaxed), passed, &credits_[0]);
    Begin(nvme::IoKind::kWrite, wish_->written.load(std::memory_order_relaxed), passed,
          &credits_[1]);
    queue_->Flush();

    pollfd ended{queue_->event_fd(), POLLIN, 0};
    poll(&ended, 1, kLookMilliseconds);
    queue_->ClearEvent();

    while (auto done = queue_->Reap()) {
      if (done->result.Read() != static_cast<int32_t>(kBlock)) Die("the drive fails");
      free_.push_back(static_cast<uint32_t>(done->tag));
    }
  }

 private:
  std::byte* Memory(uint32_t block) const { return memory_.bytes().data() + block * kBlock; }
  void Begin(nvme::IoKind kind, uint64_t rate, int64_t passed_ns, double* credit) {
    *credit = std::min(
        *credit + static_cast<double>(rate) * static_cast<double>(passed_ns) / kNsPerSecond,
        double{kBurst * kBlock});

    for (; *credit >= kBlock && !free_.empty(); *credit -= kBlock) {
      const uint32_t block = free_.front();
      free_.erase(free_.begin());
      queue_->Submit({.kind = kind,
                      .file = 0,
                      .offset = block * kBlock,
                      .data = Memory(block),
                      .bytes = kBlock,
                      .tag = block});
    }
  }

  SteadyClock clock_;
  const Wish* const wish_;
  const UniqueFd file_;
  nvme::PageMemory memory_;
  std::unique_ptr<nvme::IoQueue> queue_;
  std::vector<uint32_t> free_;  // free blocks, least recently used first
  std::array<double, 2> credits_{};
  int64_t last_ns_ = clock_.NowNs();
};

}  // namespace

void WishDriveLoad(const std::string& directory, const DriveLoad& load) {
  Wish* const wish = MapWish(directory);
  wish->read = load.read;
  wish->written = load.written;
  munmap(wish, kPageBytes);
}

void RunDriveLoad(const std::string& directory) {
  Load load(directory, MapWish(directory));
  for (;;) load.Turn();
}

}  // namespace tidepool::bench
