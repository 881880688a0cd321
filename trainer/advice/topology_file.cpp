#include "trainer/advice/topology_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include <boost/json.hpp>

#include "base/units.h"
#include "trainer/plan/pipeline/stage_mapping.h"

namespace tidepool::trainer {
namespace {

Status BadTopology(const std::string& file, const std::string& why) {
  return Status(ErrorId::kConfigBadValue, file + ": " + why)
      .Where("--topology " + file)
      .Fix("docs/planning.md (\"Pipelines over GPUs\") has the form of the file");
}

// A number above 0; nullopt for any other value.
std::optional<double> NumberIn(const boost::json::object& object, const char* key) {
  const boost::json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  boost::json::error_code error;
  const double number = value->to_number<double>(error);
  if (error || !std::isfinite(number) || number <= 0) return std::nullopt;
  return number;
}

std::string StringIn(const boost::json::object& object, const char* key) {
  const boost::json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

Result<GpuTopology> ComplexesIn(const std::string& file, const boost::json::object& object) {
  const boost::json::value* list = object.if_contains("root_complexes");
  if (list == nullptr || !list->is_array() || list->get_array().empty())
    return BadTopology(file, "there is no array \"root_complexes\" with an entry for each");

  GpuTopology topology;
  for (const boost::json::value& value : list->get_array()) {
    if (!value.is_object()) return BadTopology(file, "an entry of root_complexes is no object");
    const boost::json::object& entry = value.get_object();
    const std::optional<double> gpus = NumberIn(entry, "gpus"), rate = NumberIn(entry, "gb_per_s");
    if (!gpus || *gpus != std::floor(*gpus) || *gpus > kMappedGpusMax) {
      return BadTopology(file, "\"gpus\" of a root complex must be a whole number from 1 to " +
                                   std::to_string(kMappedGpusMax));
    }
    if (!rate) return BadTopology(file, "\"gb_per_s\" of a root complex must be a number above 0");
    topology.complexes.push_back({static_cast<uint32_t>(*gpus), *rate});
  }

  if (topology.gpus() <= kMappedGpusMax) return topology;
  return BadTopology(file, std::to_string(topology.gpus()) + " GPUs are more than the " +
                               std::to_string(kMappedGpusMax) + " that stages can be mapped to");
}

}  // namespace

Result<PipelineMachine> ReadTopology(const std::string& file) {
  std::ifstream in(file);
  std::stringstream text;
  // Inserting the buffer of an empty file fails, so do not try.
  if (in.is_open() && in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (!in.is_open() || in.bad() || text.fail()) {
    return Status(ErrorId::kConfigUnreadable, "cannot read " + file + ": " + std::strerror(errno))
        .Where("--topology " + file)
        .Fix(
            "give a file that describes the GPUs, or leave --topology out: then the paper's "
            "machine is taken");
  }

  boost::json::error_code error;
  const boost::json::value value = boost::json::parse(text.str(), error);
  if (error || !value.is_object()) return BadTopology(file, "it is not a JSON object");
  const boost::json::object& object = value.get_object();
  PipelineMachine machine;
  TP_ASSIGN_OR_RETURN(machine.topology, ComplexesIn(file, object));

  const std::optional<double> tflops = NumberIn(object, "tflops");
  if (!tflops) return BadTopology(file, "\"tflops\" must be a number above 0");
  machine.tflops = *tflops;
  Result<uint64_t> memory = ParseSize(StringIn(object, "gpu_memory"));
  if (!memory.ok() || *memory == 0)
    return BadTopology(file, "\"gpu_memory\" must be a size like \"24GiB\"");
  machine.gpu_bytes = *memory;

  machine.origin = StringIn(object, "origin");
  if (machine.origin.empty()) return BadTopology(file, "\"origin\" does not say what was measured");
  return machine;
}

PipelineMachine MachineOfThePaper(uint32_t gpus) {
  constexpr uint32_t kGpusOfComplex = 4;
  PipelineMachine machine{.topology = {}, .tflops = 40, .gpu_bytes = 24 * kGiB, .origin = {}};
  machine.origin =
      "nothing is known of yours (--topology FILE): GeForce RTX 3090 Ti as the Mobius "
      "paper prints them";

  for (uint32_t left = gpus; left > 0;) {
    const uint32_t here = std::min(left, kGpusOfComplex);
    machine.topology.complexes.push_back({here, 16});
    left -= here;
  }
  return machine;
}

}  // namespace tidepool::trainer
