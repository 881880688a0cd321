// What a run says of itself: three lines before its first step, or all that is known of it; and by
// RunVoice what happens to it.
//
// Texts are pure. A RunVoice belongs to one thread (the trainer's main thread). A run introduces
// itself once it has a session slot at the server, so that an error of usage stands alone.
#pragma once

#include <string>

#include "trainer/launch/rank_place.h"
#include "trainer/run/run_options.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// What is not in the plan. `device` is empty on the CPU; `server` says where the job's states are.
struct BannerWords {
  std::string data, device, server;
};

// The three lines.
std::string Banner(const RunPlan& plan, const RankPlace& place, const BannerWords& words);
// With --verbose and --dry-run: the whole plan. Ends behind the data.
std::string LongBanner(const RunPlan& plan, const RankPlace& place, const std::string& data);

// Where a run computes, and on what.
struct RunSetting {
  std::string data, device;
  bool is_gpu = false;
  std::string server;  // empty: none was asked yet
};

// Writes to stderr, rank 0 for all.
class RunVoice {
 public:
  // Both outlive it.
  RunVoice(const OutputOptions& output, const RankPlace& place) : output_(output), place_(place) {}

  // Nothing with --quiet.
  void Say(const std::string& text) const;
  // That the run waits is said also when progress is not shown; on a terminal a progress line may
  // stand there.
  void SayWait(const std::string& line) const;
  // Device, data and plan, whole.
  void SayPlan(const RunPlan& plan, const RunSetting& setting) const;
  // Nothing that could be wrong stands between it and the first step. The whole plan with
  // --verbose; at a later attempt only the server, and only then.
  void Introduce(const RunPlan& plan, const RunSetting& setting);

 private:
  const OutputOptions& output_;
  const RankPlace& place_;
  bool introduced_ = false;
};

}  // namespace tidepool::trainer
