// MachineFingerprint: a machine's hardware in one line, which identifies the machine that measured
// rates belong to.
//
// Any thread. The first call starts the CUDA driver (device/gpu_list.h); it takes no GPU memory.
#pragma once

#include <string>

namespace tidepool::device {

// "AMD EPYC 9454 48-Core Processor, 2 CPUs, 24 GiB, no GPU": the processor, the CPUs that this
// process may use, the machine's memory to the nearest GiB, and its GPUs by name. `proc_root` is
// "/proc"; a test passes a folder of its own.
std::string MachineFingerprint(const std::string& proc_root = "/proc");

}  // namespace tidepool::device
