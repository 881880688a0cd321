// PipelineMachine: the GPUs that a pipeline is planned for: shared root complexes, copy and compute
// rates, memory. From --topology FILE, or the paper's machine.
//
// Any thread. The file:
//   {"origin": "what was measured, where and when",
//    "root_complexes": [{"gpus": 2, "gb_per_s": 13.1}, {"gpus": 2, "gb_per_s": 13.1}],
//    "gpu_memory": "24GiB", "tflops": 35}
// gb_per_s: 10^9 bytes per second through a root complex in one direction, all its GPUs together;
// tflops: 10^12 operations per second that one GPU reaches in the model's matrix products.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "trainer/plan/pipeline/gpu_topology.h"

namespace tidepool::trainer {

struct PipelineMachine {
  GpuTopology topology;
  double tflops = 0;       // per GPU
  uint64_t gpu_bytes = 0;  // per GPU, total
  std::string origin;      // for people
};

// Errors: kConfigUnreadable, kConfigBadValue (the text names the value).
Result<PipelineMachine> ReadTopology(const std::string& file);

// GeForce RTX 3090 Ti with the figures of Mobius (Feng et al., ASPLOS 2023, section 1 and table 1):
// four per root complex, 16 GB/s, 24 GiB, 40 TFLOPS. Requires gpus > 0.
PipelineMachine MachineOfThePaper(uint32_t gpus);

}  // namespace tidepool::trainer
