// SingleStep: runs a function with the processor's trap flag set, so that an observer is called
// before every instruction of it, those of library functions included. Every place where SIGKILL
// could end the process is then visited once.
//
// One thread at a time in the process, x86-64 only. The observer runs in a signal handler: it must
// not take locks or allocate memory if the function does.
#pragma once

#include <cstdint>

namespace tidepool::optim {

using StepFunction = void (*)(void* context);

// Returns the number of instructions.
uint64_t SingleStep(StepFunction function, StepFunction observer, void* context);

}  // namespace tidepool::optim
