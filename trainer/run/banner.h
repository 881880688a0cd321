// Banner and RunVoice: the lines that a run prints about itself before its first step, short or in
// full, and messages about later events.
//
// Text functions are pure. A RunVoice belongs to one thread (the trainer's main thread). A run
// prints its banner only once it has a session slot at the server, so that a usage error stands
// alone.
#pragma once

#include <string>

#include "trainer/launch/rank_place.h"
#include "trainer/run/run_options.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// What the plan lacks. `device` is empty on the CPU; `server`: where the job's states are.
struct BannerWords {
  std::string data, device, server;
};

// The three lines of the short banner.
std::string Banner(const RunPlan& plan, const RankPlace& place, const BannerWords& words);
// For --verbose and --dry-run: the whole plan. Ends with the data.
std::string LongBanner(const RunPlan& plan, const RankPlace& place, const std::string& data);

// The device that a run computes on, its data and its server.
struct RunSetting {
  std::string data, device;
  bool is_gpu = false;
  std::string server;  // empty: not contacted yet
};

// Writes to stderr, on rank 0 only.
class RunVoice {
 public:
  // Both outlive it.
  RunVoice(const OutputOptions& output, const RankPlace& place) : output_(output), place_(place) {}

  // Prints nothing with --quiet.
  void Say(const std::string& text) const;
  // Prints a waiting message, also when progress is off; a progress line may be on the terminal.
  void SayWait(const std::string& line) const;
  // Prints device, data and the full plan.
  void SayPlan(const RunPlan& plan, const RunSetting& setting) const;
  // Call when nothing but the first step can still fail. Prints the full plan with --verbose; at a
  // later attempt only the server, and only with --verbose.
  void Introduce(const RunPlan& plan, const RunSetting& setting);

 private:
  const OutputOptions& output_;
  const RankPlace& place_;
  bool introduced_ = false;
};

}  // namespace tidepool::trainer
