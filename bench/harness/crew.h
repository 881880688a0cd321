// Crew: threads, one pinned to each CPU that this process may use, which do one thing together.
//
// One thread (that which made it) calls Run; it is the first of the crew, and is pinned for the
// length of a Run. Between two Runs that follow closely the others spin, so that starting them
// costs less than a microsecond; after that they sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace tidepool::bench {

class Crew {
 public:
  // 0: one thread for each CPU.
  explicit Crew(uint32_t threads = 0);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Threads, the caller's included.
  uint32_t size() const { return static_cast<uint32_t>(cpus_.size()); }
  // task(i) on thread i of size(), all at once; returns when all have ended.
  void Run(const std::function<void(uint32_t)>& task);
  // Part i of `count` things cut into size() parts whose borders are multiples of `multiple`:
  // [first, second).
  std::pair<uint64_t, uint64_t> Share(uint32_t index, uint64_t count, uint64_t multiple) const;

 private:
  void Serve(uint32_t index);

  std::vector<int> cpus_;
  std::vector<int> allowed_;  // what the caller's thread gets back after a Run
  const std::function<void(uint32_t)>* task_ = nullptr;
  std::atomic<uint32_t> begun_{0};  // Runs; changes wake the others
  std::atomic<uint32_t> ended_{0};  // threads, of the Run at hand
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

// CPUs that this thread may use, ascending.
std::vector<int> AllowedCpus();
// The calling thread runs on these alone from now on; ends the program where the system refuses.
void PinTo(const std::vector<int>& cpus);

}  // namespace tidepool::bench
