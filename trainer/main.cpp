#include "base/error_catalog.h"
#include "base/system/last_words.h"
#include "base/log.h"
#include "trainer/cli/flags.h"
#include "trainer/cli/run.h"

[[gnu::init_priority(101)]] static const tidepool::LastWords last_words("trainer");

int main(int argc, char** argv) {
  using namespace tidepool::trainer;
  CommandLine line;
  int exit_code = 0;
  if (!ParseCommandLine(argc, argv, &line, &exit_code)) return exit_code;
  tidepool::InitLog("trainer", tidepool::LogLevel::kInfo, tidepool::LogFormat::kText);

  switch (line.command) {
    case Command::kRun: return RunTraining(line.options);
    case Command::kEstimate: return RunEstimate(line.options);
    case Command::kSample: return RunSample(line.options);
    case Command::kLaunch:
      return RunLaunch(line.launch_ranks, line.launch_restarts, line.launch_arguments,
                       line.options);

    case Command::kVersion: return RunVersion();
    case Command::kDoctor: return RunDoctor(line.options.device);
    case Command::kTokenize: return RunTokenize(line.options.tokenize);
    case Command::kExport: return RunExport(line.options.exported);
    case Command::kRates: return RunRates(line.options.server, line.options.output);
  }
  return tidepool::kExitUsage;
}
