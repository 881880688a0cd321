#include "trainer/output/step_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/text/json_writer.h"

namespace tidepool::trainer {
namespace {

constexpr std::array<std::string_view, 6> kLaneNames{"compute",        "H2D", "D2H", "all-gather",
                                                     "reduce-scatter", "Adam"};

double Micros(int64_t ns) {
  return std::round(static_cast<double>(ns) / 1000);
}

}  // namespace

void StepTrace::BeginStep(uint64_t step) {
  step_ = step;
  first_ += slices_.size();
  slices_.clear();
  marks_.clear();
  if (timer_.begin_step) timer_.begin_step();
  begin_ns_ = clock_->NowNs();
  update_from_ns_ = sealed_ns_;
  seen_ns_ = 0;
}

void StepTrace::Compute(const std::string& name) {
  marks_.push_back({name, clock_->NowNs(), timer_.mark ? timer_.mark() : 0});
}

StepTrace::Id StepTrace::Begin(TraceLane lane, const std::string& name) {
  slices_.push_back({lane, name, clock_->NowNs(), 0});
  return first_ + slices_.size() - 1;
}

void StepTrace::End(Id id) {
  if (id >= first_ && id - first_ < slices_.size()) slices_[id - first_].to_ns = clock_->NowNs();
}

std::vector<StepTrace::Slice> StepTrace::ComputeSlices() const {
  const auto at = [this](size_t i) {
    if (!timer_.seconds_between) return marks_[i].host_ns;
    return marks_[0].host_ns +
           static_cast<int64_t>(timer_.seconds_between(marks_[0].device, marks_[i].device) * 1e9);
  };

  std::vector<Slice> slices;
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    if (!marks_[i].name.empty())
      slices.push_back({TraceLane::kCompute, marks_[i].name, at(i), at(i + 1)});
  }
  return slices;
}

std::string StepTrace::Render(uint32_t rank) const {
  std::vector<Slice> all = ComputeSlices();
  all.insert(all.end(), slices_.begin(), slices_.end());
  if (update_from_ns_ > 0 && seen_ns_ > update_from_ns_) {
    all.push_back({TraceLane::kAdam, "update of step " + std::to_string(step_ - 1), update_from_ns_,
                   seen_ns_});
  }

  const int64_t zero_ns = update_from_ns_ > 0 ? std::min(update_from_ns_, begin_ns_) : begin_ns_;
  JsonWriter json;
  json.BeginObject().Field("displayTimeUnit", "ms").Key("traceEvents").BeginArray();

  const auto name = [&](const char* what, uint64_t lane, std::string_view text) {
    json.BeginObject()
        .Field("ph", "M")
        .Field("name", what)
        .Field("pid", uint64_t{rank})
        .Field("tid", lane);
    json.Key("args").BeginObject().Field("name", text).EndObject().EndObject();
  };

  name("process_name", 0, "rank " + std::to_string(rank) + ", step " + std::to_string(step_));
  for (size_t i = 0; i < kLaneNames.size(); ++i) name("thread_name", i + 1, kLaneNames[i]);

  for (const Slice& slice : all) {
    if (slice.to_ns == 0) continue;
    json.BeginObject().Field("ph", "X").Field("name", slice.name).Field("pid", uint64_t{rank});
    json.Field("tid", static_cast<uint64_t>(slice.lane))
        .Field("ts", Micros(slice.from_ns - zero_ns));
    json.Field("dur", Micros(slice.to_ns - slice.from_ns)).EndObject();
  }
  return json.EndArray().EndObject().Take();
}

}  // namespace tidepool::trainer
