#include "device/places.h"

#include <algorithm>
#include <utility>

#include "base/text/number_list.h"
#include "base/units.h"

namespace tidepool::device {
namespace {

std::vector<uint32_t> NodeIds(const Topology& topology, bool with_cpus) {
  std::vector<uint32_t> ids;
  for (const NumaNode& node : topology.nodes) {
    if (node.memory_bytes > 0 && (!with_cpus || !node.cpus.empty())) ids.push_back(node.id);
  }
  return ids;
}

Result<std::vector<uint32_t>> PoolNodes(const Topology& topology,
                                        const std::vector<uint32_t>& wished) {
  const std::vector<uint32_t> there = NodeIds(topology, false);
  for (const uint32_t node : wished) {
    if (std::find(there.begin(), there.end(), node) != there.end()) continue;
    return Status(ErrorId::kConfigBadValue,
                  "the pool cannot lie on NUMA node " + std::to_string(node))
        .Why("nodes with memory are " + FormatNumberList(there) + " (" + topology.source + ")");
  }
  if (!wished.empty()) return wished;
  const std::vector<uint32_t> with_cpus = NodeIds(topology, true);
  if (!with_cpus.empty()) return with_cpus;
  // Some containers hide the amount of memory.
  return there.empty() ? std::vector<uint32_t>{topology.nodes.front().id} : there;
}

// The CPUs of a node in the order for workers, last first. `siblings` false: the first of each
// core, true: the others. Leaves out `kept`.
std::vector<uint32_t> InOrder(const NumaNode& node, bool siblings, uint32_t kept) {
  std::vector<uint32_t> order;
  for (auto cpu = node.cpus.rbegin(); cpu != node.cpus.rend(); ++cpu) {
    const auto before = [&](const Cpu& other) {
      return other.core == cpu->core && other.id < cpu->id;
    };
    const bool sibling = std::any_of(node.cpus.begin(), node.cpus.end(), before);
    if (sibling == siblings && cpu->id != kept) order.push_back(cpu->id);
  }
  return order;
}

// Takes one CPU of each node in turn until `workers` have a CPU or no node has one left.
void GoRound(const std::vector<const NumaNode*>& nodes, bool siblings, uint32_t kept,
             uint32_t workers, std::vector<WorkerPlace>* places) {
  std::vector<std::vector<uint32_t>> free;
  size_t longest = 0;
  for (const NumaNode* node : nodes) {
    free.push_back(InOrder(*node, siblings, kept));
    longest = std::max(longest, free.back().size());
  }

  for (size_t turn = 0; turn < longest; ++turn) {
    for (size_t i = 0; i < nodes.size() && places->size() < workers; ++i) {
      if (turn < free[i].size()) places->push_back({free[i][turn], nodes[i]->id});
    }
  }
}

std::vector<WorkerPlace> WorkersByRule(const Topology& topology,
                                       const std::vector<uint32_t>& pool_nodes, uint32_t workers) {
  size_t cpus = 0;
  uint32_t kept = UINT32_MAX;  // the first CPU is reserved for the serve loop
  std::vector<const NumaNode*> near, far;
  for (const uint32_t id : pool_nodes) near.push_back(topology.Find(id));
  for (const NumaNode& node : topology.nodes) {
    cpus += node.cpus.size();
    if (!node.cpus.empty()) kept = std::min(kept, node.cpus.front().id);
    if (std::find(near.begin(), near.end(), &node) == near.end()) far.push_back(&node);
  }
  // No CPU would be left for the loop: pinned workers would only block it.
  if (cpus <= workers) return {};
  std::vector<WorkerPlace> places;
  for (const auto* nodes : {&near, &far}) {
    for (const bool siblings : {false, true}) GoRound(*nodes, siblings, kept, workers, &places);
  }
  return places;
}

Result<std::vector<WorkerPlace>> Workers(const Topology& topology, const PlaceWishes& wishes,
                                         const std::vector<uint32_t>& pool_nodes) {
  if (wishes.worker_cpus.empty())
    return wishes.pin ? WorkersByRule(topology, pool_nodes, wishes.workers)
                      : std::vector<WorkerPlace>();

  std::vector<WorkerPlace> places;
  for (uint32_t worker = 0; worker < wishes.workers; ++worker) {
    const uint32_t cpu = wishes.worker_cpus[worker % wishes.worker_cpus.size()];
    const NumaNode* node = topology.NodeOfCpu(cpu);

    if (node == nullptr) {
      std::vector<uint32_t> there;
      for (const NumaNode& each : topology.nodes) {
        for (const Cpu& one : each.cpus) there.push_back(one.id);
      }
      return Status(ErrorId::kConfigBadValue, "no worker can run on CPU " + std::to_string(cpu))
          .Why("CPUs of this process are " + FormatNumberList(there) + " (" + topology.source +
               ")");
    }

    places.push_back({cpu, node->id});
  }
  return places;
}

std::vector<StagingPlace> Staging(const Topology& topology,
                                  const std::vector<uint32_t>& pool_nodes) {
  std::vector<StagingPlace> staging;
  for (const RootComplex& root : topology.roots) {
    const NumaNode* near = root.node ? topology.Find(*root.node) : nullptr;
    const bool nearest = near != nullptr && near->memory_bytes > 0;

    for (const Peripheral& each : root.peripherals) {
      if (each.kind == PeripheralKind::kGpu)
        staging.push_back({each, root.name, nearest ? near->id : pool_nodes.front(), nearest});
    }
  }
  return staging;
}

}  // namespace

const char* NameOf(PoolSpread spread) {
  return spread == PoolSpread::kInterleave ? "interleave" : "pieces";
}

std::vector<uint32_t> Places::WorkerCpus() const {
  std::vector<uint32_t> cpus;
  for (const WorkerPlace& worker : workers) cpus.push_back(worker.cpu);
  return cpus;
}

uint64_t Places::PieceBytes(uint64_t total, uint64_t piece_max) const {
  if (spread == PoolSpread::kInterleave || pool_nodes.size() < 2) return piece_max;
  return std::min(piece_max, RoundUp(DivideUp(total, pool_nodes.size()), kHugePageBytes));
}

std::vector<uint32_t> Places::NodesOfPiece(uint64_t piece) const {
  if (spread == PoolSpread::kInterleave || pool_nodes.empty()) return pool_nodes;
  return {pool_nodes[piece % pool_nodes.size()]};
}

Result<Places> PlanPlaces(const Topology& topology, const PlaceWishes& wishes) {
  Places places;
  places.spread = wishes.spread;
  TP_ASSIGN_OR_RETURN(places.pool_nodes, PoolNodes(topology, wishes.pool_nodes));
  places.bind_pool = topology.nodes.size() > 1 || !wishes.pool_nodes.empty();
  TP_ASSIGN_OR_RETURN(places.workers, Workers(topology, wishes, places.pool_nodes));
  places.staging = Staging(topology, places.pool_nodes);
  return places;
}

}  // namespace tidepool::device
