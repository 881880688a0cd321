// Ids: the numbers that identify objects inside one daemon or one trainer.
#pragma once

#include <cstdint>

namespace tidepool {

using ChunkId = uint32_t;      // index of a chunk in its job, from 0
using ParameterId = uint32_t;  // index of a parameter in its job, in chunk order, from 0
using JobId = uint32_t;        // number of a job in one daemon, from 1, never reused
// Number of a session (one rank's attachment) in one daemon, from 1, never reused.
using SessionId = uint32_t;
using Version = uint64_t;  // number of sealed steps whose updates a chunk contains
using Rank = uint32_t;     // rank in the job's data-parallel world
// Number of an accepted control socket in one daemon, from 1, never reused.
using ConnectionId = uint64_t;

}  // namespace tidepool
