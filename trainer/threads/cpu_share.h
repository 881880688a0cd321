// CpuShare: decides from the kernel's scheduling account of one thread whether other work wants the
// CPUs that this process computes on.
//
// One thread; reads no clock. A team of compute threads ends each operator together. While all of
// them run, it is fastest if early threads spin until the last is ready; if one of them has no CPU,
// the spinning occupies the very CPU that it waits for. The account tells the two cases apart: a
// thread that is ready but not running waits for another process's work.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace tidepool::trainer {

// Times of one thread since it began.
struct CpuAccount {
  int64_t ran_ns = 0, waited_ns = 0;  // on a CPU; ready, but without a CPU
};

// The account of a thread of this process, from /proc; nullopt if the kernel keeps none, or the
// thread has ended.
std::optional<CpuAccount> CpuAccountOf(pid_t thread);

class CpuShare {
 public:
  static constexpr int64_t kWindowNs = 200'000'000;     // one judgement
  static constexpr double kShared = 0.2, kAlone = 0.1;  // fraction of a window spent waiting
  // Whether the CPUs are free again often shows only by trying: after a wrong try, the next one
  // comes after twice the time.
  static constexpr int64_t kHoldFirstNs = 1'000'000'000, kHoldMostNs = 64'000'000'000;

  // Call it periodically, with rising times. Returns whether the CPUs are shared, as far as is
  // known.
  bool Look(int64_t now_ns, const CpuAccount& account);
  bool shared() const { return shared_; }

 private:
  void Judge(int64_t now_ns, double waited);
  std::optional<int64_t> window_from_ns_;
  int64_t waited_before_ns_ = 0;
  bool shared_ = false;
  int64_t since_ns_ = 0;  // start of the present state of shared_
  int64_t hold_ns_ = kHoldFirstNs;
};

}  // namespace tidepool::trainer
