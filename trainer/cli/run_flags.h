// The flags of `run` and `estimate`: name, help, and where the value is stored.
//
// One thread, before anything is started. The App keeps pointers into the options, which must
// outlive it. The order of the calls is that of --help, where memory and training show flags of
// other groups of options, too.
#pragma once

#include "trainer/run/run_options.h"

namespace CLI {
class App;
}

namespace tidepool::trainer {

// Each adds the flags of one group of settings.
void AddModelFlags(CLI::App* app, ModelOptions* o);
void AddAdapterFlags(CLI::App* app, AdapterOptions* o);
void AddMemoryFlags(CLI::App* app, MemoryOptions* o, TrainingOptions* training);
void AddDataFlags(CLI::App* app, DataOptions* o);
void AddOptimizerFlags(CLI::App* app, OptimizerOptions* o);
void AddDeviceFlag(CLI::App* app, DeviceOptions* o);
void AddTrainingFlags(CLI::App* app, TrainingOptions* o, OptimizerOptions* optimizer);
void AddPlaceFlags(CLI::App* app, RunOptions* o);
void AddCheckpointFlags(CLI::App* app, CheckpointOptions* o);
void AddOutputFlags(CLI::App* app, OutputOptions* o);

}  // namespace tidepool::trainer
