// PipelineAdvice: the best pipeline for a model on a machine: stages, their GPUs and the schedule
// of a step; compared with the paper's simpler partitions and with ZeRO-3.
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

// The inputs.
struct PipelineQuestion {
  PipelineModel model;  // flops_per_ns is set from the machine
  PipelineMachine machine;
  uint32_t micro_batches = 1;
  uint32_t stages = 0;  // 0: any number
};

// One partition with its schedule: GPUs in the order of cross mapping, or in ascending order if
// that is shorter.
struct PipelineWay {
  std::string name;
  double bytes_per_ns = 0;  // the rate B used for the search; 0: none
  Partition partition;
  ScheduleTask task;
  PipelineSchedule schedule;
  StageMapping cross, sequential;
  int64_t cross_ns = 0, sequential_ns = 0;  // time of a step
};

// Traffic and minimum time of a step if each rank computes whole micro-batches of its own, and
// receives all weights chunk by chunk (ZeRO-3 with an rCache). Copies are assumed to overlap
// computation wherever possible, so the comparison does not favour the pipeline.
struct SharedWay {
  bool fits = false;
  int64_t step_ns = 0;
  uint64_t bytes_up = 0, bytes_down = 0;  // of all GPUs
};

// The answer.
struct PipelineAdvice {
  PipelineQuestion question;
  PipelineTask task;              // at the rate of a GPU that copies alone
  std::vector<PipelineWay> ways;  // those that fit; the first has the shortest step
  SharedWay shared;

  // The recommended partition.
  const PipelineWay& best() const { return ways.front(); }
};

// Errors: those of FindPartition, kUsageError (fewer stages than GPUs).
Result<PipelineAdvice> AdvisePipeline(PipelineQuestion question);

}  // namespace tidepool::trainer
