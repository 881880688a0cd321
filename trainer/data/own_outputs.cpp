#include "trainer/data/own_outputs.h"

#include <filesystem>
#include <system_error>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

namespace fs = std::filesystem;

// Absolute, with links resolved as far as the path exists; empty on a system error.
std::string Canonical(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(fs::absolute(path, error), error);
  std::string text = error ? std::string() : canonical.lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

std::string WithSlash(std::string path) {
  return path.ends_with('/') ? path : path + "/";
}

bool IsReport(const std::string& file) {
  return file.starts_with("metrics.") || file.find("tfevents") != std::string::npos ||
         file == "unfinished.job" || file.starts_with("base.names");
}

bool IsWeights(const std::string& file) {
  return file == "config.json" || file.find(".safetensors") != std::string::npos;
}

}  // namespace

OwnOutputs::OwnOutputs(const std::string& folder, const OutputPlaces& places)
    : folder_(WithSlash(Canonical(folder))) {
  Add(places.reports, IsReport);
  Add(places.weights, IsWeights);
  if (!places.trace.empty()) trace_ = Canonical(places.trace);
}

void OwnOutputs::Add(const std::string& path, bool (*has_name)(const std::string& file)) {
  if (path.empty()) return;
  const std::string place = WithSlash(Canonical(path));
  places_.push_back({place, folder_.starts_with(place), has_name});
}

bool OwnOutputs::Has(const std::string& relative) const {
  if (TP_PLANTED("data.own_outputs_listed")) return false;
  const std::string file = folder_ + relative;
  if (file == trace_) return true;
  for (const Place& place : places_) {
    if (!file.starts_with(place.path)) continue;
    const std::string name = file.substr(place.path.size());
    if (!place.around || (name.find('/') == std::string::npos && place.has_name(name))) return true;
  }
  return false;
}

}  // namespace tidepool::trainer
