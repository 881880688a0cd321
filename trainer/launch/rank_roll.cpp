#include "trainer/launch/rank_roll.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace tidepool::trainer {
namespace {

constexpr uint64_t kMagic = 0x6C6C'6F72'2D70'7432;  // "2tp-roll"
constexpr uint32_t kVersion = 1;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint64_t));

// At the start of the memory; one word per rank follows. Another layout needs another version.
struct Header {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t ranks = 0;
};
static_assert(sizeof(Header) == 2 * sizeof(uint64_t));

size_t RollBytesOf(uint32_t ranks) {
  return sizeof(Header) + ranks * sizeof(Word);
}

Word* WordOf(void* begin, uint32_t rank) {
  return reinterpret_cast<Word*>(static_cast<std::byte*>(begin) + sizeof(Header)) + rank;
}

// A word from its lowest bit: 2 bits of state, 8 of exit code, 22 of pid (the maximum on Linux), 32
// of life.
constexpr uint64_t kStateMask = 3, kCodeMask = 0xFF, kPidMask = 0x3F'FFFF;
constexpr int kCodeAt = 2, kPidAt = 10, kLifeAt = 32;

uint64_t Encode(const RollEntry& entry) {
  return static_cast<uint64_t>(entry.state) |
         (static_cast<uint64_t>(entry.exit_code) & kCodeMask) << kCodeAt |
         (static_cast<uint64_t>(entry.pid) & kPidMask) << kPidAt |
         static_cast<uint64_t>(entry.life) << kLifeAt;
}

RollEntry Decode(uint64_t word) {
  RollEntry entry;
  entry.life = static_cast<uint32_t>(word >> kLifeAt);
  switch (word & kStateMask) {
    case static_cast<uint64_t>(RollEntry::State::kComing):
      entry.pid = static_cast<pid_t>(word >> kPidAt & kPidMask);
      if (entry.pid > 0) entry.state = RollEntry::State::kComing;
      break;

    case static_cast<uint64_t>(RollEntry::State::kEnded):
      entry.exit_code = static_cast<int>(word >> kCodeAt & kCodeMask);
      entry.state = RollEntry::State::kEnded;
      break;
    default: break;
  }
  return entry;
}

Status NoMemory(const char* call) {
  return Status(ErrorId::kInternal, std::string("no memory for the roll of ranks: ") + call + ": " +
                                        std::strerror(errno));
}

Status NoRoll(const std::string& path, const std::string& why) {
  return Status(ErrorId::kFileUnreadable, "the launcher's roll of ranks cannot be used")
      .Where(path)
      .Why(why);
}

}  // namespace

RollMapping::RollMapping(RollMapping&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

RollMapping& RollMapping::operator=(RollMapping&& other) noexcept {
  std::swap(begin_, other.begin_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

RollMapping::~RollMapping() {
  if (begin_ != nullptr) munmap(begin_, bytes_);
}

Result<RankRoll> RankRoll::Make(uint32_t ranks) {
  UniqueFd fd(memfd_create("tidepool-roll", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return NoMemory("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(RollBytesOf(ranks))) != 0)
    return NoMemory("ftruncate");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return NoMemory("sealing");
  void* begin = mmap(nullptr, RollBytesOf(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (begin == MAP_FAILED) return NoMemory("mmap");
  const Header header{.ranks = ranks};
  std::memcpy(begin, &header, sizeof header);
  return RankRoll(std::move(fd), RollMapping(begin, RollBytesOf(ranks)));
}

std::string RankRoll::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_.get());
}

RollEntry RankRoll::Read(uint32_t rank) const {
  return Decode(WordOf(mapping_.begin(), rank)->load(std::memory_order_relaxed));
}

void RankRoll::Store(uint32_t rank, const RollEntry& entry) {
  WordOf(mapping_.begin(), rank)->store(Encode(entry), std::memory_order_release);
}

void RankRoll::NoteStart(uint32_t rank, pid_t pid) {
  Store(rank, {.state = RollEntry::State::kComing, .life = Read(rank).life + 1, .pid = pid});
}

void RankRoll::NoteDeath(uint32_t rank) {
  Store(rank, {.life = Read(rank).life});
}

void RankRoll::NoteEnd(uint32_t rank, int exit_code) {
  Store(rank, {.state = RollEntry::State::kEnded, .life = Read(rank).life, .exit_code = exit_code});
}

Result<RankRollView> RankRollView::Open(const std::string& path, uint32_t ranks) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return NoRoll(path, std::strerror(errno));
  // A file that could shrink would end its readers by a signal.
  if (const int seals = fcntl(fd.get(), F_GET_SEALS); seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return NoRoll(path, "it is not sealed");
  }
  struct stat seen {};
  if (fstat(fd.get(), &seen) != 0 || static_cast<uint64_t>(seen.st_size) != RollBytesOf(ranks)) {
    return NoRoll(path, "it has another size than one of " + std::to_string(ranks) + " ranks");
  }

  void* begin = mmap(nullptr, RollBytesOf(ranks), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (begin == MAP_FAILED) return NoRoll(path, std::strerror(errno));
  RollMapping mapping(begin, RollBytesOf(ranks));
  Header header;
  std::memcpy(&header, begin, sizeof header);
  if (header.magic != kMagic) return NoRoll(path, "it is no roll");
  if (header.version != kVersion)
    return NoRoll(path, "it is of version " + std::to_string(header.version));
  if (header.ranks != ranks)
    return NoRoll(path, "it is of " + std::to_string(header.ranks) + " ranks");
  return RankRollView(std::move(mapping));
}

RollEntry RankRollView::Read(uint32_t rank) const {
  return Decode(WordOf(mapping_.begin(), rank)->load(std::memory_order_acquire));
}

bool ProcessLives(pid_t pid) {
  const UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  // If the system does not tell, trusts the launcher.
  if (!fd.valid()) return errno != ESRCH;
  pollfd polled{.fd = fd.get(), .events = POLLIN, .revents = 0};
  return poll(&polled, 1, 0) == 0;
}

}  // namespace tidepool::trainer
