// TrainingRun: one rank of `trainer run`, from options to saved weights; it survives the deaths of
// its server and of other ranks.
//
// One thread (the trainer's main thread). Invariants:
//  1. weights are put once in the life of a job, a checkpoint's together with its moments; a later
//     run continues after the last sealed step from its step record and reads no file;
//  2. with --resume auto the end of another rank ends the attempt, not the run: this rank drops
//     groups and slot and begins the next attempt at the last sealed step, together with the
//     restarted rank. The run gives up after kFruitlessAttempts that sealed no step, or when
//     another rank has ended for good or has shown no sign of life for --rejoin-timeout;
//  3. after an error the job stays at the server, without a goodbye.
//
// Call tree of a run, outermost first:
//   All        checks the plan; then makes attempts until one ends well or none may follow
//   Attempt    one slot, one meeting: slot, ranks, model, steps, saved weights, goodbye
//   TakeSlot   attaches; continues after the server's last step, or begins a new job
//   Build      makes model and engine over the slot; puts a base and new weights if needed
//   Train      runs steps to the last one, or until a signal
//   Leave      after a failed attempt: drops model, groups and slot; the server keeps the job
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/checkpoint/loaded_checkpoint.h"
#include "base/checkpoint/step_log.h"
#include "trainer/checkpoint/run_checkpoints.h"
#include "trainer/checkpoint/run_step_log.h"
#include "trainer/run/resuming/attempt_count.h"
#include "trainer/run/banner.h"
#include "trainer/inputs/base_names.h"
#include "trainer/threads/cpu_watch.h"
#include "trainer/advice/device_memory.h"
#include "trainer/advice/settle_rcache.h"
#include "trainer/run/resuming/kept_run.h"
#include "trainer/launch/rank_place.h"
#include "trainer/run/check_run.h"
#include "trainer/inputs/run_corpus.h"
#include "trainer/run/run_device.h"
#include "trainer/run/run_model.h"
#include "trainer/run/run_options.h"
#include "trainer/run/run_plan.h"
#include "trainer/run/run_session.h"
#include "trainer/engine/train_loop.h"

namespace tidepool::trainer {

// The inputs of a run.
struct RunSetup {
  RunOptions options;
  RankPlace place;
  Clock* clock = nullptr;   // outlives the run
  Settlement settled = {};  // the result of --rcache auto or --plan
  optim::LossScalerSpec scaler;
  bool foresees = true;                    // RunModelParts::foresees
  AttemptCount attempts = AttemptCount();  // from the program that this one replaced
  // Replaces this process with a new one that continues the attempt count; must not return. Null:
  // never called.
  std::function<void(const AttemptCount&)> begin_anew = nullptr;
  // Called with each sealed version; an error ends the run like a death.
  std::function<Status(Version)> after_step = nullptr;
};

class TrainingRun {
 public:
  explicit TrainingRun(RunSetup setup)
      : setup_(std::move(setup)),
        options_(setup_.options),
        place_(setup_.place),
        voice_(options_.output, place_),
        attempts_(setup_.attempts) {}
  // Runs everything. Errors: all of planning, attaching and training; each says how the run can be
  // continued, if it can.
  Status All();
  const TrainSummary& summary() const { return summary_; }

 private:
  Status Plan();
  Status OpenDevice();
  RunSetting Setting() const;
  Status MakeSession();
  Status NameBase();
  bool StaysForMore() const;
  // One attempt, from a session slot to trained and saved weights.
  Status Attempt();
  Status TakeSlot();
  // `note`: the run note that the server keeps with the job.
  Status Continue(const std::string& note);
  Status Begin();
  // Makes the model, and puts data that the server does not have yet.
  Status Build();
  Status ProvideBase();
  Status LoadWeights();
  Status OpenCheckpoint();
  Status LoadCheckpoint();
  // Makes the steps again that the log has behind the checkpoint.
  Status ReplayLog();
  Status OpenLog();
  // The hash of the adapters' base file; empty on ranks above 0, or if it cannot be computed.
  std::string NameOfBase();
  Status CheckBaseOfCheckpoint();
  // Writes the files that a reader of saved weights needs.
  Status DescribeModel(const std::string& directory) const;
  Result<TrainTask> MakeTask();
  Status BeginStepLog();
  Status Train();
  void BeginServerTrace();
  void TakeServerTrace();
  Status Save();
  void Leave();
  Status DryRun() const;
  void SayDone(const std::string& kept) const;
  bool IsWorthless(const Status& ended) const;
  bool MayGoOn(const Status& ended);
  void LeaveStuck(const Status& ended);
  Status Explained(Status ended) const;
  // Extends kDeviceMemoryShort with the processes that use the GPU's memory and what would fit;
  // returns other errors unchanged.
  Status WithShares(Status ended, ShortAt at) const;
  bool trained_already() const {
    return start_.version > 0 && start_.version >= options_.training.steps;
  }
  bool is_training() const {
    return session_->service() != nullptr && sealed_ < options_.training.steps;
  }
  bool NothingToDoTogether() const;

  const RunSetup setup_;
  const RunOptions& options_;
  const RankPlace& place_;
  RunVoice voice_;
  bool resume_ = false;
  AttemptCount attempts_;
  std::unique_ptr<CpuWatch> cpus_;  // with several compute threads
  RunPlan plan_;
  std::unique_ptr<RunDevice> device_;    // outlives all users of its streams
  std::optional<BaseNames> base_names_;  // when adapters are trained
  std::optional<RunCorpus> data_;
  // Parts of one attempt, in the order in which they are made.
  std::unique_ptr<RunSession> session_;
  StartPoint start_;
  std::unique_ptr<RunModel> model_;             // null before Build
  Version sealed_ = 0;                          // last version known to be sealed
  std::optional<LoadedCheckpoint> checkpoint_;  // starting point of a new job
  std::optional<StepLog> log_;                  // steps behind checkpoint_
  std::optional<RunStepLog> step_log_;
  // The run whose log ends at start_, so that the next log follows it; 0: none.
  uint64_t logged_run_ = 0;
  std::optional<RunCheckpoints> checkpoints_;
  std::optional<KeptRun> kept_;
  TrainSummary summary_;
};

}  // namespace tidepool::trainer
