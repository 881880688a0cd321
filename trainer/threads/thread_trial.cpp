#include "trainer/threads/thread_trial.h"

#include <algorithm>
#include <vector>

namespace tidepool::trainer {
namespace {

// Fewer threads than these are even slower.
constexpr double kMuchSlower = 1.5;

struct Candidate {
  uint32_t threads = 1;
  std::vector<double> ns{};  // of one piece of work, by round

  double median() const {
    std::vector<double> sorted = ns;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2),
                     sorted.end());
    return sorted[sorted.size() / 2];
  }
};

double Fastest(const std::vector<Candidate>& candidates) {
  double least = candidates.front().median();
  for (const Candidate& each : candidates) least = std::min(least, each.median());
  return least;
}

// Does the work once untimed, which wakes the threads, and then for kTrialNs.
void Try(const ThreadTrial& trial, Candidate* candidate) {
  trial.use(candidate->threads);
  trial.work();

  const int64_t begin = trial.clock->NowNs();
  int64_t took_ns = 0;
  uint64_t times = 0;
  for (; times == 0 || took_ns < kTrialNs; ++times) {
    trial.work();
    took_ns = trial.clock->NowNs() - begin;
  }
  candidate->ns.push_back(static_cast<double>(took_ns) / static_cast<double>(times));
}

}  // namespace

uint32_t FastestThreads(const ThreadTrial& trial) {
  trial.use(trial.most);
  if (trial.most == 1) return 1;
  trial.work();  // memory is touched for the first time
  const int64_t begin = trial.clock->NowNs();
  trial.work();
  if (trial.clock->NowNs() - begin > kTriedWorkNs) return trial.most;

  std::vector<Candidate> candidates;
  for (uint32_t threads = trial.most; threads > 0; threads /= 2) {
    candidates.push_back({threads});
    Try(trial, &candidates.back());
    if (candidates.back().median() > kMuchSlower * Fastest(candidates)) break;
  }
  for (uint32_t round = 1; round < kTrialRounds; ++round) {
    for (Candidate& each : candidates) Try(trial, &each);
  }

  const double fastest = Fastest(candidates);
  uint32_t chosen = trial.most;
  for (const Candidate& each : candidates) {
    if (each.median() <= kNoSlower * fastest) chosen = each.threads;
  }
  trial.use(chosen);
  return chosen;
}

}  // namespace tidepool::trainer
