// Sweep: the k-th call of one function fails in one process, for every function and k that an
// undisturbed run has, and each time a whole run is looked at. What a run is, the program says:
// failure_sweep.cpp, adoption_sweep.cpp.
//
// Runs are played by several threads at once.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/process/rig/child_process.h"
#include "tests/process/rig/fail_page.h"

namespace tidepool::testing {

enum class Victim { kMemserver, kKeeper, kTrainer };

struct Failure {
  Victim victim;
  uint32_t call;
  uint64_t at;  // 0: nothing fails
};

struct Outcome {
  std::string wrong;       // empty: all is as it should be
  bool failed = false;     // the call was reached
  bool job_ended = false;  // the job ended with an error
  bool server_ended = false;
  std::string output;  // of everybody
};

// The calls of a run that can fail: of each function the numbers, from 1.
using CallPlaces = std::array<std::vector<uint64_t>, kFailCalls>;

struct Sweep {
  std::vector<Victim> victims;
  uint64_t samples = 500;  // unless --samples or --all says otherwise
  const char* verdict = "nothing lost, nobody hung";
  // By any thread; `places` is filled when all has gone well.
  std::function<Outcome(const Failure& failure, CallPlaces* places)> play;
};

// The flags of failure_sweep.cpp. Returns the exit code.
int SweepMain(int argc, char** argv, const Sweep& sweep);

// The page that the shim maps, in a file of its own.
class PageFile {
 public:
  explicit PageFile(const Failure& failure);
  ~PageFile();
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;
  FailPage* operator->() { return page_; }
  std::vector<std::string> Environment() const;

 private:
  const TemporaryDirectory directory_;
  const std::string path_;
  FailPage* page_ = nullptr;
};

// Why this is not how a program ends: by a signal, with an exit code that no document has, with an
// error that is not told. Empty: it is.
std::string WhyNotInOrder(ChildProcess* process, int64_t timeout_ns);

}  // namespace tidepool::testing
