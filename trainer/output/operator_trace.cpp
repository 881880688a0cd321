#include "trainer/output/operator_trace.h"

#include <algorithm>
#include <cctype>

namespace tidepool::trainer {

std::string LayerOf(const std::string& parameter) {
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = parameter.find('.', begin);
    const std::string part = parameter.substr(begin, end - begin);
    const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    if (!part.empty() && std::all_of(part.begin(), part.end(), is_digit))
      return parameter.substr(0, end);
  }
  const size_t last = parameter.rfind('.');
  return last == std::string::npos ? parameter : parameter.substr(0, last);
}

void OperatorTrace::Clear() {
  operators_.clear();
  open_.clear();
  left_out_ = 0;
}

void OperatorTrace::Begin(const char* name) {
  if (operators_.size() >= most_) {
    open_.push_back(most_);
    ++left_out_;
    return;
  }
  open_.push_back(operators_.size());
  operators_.push_back({.name = name,
                        .from_ns = clock_->NowNs(),
                        .depth = static_cast<uint32_t>(open_.size() - 1),
                        .layer = {}});
}

void OperatorTrace::End() {
  if (open_.empty()) return;  // it began in the previous step
  if (open_.back() < operators_.size()) operators_[open_.back()].to_ns = clock_->NowNs();
  open_.pop_back();
}

void OperatorTrace::Uses(const std::string& parameter, ChunkId chunk) {
  if (open_.empty() || open_.back() >= operators_.size()) return;
  std::vector<ChunkId>& chunks = operators_[open_.back()].chunks;
  if (std::find(chunks.begin(), chunks.end(), chunk) == chunks.end()) chunks.push_back(chunk);

  const std::string layer = LayerOf(parameter);
  for (const size_t number : open_) {
    if (number < operators_.size() && operators_[number].layer.empty())
      operators_[number].layer = layer;
  }
}

std::vector<TraceSlice> OperatorTrace::Layers(const std::vector<int64_t>& bounds) const {
  std::vector<TraceSlice> layers;
  auto bound = bounds.begin();
  bool goes_on = false;
  for (const Operator& each : operators_) {
    if (each.depth > 0 || each.to_ns == 0) continue;
    while (bound != bounds.end() && *bound <= each.from_ns) {
      goes_on = false;
      ++bound;
    }

    const bool other = !each.layer.empty() && (!goes_on || layers.back().name != each.layer);
    if (other) layers.push_back({.name = each.layer, .from_ns = each.from_ns});
    goes_on = goes_on || other;
    if (goes_on) layers.back().to_ns = each.to_ns;
  }
  return layers;
}

}  // namespace tidepool::trainer
