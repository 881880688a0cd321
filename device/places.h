// PlanPlaces: plans the placement of the pool, the optimizer workers and the staging of each GPU on
// a machine. Pure: a topology and wishes in, a plan out.
//
// Any thread; values. Others carry the plan out: HostPool binds its pieces, WorkerTeam pins its
// threads. Rules: the pool lies on every node that has memory and CPUs of this process, its pages
// in turn, so that a job of any size gets the bandwidth of all of them. Workers go round these
// nodes, one per core before any core has two, from the last CPU downwards, since the first ones
// stay for the serve loop and the launcher of trainers. A GPU's staging lies on the node nearest to
// its root complex.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/topology.h"

namespace tidepool::device {

// How the pool's pages are spread over its nodes.
enum class PoolSpread {
  kInterleave,  // page by page over the nodes
  kPieces,      // each piece on one node, in turn
};
// "interleave", "pieces".
const char* NameOf(PoolSpread spread);

// The configured placement.
struct PlaceWishes {
  std::vector<uint32_t> pool_nodes;   // none: by the rules
  std::vector<uint32_t> worker_cpus;  // none: by the rules; fewer than workers: some share one
  PoolSpread spread = PoolSpread::kInterleave;
  uint32_t workers = 0;
  // false: the system places workers, unless worker_cpus names CPUs.
  bool pin = true;
};

// A worker's CPU and its node.
struct WorkerPlace {
  uint32_t cpu = 0, node = 0;
};

// The node of one GPU's staging.
struct StagingPlace {
  Peripheral gpu;
  std::string root;
  uint32_t node = 0;
  bool nearest = false;  // false: nearness is unknown, so it is the pool's first node
};

// The plan.
struct Places {
  std::vector<uint32_t> pool_nodes;  // ascending unless configured
  bool bind_pool = false;            // false: one node, so there is no choice
  PoolSpread spread = PoolSpread::kInterleave;
  std::vector<WorkerPlace> workers;  // by worker number; none: the system places them
  std::vector<StagingPlace> staging;

  // CPU of each worker, in the order of the workers.
  std::vector<uint32_t> WorkerCpus() const;
  // Size of a piece of a pool of `total` bytes, at most `piece_max`: each node gets the same number
  // of pieces, except that the last piece may be smaller.
  uint64_t PieceBytes(uint64_t total, uint64_t piece_max) const;
  // The nodes of piece `piece`: one, or all interleaved ones.
  std::vector<uint32_t> NodesOfPiece(uint64_t piece) const;
};

// Plans the placement. Errors: kConfigBadValue (a node or CPU that does not exist, or that this
// process may not use).
Result<Places> PlanPlaces(const Topology& topology, const PlaceWishes& wishes);

}  // namespace tidepool::device
