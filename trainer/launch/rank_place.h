// RankPlace: this process's rank, its node, where the ranks meet, and the launcher, from the
// environment.
//
// Any thread; a value type. DetectRank is a pure function of its arguments. Invariants: rank <
// world, local_rank < local_world <= world, and master_port > 0 when world > 1, except under
// `trainer launch`; all ranks of a run get the same master and, on one node, the same job name.
// Ranks of one machine (local_world == world) use master and port only to tell runs apart.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tidepool::trainer {

using Environment = std::map<std::string, std::string, std::less<>>;

struct RankPlace {
  uint32_t rank = 0, world = 1;              // of the whole run
  uint32_t local_rank = 0, local_world = 1;  // of this node
  uint32_t node = 0;                         // index of this node
  std::string master_host = "127.0.0.1";     // where rank 0's store listens
  // 0: a single rank, or `trainer launch`, whose ranks need no port.
  uint16_t master_port = 0;
  std::string run_id = {};  // from `trainer launch`, unique to the run; else empty
  // torchrun's agent keeps the port open over all its restarts; rank 0 must not open it.
  bool agent_serves_store = false;
  uint32_t restarts = 0;  // how often torchrun has restarted this group
  // For the banner: "torchrun", "trainer launch", "RANK and WORLD_SIZE", "Slurm", "Open MPI",
  // "PMI", "none".
  std::string launcher;
  std::string job_name;  // a valid name of a job in memserver; empty: the launcher has none
  // Where this rank must mark for `trainer launch` that it is done (done_marks.h); else empty.
  std::string done_mark;
  // Where `trainer launch` publishes the ranks' states (rank_roll.h); else empty.
  std::string roll = {};
};

// The environment of this process.
Environment ReadEnvironment();

// Determines the launcher; the first match in this order decides:
//   1. RANK and WORLD_SIZE (torchrun, trainer launch, or by hand) with LOCAL_RANK,
//      LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT;
//   2. a task of Slurm's srun: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID (a batch
//      script without srun is one rank alone);
//   3. Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE;
//   4. PMI (MPICH, Intel MPI): PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS;
//   5. none of them: one rank alone.
// MASTER_ADDR and MASTER_PORT, if set, override the values that 2 to 4 derive. The job's name is
// TIDEPOOL_LAUNCH_ID, else TORCHELASTIC_RUN_ID, else made from SLURM_JOB_ID, else from the launcher
// and `parent_pid` (the agent or mpirun, which outlives a restarted rank). Errors: kUsageError (a
// variable is missing or is not a number in range).
Result<RankPlace> DetectRank(const Environment& environment, int64_t parent_pid);

// `text` with every character not allowed in a job's name replaced by '-', cut to 63 characters.
std::string JobNameFrom(std::string_view text);

}  // namespace tidepool::trainer
