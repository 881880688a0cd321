#include "trainer/output/step_trace.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "trainer/output/server_lanes.h"
#include "trainer/output/trace_events.h"

namespace tidepool::trainer {
namespace {

constexpr std::array<const char*, 7> kLaneNames{
    "compute", "H2D", "D2H", "all-gather", "reduce-scatter", "Adam", "layers and operators"};

constexpr uint64_t Number(TraceLane lane) {
  return static_cast<uint64_t>(lane);
}

// The operators that use each chunk, in the order of their begins.
using Uses = std::map<int64_t, std::vector<TraceSlice>>;

Uses UsesOf(const std::vector<OperatorTrace::Operator>& operators) {
  Uses uses;
  for (const OperatorTrace::Operator& each : operators) {
    if (each.to_ns == 0) continue;
    for (const ChunkId chunk : each.chunks) {
      uses[chunk].push_back(
          {Number(TraceLane::kOperators), each.name, each.from_ns, each.to_ns, chunk});
    }
  }
  return uses;
}

// The flow of a copy: from a fetch to the first use of its chunk that ends after the fetch begins,
// or to a gradient's transfer from the last use that begins before it.
std::optional<TraceFlow> FlowOf(const TraceSlice& copy, bool out, const Uses& uses) {
  const auto found = uses.find(copy.chunk);
  if (copy.to_ns == 0 || found == uses.end()) return {};
  std::optional<TraceFlow> flow;
  for (const TraceSlice& use : found->second) {
    if (out && use.from_ns <= copy.from_ns) flow = TraceFlow{"gradient", use, copy};
    if (!out && !flow && use.to_ns >= copy.from_ns) flow = TraceFlow{"fetch", copy, use};
  }
  // A chunk fetched for the next step has no later use in this one.
  return flow;
}

}  // namespace

void StepTrace::BeginStep(uint64_t step) {
  step_ = step;
  first_ += slices_.size();
  slices_.clear();
  marks_.clear();
  server_.clear();
  operators_.Clear();
  if (timer_.begin_step) timer_.begin_step();
  begin_ns_ = clock_->NowNs();
  update_from_ns_ = sealed_ns_;
  seen_ns_ = 0;
}

void StepTrace::Compute(const std::string& name) {
  marks_.push_back({name, clock_->NowNs(), timer_.mark ? timer_.mark() : 0});
}

StepTrace::Id StepTrace::Begin(TraceLane lane, const std::string& name,
                               std::optional<ChunkId> chunk) {
  slices_.push_back({Number(lane), name, clock_->NowNs(), 0, chunk ? int64_t{*chunk} : -1});
  return first_ + slices_.size() - 1;
}

void StepTrace::End(Id id) {
  if (id >= first_ && id - first_ < slices_.size()) slices_[id - first_].to_ns = clock_->NowNs();
}

std::vector<TraceSlice> StepTrace::ComputeSlices() const {
  const auto at = [this](size_t i) {
    if (!timer_.seconds_between) return marks_[i].host_ns;
    return marks_[0].host_ns +
           static_cast<int64_t>(timer_.seconds_between(marks_[0].device, marks_[i].device) * 1e9);
  };

  std::vector<TraceSlice> slices;
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    if (!marks_[i].name.empty())
      slices.push_back({Number(TraceLane::kCompute), marks_[i].name, at(i), at(i + 1)});
  }
  return slices;
}

// Adds three nested levels: forward and backward of each micro-batch, layers, operators.
void StepTrace::AddOperators(TraceEvents* events) const {
  std::vector<int64_t> bounds;
  for (const Mark& mark : marks_) bounds.push_back(mark.host_ns);
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    if (!marks_[i].name.empty() && !operators_.operators().empty())
      events->Add({Number(TraceLane::kOperators), marks_[i].name, bounds[i], bounds[i + 1]});
  }

  for (TraceSlice& layer : operators_.Layers(bounds)) {
    layer.lane = Number(TraceLane::kOperators);
    events->Add(layer);
  }
  for (const OperatorTrace::Operator& each : operators_.operators())
    events->Add({Number(TraceLane::kOperators), each.name, each.from_ns, each.to_ns});
}

int64_t StepTrace::from_ns() const {
  return update_from_ns_ > 0 ? std::min(update_from_ns_, begin_ns_) : begin_ns_;
}

std::string StepTrace::Render(uint32_t rank) const {
  const std::string more = operators_.left_out() > 0
                               ? ", " + std::to_string(operators_.left_out()) + " operators more"
                               : "";
  TraceEvents events(from_ns(), rank,
                     "rank " + std::to_string(rank) + ", step " + std::to_string(step_) + more);
  for (size_t i = 0; i < kLaneNames.size(); ++i) events.NameLane(i + 1, kLaneNames[i]);
  for (const TraceSlice& slice : ComputeSlices()) events.Add(slice);

  const Uses uses = UsesOf(operators_.operators());
  std::vector<TraceFlow> flows;
  for (size_t lane = Number(TraceLane::kH2D); lane < Number(TraceLane::kAdam); ++lane) {
    std::vector<TraceSlice> own;
    std::copy_if(slices_.begin(), slices_.end(), std::back_inserter(own),
                 [lane](const TraceSlice& slice) { return slice.lane == lane; });
    events.AddRows(kLaneNames[lane - 1], &own);

    if (lane > Number(TraceLane::kD2H)) continue;
    for (const TraceSlice& copy : own) {
      const auto flow = FlowOf(copy, lane == Number(TraceLane::kD2H), uses);
      if (flow) flows.push_back(*flow);
    }
  }

  if (update_from_ns_ > 0 && seen_ns_ > update_from_ns_) {
    events.Add({Number(TraceLane::kAdam), "update of step " + std::to_string(step_ - 1),
                update_from_ns_, seen_ns_});
  }
  AddOperators(&events);
  for (const TraceFlow& flow : flows) events.Add(flow);
  AddServerLanes(server_, &events);
  AddPlannedLanes(plan_, begin_ns_, &events);
  return events.Take();
}

}  // namespace tidepool::trainer
