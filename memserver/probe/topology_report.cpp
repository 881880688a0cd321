#include "memserver/probe/topology_report.h"

#include <cstdint>
#include <vector>

#include "base/text/json_writer.h"
#include "base/text/number_list.h"

namespace tidepool::memserver {
namespace {

std::string CpusOf(const device::NumaNode& node) {
  std::vector<uint32_t> cpus;
  for (const device::Cpu& cpu : node.cpus) cpus.push_back(cpu.id);
  return FormatNumberList(cpus);
}

void WriteNodes(const device::Topology& topology, const device::Places& places,
                const PoolFacts* pool, JsonWriter* json) {
  json->Key("nodes").BeginArray();
  for (const device::NumaNode& node : topology.nodes) {
    json->BeginObject()
        .Field("id", node.id)
        .Field("cpus", CpusOf(node))
        .Field("memory_bytes", node.memory_bytes);

    uint64_t bytes = 0, workers = 0;
    for (const NodeShare& share : pool == nullptr ? std::vector<NodeShare>() : pool->nodes)
      bytes += share.node == node.id ? share.bytes : 0;
    for (const device::WorkerPlace& worker : places.workers)
      workers += worker.node == node.id ? 1 : 0;
    json->Field("pool_bytes", bytes).Field("workers", workers).EndObject();
  }
  json->EndArray();
}

void WriteRoots(const device::Topology& topology, JsonWriter* json) {
  json->Key("root_complexes").BeginArray();
  for (const device::RootComplex& root : topology.roots) {
    json->BeginObject().Field("name", root.name).Key("node");
    root.node ? json->Uint(*root.node) : json->Null();

    json->Key("devices").BeginArray();
    for (const device::Peripheral& each : root.peripherals) {
      json->BeginObject()
          .Field("kind", NameOf(each.kind))
          .Field("name", each.name)
          .Field("address", each.address)
          .EndObject();
    }
    json->EndArray().EndObject();
  }
  json->EndArray();
}

}  // namespace

std::string TopologyReport(const device::Topology& topology, const device::Places& places,
                           const PoolFacts* pool) {
  JsonWriter json;
  json.BeginObject().Field("source", topology.source);
  WriteNodes(topology, places, pool, &json);
  WriteRoots(topology, &json);
  json.Key("plan").BeginObject().Key("pool_nodes").BeginArray();
  for (const uint32_t node : places.pool_nodes) json.Uint(node);
  json.EndArray()
      .Field("pool_spread", places.bind_pool ? NameOf(places.spread) : "system")
      .Key("worker_cpus")
      .BeginArray();

  for (const uint32_t cpu : places.WorkerCpus()) json.Uint(cpu);
  json.EndArray().Key("staging").BeginArray();
  for (const device::StagingPlace& stage : places.staging) {
    json.BeginObject()
        .Field("gpu", stage.gpu.address)
        .Field("root_complex", stage.root)
        .Field("node", stage.node);
    json.Field("nearest", stage.nearest).EndObject();
  }
  return json.EndArray().EndObject().EndObject().Take();
}

std::string PlacesLine(const device::Topology& topology, const device::Places& places) {
  const size_t nodes = topology.nodes.size();
  std::string text = std::to_string(nodes) + (nodes == 1 ? " NUMA node" : " NUMA nodes") + " (" +
                     topology.source + "), pool ";
  text += !places.bind_pool
              ? "on it"
              : std::string(places.spread == device::PoolSpread::kInterleave ? "interleaved"
                                                                             : "in pieces") +
                    " on " + FormatNumberList(places.pool_nodes);
  text += places.workers.empty() ? ", workers where the system puts them"
                                 : ", workers on CPUs " + FormatNumberList(places.WorkerCpus());

  for (const device::StagingPlace& stage : places.staging) {
    text += ", staging of " + stage.gpu.address + " on node " + std::to_string(stage.node) +
            (stage.nearest ? "" : " (unknown which is near)");
  }
  return text;
}

}  // namespace tidepool::memserver
