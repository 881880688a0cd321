// PlanPlaces: where on a machine the pool, the optimizer workers and the staging of each GPU go.
// Pure: a topology and wishes in, a plan out.
//
// Any thread; values. The plan is carried out by others: HostPool binds its pieces, WorkerTeam pins
// its threads.
// Rules: the pool lies on every node that has memory and CPUs of this process, its pages in turn,
// so that a job of any size gets the bandwidth of all of them; workers go round these nodes, one a
// core before any core has two, from the last CPU downwards, since the first ones stay for the
// serve loop and the launcher of trainers; a GPU's staging lies on the node nearest to its root
// complex.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/topology.h"

namespace tidepool::device {

// How the pages of the pool lie on its nodes.
enum class PoolSpread {
  kInterleave,  // page by page over the nodes
  kPieces,      // each piece on one node, in turn
};
// "interleave", "pieces".
const char* NameOf(PoolSpread spread);

// What configuration asks for.
struct PlaceWishes {
  std::vector<uint32_t> pool_nodes;   // none: by the rules
  std::vector<uint32_t> worker_cpus;  // none: by the rules; fewer than workers: several share one
  PoolSpread spread = PoolSpread::kInterleave;
  uint32_t workers = 0;
  // false: workers run where the system puts them, unless worker_cpus names places.
  bool pin = true;
};

// The CPU of a worker, and the node that it is on.
struct WorkerPlace {
  uint32_t cpu = 0, node = 0;
};

// Where the staging of one GPU lies.
struct StagingPlace {
  Peripheral gpu;
  std::string root;
  uint32_t node = 0;
  bool nearest = false;  // false: the machine does not say what is near, so the pool's first node
};

// The plan.
struct Places {
  std::vector<uint32_t> pool_nodes;  // ascending as wished
  bool bind_pool = false;            // false: one node, so that there is nothing to choose
  PoolSpread spread = PoolSpread::kInterleave;
  std::vector<WorkerPlace> workers;  // by number of the worker; none: where the system puts them
  std::vector<StagingPlace> staging;

  // CPU of each worker, in the order of the workers.
  std::vector<uint32_t> WorkerCpus() const;
  // Size of a piece of a pool of `total` bytes, at most `piece_max`: each node gets the same number
  // of pieces, but for the last.
  uint64_t PieceBytes(uint64_t total, uint64_t piece_max) const;
  // The nodes of piece `piece`: one, or all that are interleaved.
  std::vector<uint32_t> NodesOfPiece(uint64_t piece) const;
};

// Errors: kConfigBadValue (a node or CPU that is not there, or that this process may not use).
Result<Places> PlanPlaces(const Topology& topology, const PlaceWishes& wishes);

}  // namespace tidepool::device
