#include "bench/harness/crew.h"

#include <sched.h>

#include <algorithm>

#include "bench/harness/die.h"

namespace tidepool::bench {
namespace {

constexpr int kSpins = 20'000;  // about 100 to 400 us

}  // namespace

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0)
    Die("the system does not tell which CPUs there are");
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void PinTo(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) Die("a thread cannot be pinned to its CPU");
}

Crew::Crew(uint32_t threads) : cpus_(AllowedCpus()), allowed_(cpus_) {
  if (threads > 0) {
    for (size_t i = cpus_.size(); i < threads; ++i) cpus_.push_back(allowed_[i % allowed_.size()]);
    cpus_.resize(threads);
  }
  for (uint32_t i = 1; i < size(); ++i) threads_.emplace_back([this, i] { Serve(i); });
}

Crew::~Crew() {
  stopping_.store(true);
  begun_.fetch_add(1);
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Crew::Run(const std::function<void(uint32_t)>& task) {
  PinTo({cpus_[0]});
  task_ = &task;
  ended_.store(0, std::memory_order_relaxed);
  begun_.fetch_add(1);
  begun_.notify_all();
  task(0);
  while (ended_.load(std::memory_order_acquire) + 1 < size()) __builtin_ia32_pause();
  PinTo(allowed_);
}

std::pair<uint64_t, uint64_t> Crew::Share(uint32_t index, uint64_t count, uint64_t multiple) const {
  const uint64_t units = count / multiple;
  const uint64_t begin = units * index / size() * multiple;
  return {begin, index + 1 == size() ? count : units * (index + 1) / size() * multiple};
}

void Crew::Serve(uint32_t index) {
  PinTo({cpus_[index]});
  uint32_t seen = 0;
  while (true) {
    for (int i = 0; i < kSpins && begun_.load(std::memory_order_acquire) == seen; ++i)
      __builtin_ia32_pause();
    begun_.wait(seen);
    ++seen;

    if (stopping_.load()) return;
    (*task_)(index);
    ended_.fetch_add(1, std::memory_order_release);
  }
}

}  // namespace tidepool::bench
