// Places and sizes of the pieces of a job's spilled chunks, shared by the policies that stage
// pieces.
//
// Any thread that may read the job's states; plain functions.
#pragma once

#include <cstdint>

#include "memserver/residency/job_states.h"
#include "memserver/traffic/state_tier.h"

namespace tidepool::memserver {

// Elements of a piece of the chunk: shm::kPieceElements, or fewer in the last one.
uint64_t ElementsOfPiece(const Chunk& chunk, uint32_t piece);

// Bytes of the piece's states on a drive, without the header.
uint64_t PayloadOfPiece(const JobStates& states, ChunkId chunk, uint32_t piece);

// The name and place of the piece on the chunk's drive, at `epoch`.
nvme::PieceName NameOfPiece(const StateTier& tier, const JobStates& states,
                            const StagedPiece& piece, uint64_t epoch);

}  // namespace tidepool::memserver
