// The job specification under client's name: a trainer includes client, never shm.
#pragma once

#include "shm/spec/encode.h"
#include "shm/spec/frozen.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/job_spec.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::client {

using shm::ChunkSpec;
using shm::DataGroup;
using shm::Encode;
using shm::FrozenChunkSpec;
using shm::FrozenPoolBytes;
using shm::GpuShareBytes;
using shm::GpuStateBytes;
using shm::GradientSlotType;
using shm::HostStateBytesOf;
using shm::JobSpec;
using shm::kDimsMax;
using shm::kMicroBatchesMax;
using shm::kNameMax;
using shm::kNoSpill;
using shm::kRanksMax;
using shm::LeastHostBytesOf;
using shm::MaySpill;
using shm::NvmeBytesOf;
using shm::ParameterGroup;
using shm::ParameterSpec;
using shm::StateBytes;
using shm::StateBytesOf;

}  // namespace tidepool::client
