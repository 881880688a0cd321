#include "trainer/threads/compute_threads.h"

#include <algorithm>
#include <thread>

#include <ATen/Parallel.h>

#include "trainer/threads/thread_trial.h"

namespace tidepool::trainer {

uint32_t UseThreads(uint32_t wanted, uint32_t local_ranks) {
  const uint32_t cpus = std::max(1U, std::thread::hardware_concurrency());
  const uint32_t threads = wanted > 0 ? wanted : std::max(1U, cpus / local_ranks);
  at::set_num_threads(static_cast<int>(threads));
  return threads;
}

uint32_t UseFastestThreads(const std::function<void()>& work, const Clock* clock) {
  return FastestThreads(
      {.most = std::max(1U, std::thread::hardware_concurrency()),
       .use = [](uint32_t threads) { at::set_num_threads(static_cast<int>(threads)); },
       .work = work,
       .clock = clock});
}

}  // namespace tidepool::trainer
