// TrainerRuns: a test with runs of the trainer program on one small text, told apart by name, and
// what each leaves: losses and weights.
//
// One thread. Every run trains the tiny GPT for kSteps steps, unless its flags say otherwise; a run
// that still goes on at the end of a test is killed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/process/rig/child_process.h"

namespace tidepool::testing {

// Values by name; a flag with an empty value stands alone.
using Flags = std::map<std::string, std::string>;

class TrainerRuns : public ::testing::Test {
 protected:
  static constexpr int64_t kRunNs = 120 * kNsPerSecond;
  static constexpr uint64_t kSteps = 30;

  TrainerRuns();

  // `run` and its flags: those of `more`, and small sizes for the rest; metrics go to Out(name),
  // weights to Out(name)/weights.
  std::vector<std::string> Words(const std::string& name, const Flags& more = {}) const;
  static std::unique_ptr<ChildProcess> Start(std::vector<std::string> words,
                                             const std::vector<std::string>& environment = {});
  // Waits until the trainer ends, which must be without an error.
  static void ExpectDone(ChildProcess* trainer);

  std::string Out(const std::string& name) const { return directory_.path() + "/" + name; }
  // False when the trainer ended before it had reported so many lines.
  bool WaitForLines(const std::string& name, uint64_t lines, ChildProcess* trainer) const;
  // The process of this rank of the job, once the admin socket shows it (its answers may be some
  // time old); -1 when it never does.
  static pid_t PidOfRank(const std::string& socket_dir, const std::string& job, uint64_t rank);
  // The bytes of the saved file; empty when there is none.
  std::string Weights(const std::string& name) const;
  // Step and losses, from each line of metrics.jsonl.
  std::vector<std::string> Losses(const std::string& name) const;
  // Losses and weights have the bits of the reference, which is a whole run.
  void ExpectSame(const std::string& name, const std::string& reference) const;

 private:
  const TemporaryDirectory directory_;
};

}  // namespace tidepool::testing
