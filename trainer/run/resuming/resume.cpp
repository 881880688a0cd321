#include "trainer/run/resuming/resume.h"

#include <unistd.h>

#include <utility>

namespace tidepool::trainer {
namespace {

std::string Again(const std::string& job) {
  return "the same command with --job " + job + " --resume auto";
}

}  // namespace

std::string JobNameOf(const RunOptions& options, const RankPlace& place) {
  if (!options.job.name.empty()) return options.job.name;
  if (!place.job_name.empty()) return place.job_name;
  return JobNameFrom((options.adapters.rank > 0 ? std::string("lora") : options.model.preset) +
                     "-" + std::to_string(getpid()));
}

Result<bool> ResumeWanted(const JobOptions& job, const ServerOptions& server,
                          const RankPlace& place) {
  if (job.or_new && job.resume == "never") {
    return Status(ErrorId::kUsageError,
                  "--or-new says what --resume auto does where it finds nothing; --resume never "
                  "always begins anew")
        .Where("command line of trainer");
  }

  if (job.resume.empty()) return place.restarts > 0;
  if (job.resume == "never") return false;
  // A checkpoint: do not continue a job that the server holds, unless this run has begun it.
  if (job.resume != "auto") return place.restarts > 0;

  if (job.name.empty() && place.job_name.empty() && !server.standalone) {
    return Status(ErrorId::kUsageError,
                  "--resume auto needs the name of the job that is to be continued")
        .Where("command line of trainer")
        .Why(
            "without --job, a run that no launcher started is named after its process, and the "
            "next process has another name")
        .Fix("give --job NAME, the same in every start");
  }
  return true;
}

Status StillHeld(const std::string& job, Version sealed) {
  return Status(ErrorId::kJobMismatch,
                "the server still holds job \"" + job + "\" at step " + std::to_string(sealed))
      .Why("its ranks left without an orderly end, and its lease has not passed")
      .Fix(
          "continue it with --resume auto, choose another --job name for a new run, or wait for "
          "the lease to pass");
}

Status StartedAgainInVain(const std::string& job) {
  return Status(ErrorId::kUsageError, "every rank of job " + job +
                                          " had come to its end before torchrun started them again")
      .Why("a rank failed behind the end of its job")
      .Fix("see the error of that rank; what the program has saved is complete");
}

bool EndsAttemptOnly(const Status& ended, bool in_training) {
  if (in_training && ended.id() == ErrorId::kWaitTimeout) return true;
  return ended.id() == ErrorId::kPeerLost || ended.id() == ErrorId::kCollectiveFailed ||
         ended.id() == ErrorId::kVersionGone;
}

std::string WhatIsLeft(const RunOptions& options, const std::string& job, const std::string& kept) {
  const std::string sealed = "the last step is sealed";
  if (kept.starts_with("not ")) return sealed + ": job " + job + " is " + kept;
  if (!kept.empty())
    return sealed + ": job " + job + " is " + kept + ", and " + Again(job) + " goes on";
  if (!options.output.save_dir.empty()) return sealed + " and saved";

  if (options.checkpoint.every > 0) {
    return sealed +
           ", and gone with the job: --resume latest goes on behind the newest checkpoint" +
           " in " + options.checkpoint.dir;
  }

  return sealed + ", and gone with the job: --save DIR keeps weights" +
         (options.server.standalone ? ""
                                    : ", --job NAME --resume auto what a later run needs to go on");
}

bool LosesStates(const Status& ended) {
  return ended.id() == ErrorId::kNvmeIoFailed || ended.id() == ErrorId::kNvmeStalled ||
         ended.id() == ErrorId::kNvmeDataBad;
}

Status AsLoss(const Status& ended, const std::string& job, bool resume) {
  return Status(ErrorId::kStatesLost, "the states of job \"" + job + "\" are lost: " + ended.what())
      .Where(ended.where())
      .Why(ended.Line())
      .Fix(std::string("see to the drive (the kernel log names it); ") +
           (resume ? "--resume auto --or-new" : "the same command") +
           " begins the job anew at step 1");
}

Status ExplainEnd(Status ended, const std::string& job, bool resume, const std::string& kept) {
  const std::string is_kept = "The job is " + (kept.empty() ? "kept for the server's lease" : kept);
  switch (ended.id()) {
    case ErrorId::kServerGone:
      return std::move(ended).Fix(
          "the job is kept where memserver's keeper lives: see that memserver runs again (memctl "
          "wait-ready), then " +
          Again(job) + " continues at the last sealed step");

    case ErrorId::kStatesLost:
      if (!ended.fix().empty()) return ended;  // set by the code that found the cause
      return std::move(ended).Fix(std::string("there is nothing to continue: memserver and its "
                                              "keeper ended together, and the states of \"") +
                                  job + "\" with them. The same command " +
                                  (resume ? "with --or-new " : "") + "starts it anew at step 1");

    case ErrorId::kPeerLost:
    case ErrorId::kCollectiveFailed:
    case ErrorId::kVersionGone:
      return std::move(ended).Fix(is_kept + ": " + Again(job) +
                                  ", for all ranks, continues at the last sealed step");

    case ErrorId::kRanksMissing:
      return std::move(ended).Fix("see why the missing ranks ended. " + is_kept + ": " +
                                  Again(job) +
                                  ", for all ranks, continues at the last sealed step; "
                                  "--rejoin-timeout gives slow ones longer");
    default: return ended;
  }
}

Status ExplainPrivateEnd(Status ended, const std::string& log_tail) {
  if (ended.id() != ErrorId::kServerGone) return ended;
  return Status(ErrorId::kStatesLost,
                "the private memserver has ended during the run, and the states with it")
      .Where(ended.where())
      .Why(log_tail.empty() ? ended.what() : "the end of its log:\n" + log_tail)
      .Fix(
          "there is nothing to continue: the same command starts at step 1. A run that shall "
          "outlive its server needs one with a keeper "
          "(`memserver run`), and --resume auto");
}

}  // namespace tidepool::trainer
