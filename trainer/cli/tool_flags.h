// The flags of commands that do not train: `sample`, `export` and `tokenize`, and the flags that
// `estimate` has in addition to those of a run.
//
// One thread, before anything is started. The App keeps pointers into the options, which must
// outlive it.
#pragma once

#include "trainer/run/run_options.h"

namespace CLI {
class App;
}

namespace tidepool::trainer {

// Each function adds the flags of one command; the first adds those of `estimate --pipeline`.
void AddPipelineFlags(CLI::App* app, RunOptions* o);
void AddStageFlags(CLI::App* app, PipelineOptions* o);
void AddExportFlags(CLI::App* app, ExportOptions* o);
void AddTokenizeFlags(CLI::App* app, TokenizeOptions* o);
void AddRatesFlags(CLI::App* app, RunOptions* o);
void AddSampleFlags(CLI::App* app, RunOptions* o);

}  // namespace tidepool::trainer
