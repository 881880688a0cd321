// The job description, under the name by which a trainer knows it: a trainer includes client, never shm.
#pragma once

#include "shm/frozen.h"
#include "shm/gpu_states.h"
#include "shm/job_spec.h"
#include "shm/spill.h"

namespace tidepool::client {

using shm::ChunkSpec;
using shm::DataGroup;
using shm::Encode;
using shm::FrozenChunkSpec;
using shm::FrozenPoolBytes;
using shm::GpuShareBytes;
using shm::GpuStateBytes;
using shm::HostStateBytesOf;
using shm::JobSpec;
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
