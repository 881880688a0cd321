#include "trainer/cli/run.h"

#include <unistd.h>

#include <csignal>
#include <iostream>
#include <utility>

#include "base/clock.h"
#include "base/point.h"
#include "base/text/error_text.h"
#include "trainer/launch/begin_anew.h"
#include "trainer/launch/stop_flag.h"
#include "trainer/advice/settle_pipeline.h"
#include "trainer/advice/settle_rcache.h"
#include "trainer/run/run_device.h"
#include "trainer/run/training_run.h"

namespace tidepool::trainer {
namespace {

Status Train(const RunOptions& options, Clock* clock) {
  RunSetup setup;
  setup.clock = clock;
  setup.options = options;

  const Environment environment = ReadEnvironment();
  const auto attempts = environment.find(kAttemptsVariable);
  if (attempts != environment.end()) setup.attempts = AttemptCount(attempts->second);
  setup.begin_anew = [](const AttemptCount& count) {
    BeginAnew({{kAttemptsVariable, count.Text()}});
  };

  TP_ASSIGN_OR_RETURN(setup.place, DetectRank(environment, getppid()));
  TP_RETURN_IF_ERROR(RunDevice::Prepare(options.device, setup.place));
  TP_RETURN_IF_ERROR(SettleStages(&setup.options, setup.place));
  TP_ASSIGN_OR_RETURN(setup.settled, SettleRcache(&setup.options, setup.place));
  return TrainingRun(std::move(setup)).All();
}

}  // namespace

int RunTraining(const RunOptions& options) {
  SteadyClock clock;
  ArmPointsFromEnvironment();
  StopFlag::Install();
  // The store where ranks meet writes to sockets of ranks that may just have died.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // writing past a file size limit then returns an error
  const Status result = Train(options, &clock);
  // For a stopped run, the signal says why it ended, but not which output could not be written.
  const bool unwritten =
      result.id() == ErrorId::kSaveFailed || result.id() == ErrorId::kFileWriteFailed;
  if (!result.ok() && (unwritten || !StopFlag::Requested()))
    std::cerr << "\n" << ErrorText(result) << "\n";
  if (StopFlag::Requested()) return 128 + StopFlag::Signal();
  return result.ok() ? kExitOk : result.exit_code();
}

}  // namespace tidepool::trainer
