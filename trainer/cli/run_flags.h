// The flags of `run`, `estimate` and `sample`: name, help, and where the value is stored.
//
// One thread, before anything is started. The App keeps pointers into the options, which must
// outlive it. The order of the calls is that of --help.
#pragma once

#include "trainer/run/run_options.h"

namespace CLI {
class App;
}

namespace tidepool::trainer {

void AddModelFlags(CLI::App* app, RunOptions* o);
void AddAdapterFlags(CLI::App* app, RunOptions* o);
void AddMemoryFlags(CLI::App* app, RunOptions* o);
void AddDataFlags(CLI::App* app, RunOptions* o);
void AddOptimizerFlags(CLI::App* app, RunOptions* o);
void AddDeviceFlag(CLI::App* app, RunOptions* o);
void AddTrainingFlags(CLI::App* app, RunOptions* o);
void AddPlaceFlags(CLI::App* app, RunOptions* o);
void AddOutputFlags(CLI::App* app, RunOptions* o);
void AddSampleFlags(CLI::App* app, RunOptions* o);

}  // namespace tidepool::trainer
