// FailPage: what a test and the processes with the fail shim (fail_shim.cpp) share: which call is
// to fail, and how many there were.
//
// A file that the test makes and every such process maps. Plain numbers and atomics only.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace tidepool::testing {

enum class FailCall : uint32_t {
  kMalloc,
  kMmap,
  kMemfdCreate,
  kFtruncate,
  kAddSeals,
  kOpen,
  kAccept,
  kReceive,
  kSend,
  kEventfd,
  kEpollAdd,
  kFutex,
  kPoll,
  kMadvise,
  kThread,
  kSocket,
  kConnect,
  kBind,
  kSocketPair,
  kEpollCreate,
  kSignalFd,
  kPidFd,
  kFork,
  kSpawn,
  kFlock,
  kFopen
};
inline constexpr std::array<const char*, 26> kFailCallNames{
    "malloc",     "mmap",          "memfd_create",   "ftruncate",  "F_ADD_SEALS", "open",
    "accept4",    "recvmsg",       "sendmsg",        "eventfd",    "epoll_add",   "futex",
    "poll",       "madvise",       "pthread_create", "socket",     "connect",     "bind",
    "socketpair", "epoll_create1", "signalfd",       "pidfd_open", "fork",        "posix_spawnp",
    "flock",      "fopen"};
inline constexpr size_t kFailCalls = kFailCallNames.size();
inline constexpr const char* kFailPageVariable = "TIDEPOOL_FAIL_PAGE";

struct FailPage {
  // 1: calls of the keeper count and fail; 0: those of the first other process.
  std::atomic<int32_t> in_keeper{0};
  // Pid of the process whose calls count; the first that fits takes it.
  std::atomic<int32_t> owner{0};
  std::atomic<uint32_t> call{0};
  std::atomic<uint64_t> at{0};  // this call fails, counted from 1; 0: none
  std::atomic<uint32_t> failed{0};
  std::array<std::atomic<uint64_t>, kFailCalls> counts{};
};

}  // namespace tidepool::testing
