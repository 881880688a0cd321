// KeptRun: tells whether a job ever had states, independently of the states that memserver holds.
//
// One thread (the trainer's main thread). Two witnesses: DIR/unfinished.job in the run's folder
// (--out), which rank 0 writes with the first sealed step and removes at an orderly end; and
// memserver's list of jobs whose states it had to drop. A run with a private server has neither,
// because nothing of it outlives the run.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

class KeptRun {
 public:
  // `options` outlives it.
  KeptRun(const RunOptions& options, std::string job) : options_(options), job_(std::move(job)) {}

  // Rank 0: a step is sealed. Errors: kFileWriteFailed.
  Status Sealed(const std::string& socket_dir);
  // Rank 0: the job has ended in order, and will be removed.
  void Ended();
  // Whether the run may begin at step 1: the server at `socket_dir` holds nothing of the job, and
  // this process knows of `sealed` steps. Errors: kStatesLost (there were states; the error names
  // the witness).
  Status MayBegin(const std::string& socket_dir, Version sealed) const;
  // "kept until 13:05", from the server; "kept for memserver's --lease" if it does not answer.
  std::string Until(const std::string& socket_dir) const;

 private:
  bool has_folder() const {
    return !options_.output.out_dir.empty() && !options_.server.standalone;
  }
  std::string path() const { return options_.output.out_dir + "/unfinished.job"; }
  std::string WhoSaysSo(const std::string& socket_dir, Version sealed) const;

  const RunOptions& options_;
  const std::string job_;
  bool noted_ = false;
};

}  // namespace tidepool::trainer
