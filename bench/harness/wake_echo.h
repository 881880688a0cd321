// FutexEcho and EventEcho: somebody who sleeps, is woken, and answers by a word: the least that
// waking costs, by a futex, and by an eventfd and epoll, by which one thread can be woken for many
// reasons, as the serve loop.
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

// Where the one who is woken lives: a process of its own, as memserver is, or this one.
enum class EchoHome { kThread, kProcess };

class FutexEcho {
 public:
  // `cpus`: where it may run; empty: where the system puts it.
  explicit FutexEcho(EchoHome home = EchoHome::kThread, std::vector<int> cpus = {});
  ~FutexEcho();
  FutexEcho(const FutexEcho&) = delete;
  FutexEcho& operator=(const FutexEcho&) = delete;

  void RoundTrip();

 private:
  struct Words {  // in memory that a process made by fork shares
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
