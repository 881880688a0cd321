// PipelineAdvice: the pipeline that a machine should run a model as: stages, their GPUs, and a
// schedule of one step; what the paper's simpler ways would take, and the ZeRO-3 way.
//
// Any thread; torch-free, pure. Sources: Mobius (Feng et al., ASPLOS 2023), sections 3 and 4.3.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/advice/pipeline_layers.h"
#include "trainer/advice/topology_file.h"
#include "trainer/plan/pipeline/pipeline_schedule.h"
#include "trainer/plan/pipeline/stage_mapping.h"
#include "trainer/plan/pipeline/stage_partition.h"

namespace tidepool::trainer {

// What is asked.
struct PipelineQuestion {
  PipelineModel model;  // its flops_per_ns is filled in from the machine
  PipelineMachine machine;
  uint32_t micro_batches = 1;
  uint32_t stages = 0;  // 0: any number
};

// One way to partition, as it would be scheduled: with GPUs in the order of cross mapping, or in
// their own where that is shorter.
struct PipelineWay {
  std::string name;
  double bytes_per_ns = 0;  // the rate B by which it was found; 0: by none
  Partition partition;
  ScheduleTask task;
  PipelineSchedule schedule;
  StageMapping cross, sequential;
  int64_t cross_ns = 0, sequential_ns = 0;  // a step
};

// What a step moves and takes at least where each rank computes whole micro-batches of its own, and
// weights come to all of them chunk by chunk (ZeRO-3 with an rCache). Copies are taken to hide
// behind computing wherever they can, so that the comparison is not in the pipeline's favour.
struct SharedWay {
  bool fits = false;
  int64_t step_ns = 0;
  uint64_t bytes_up = 0, bytes_down = 0;  // of all GPUs
};

// The answer.
struct PipelineAdvice {
  PipelineQuestion question;
  PipelineTask task;              // with the rate of a GPU whose copies nobody disturbs
  std::vector<PipelineWay> ways;  // those that fit; the first has the shortest step
  SharedWay shared;

  // The way to take.
  const PipelineWay& best() const { return ways.front(); }
};

// Errors: those of FindPartition, kUsageError (fewer stages than GPUs).
Result<PipelineAdvice> AdvisePipeline(PipelineQuestion question);

}  // namespace tidepool::trainer
