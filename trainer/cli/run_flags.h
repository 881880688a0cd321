// The flags of `run` and `estimate`: name, help text and destination.
//
// One thread, before anything is started. The App keeps pointers into the options, which must
// outlive it. --help shows the flags in the order of the calls; the memory and training sections
// also have flags of other option groups.
#pragma once

#include "trainer/run/run_options.h"

namespace CLI {
class App;
}

namespace tidepool::trainer {

// Each function adds the flags of one group of settings.
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
