// Crew: threads, one pinned to each CPU that this process may use, that run one task together.
//
// One thread (the one that made it) calls Run; it is the first of the crew, and is pinned during a
// Run. The others spin between two Runs in close succession, so that starting them takes less than
// a microsecond; after that they sleep.
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
  // 0: one thread per CPU.
  explicit Crew(uint32_t threads = 0);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Number of threads, including the caller's.
  uint32_t size() const { return static_cast<uint32_t>(cpus_.size()); }
  // Runs task(i) on thread i of size(), concurrently; returns when all have ended.
  void Run(const std::function<void(uint32_t)>& task);
  // Part i of `count` items split into size() parts at multiples of `multiple`: [first, second).
  std::pair<uint64_t, uint64_t> Share(uint32_t index, uint64_t count, uint64_t multiple) const;

 private:
  void Serve(uint32_t index);

  std::vector<int> cpus_;
  std::vector<int> allowed_;  // restored on the caller's thread after a Run
  const std::function<void(uint32_t)>* task_ = nullptr;
  std::atomic<uint32_t> begun_{0};  // number of Runs; changes wake the others
  std::atomic<uint32_t> ended_{0};  // threads that have ended in the current Run
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

// CPUs that this thread may use, ascending.
std::vector<int> AllowedCpus();
// Restricts the calling thread to these CPUs; ends the program if the system refuses.
void PinTo(const std::vector<int>& cpus);

}  // namespace tidepool::bench
