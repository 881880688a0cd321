// FutexEcho and EventEcho: a sleeper that is woken and answers with a word: the least cost of a
// wake-up, by a futex, and by an eventfd with epoll, which can wake a thread for many reasons, as
// in the serve loop.
//
// One thread calls RoundTrip and spins for the answer, so that each round trip has one wake-up.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace tidepool::bench {

// Where the sleeper runs: in a separate process, like memserver, or in this one.
enum class EchoHome { kThread, kProcess };

class FutexEcho {
 public:
  // `cpus`: where it may run; empty: chosen by the system.
  explicit FutexEcho(EchoHome home = EchoHome::kThread, std::vector<int> cpus = {});
  ~FutexEcho();
  FutexEcho(const FutexEcho&) = delete;
  FutexEcho& operator=(const FutexEcho&) = delete;

  void RoundTrip();

 private:
  struct Words {  // in memory shared with a forked process
    alignas(64) std::atomic<uint32_t> word{0};
    alignas(64) std::atomic<uint32_t> answer{0};
    std::atomic<bool> stopping{false};
  };
  void Ring();
  void Echo();

  const std::vector<int> cpus_;
  Words* words_ = nullptr;
  uint32_t rung_ = 0;
  pid_t child_ = -1;
  std::thread thread_;
};

class EventEcho {
 public:
  EventEcho();
  ~EventEcho();
  EventEcho(const EventEcho&) = delete;
  EventEcho& operator=(const EventEcho&) = delete;

  void RoundTrip();

 private:
  void Ring();
  void Echo();

  const UniqueFd event_, epoll_;
  uint32_t rung_ = 0;
  alignas(64) std::atomic<uint32_t> word_{0};
  alignas(64) std::atomic<uint32_t> answer_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tidepool::bench
