// Packing: the order of a module's parameters in the layout: that of first use if a profile or the
// job's server knows it, else that of registration; and which gradients must not overwrite their
// parameters.
//
// Any thread; pure, torch-free. Frozen parameters keep the order of registration, so that jobs with
// and without a profile have the same frozen chunks and share them.
#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "client/job_spec.h"
#include "trainer/layout/build_layout.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/use_trace.h"
#include "trainer/profile/step_recorder.h"

namespace tidepool::trainer {

// Inputs besides the order of registration; `profile` may be null, `held` empty.
struct PackingWish {
  const StepProfile* profile = nullptr;  // its notes are the indices of parameters
  std::vector<std::string> held;         // names of trained parameters in the server's order
};

// A layout of `notes`, one per parameter in order of registration, packed in the order of `wish`:
// notes of the layout, and of a trace, are indices of parameters. Errors: those of BuildLayout,
// kJobMismatch (`held` does not have the names of the trained parameters).
Result<ChunkLayout> PackModule(std::vector<ParameterNote> notes, const PackingWish& wish,
                               const LayoutOptions& options);

// Whether two specifications of one module have the same parameters in the same order, and the same
// rCache.
bool PackedAlike(const client::JobSpec& a, const client::JobSpec& b);

}  // namespace tidepool::trainer
