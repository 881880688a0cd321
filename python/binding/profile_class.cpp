#include "python/binding/profile_class.h"

#include <stdexcept>
#include <unordered_set>

#include <torch/library.h>

#include "base/text/json_writer.h"
#include "trainer/plan/use_trace.h"

namespace tidepool::python {
namespace {

Profile* counting = nullptr;

void Require(bool true_here, const char* call) {
  if (!true_here) throw std::runtime_error(std::string(call) + " was called out of order");
}

uint32_t CountRead(const trainer::UseTrace& trace) {
  std::unordered_set<uint32_t> read;
  for (const trainer::UseEvent& event : trace.events) {
    if (event.kind == trainer::UseEvent::Kind::kBegin)
      read.insert(event.notes.begin(), event.notes.end());
  }
  return static_cast<uint32_t>(read.size());
}

}  // namespace

Profile::Profile() {
  Require(counting == nullptr, "Profile");
  bytes_ = std::make_unique<trainer::MetaBytes>();
  counting = this;
}

Profile::~Profile() {
  Stop();
}

void Profile::ModelMade() {
  Require(bytes_ != nullptr && recorder_ == nullptr, "model_made");
  recorder_ = std::make_unique<trainer::StepRecorder>(bytes_.get());
}

void Profile::Watch(const std::vector<at::Tensor>& parameters, const std::vector<int64_t>& stay) {
  Require(recorder_ != nullptr && parameters_ == 0, "watch");
  std::vector<bool> stays(parameters.size(), false);
  for (const int64_t note : stay) stays.at(static_cast<size_t>(note)) = true;
  parameters_ = static_cast<uint32_t>(parameters.size());
  recorder_->Watch(parameters, stays);
}

void Profile::OperatorEnded() {
  if (recorder_ != nullptr) recorder_->OperatorEnded();
}

std::string Profile::Finish() {
  Require(recorder_ != nullptr && parameters_ > 0 && !finished_, "finish");
  step_ = recorder_->Finish();
  finished_ = true;

  JsonWriter json;
  json.BeginObject().Key("order").BeginArray();
  for (const uint32_t note : trainer::FirstUses(step_.trace, parameters_)) json.Uint(note);
  json.EndArray().Field("read", CountRead(step_.trace)).Key("again").BeginArray();
  const std::vector<bool> again = trainer::UsedBehindGradient(step_.trace, parameters_);
  for (uint32_t note = 0; note < parameters_; ++note) {
    if (again[note]) json.Uint(note);
  }

  json.EndArray().Field("activation_bytes", step_.activation_bytes);
  json.Field("buffer_bytes", step_.buffer_bytes).Field("arithmetic", step_.arithmetic);
  return json.Field("operators", step_.operators).EndObject().Take();
}

void Profile::ForgetSizes() {
  step_.arithmetic = 0;
  step_.activation_bytes = step_.buffer_bytes = 0;
}

void Profile::Stop() {
  if (bytes_ == nullptr) return;
  recorder_.reset();
  bytes_.reset();
  counting = nullptr;
}

const trainer::StepProfile& Profile::step() const {
  Require(finished_, "foresee");
  return step_;
}

void DefineProfile(torch::Library* library) {
  library->class_<Profile>("Profile")
      .def(torch::init<>())
      .def("model_made", &Profile::ModelMade)
      .def("watch", &Profile::Watch)
      .def("operator_ended", &Profile::OperatorEnded)
      .def("finish", &Profile::Finish)
      .def("forget_sizes", &Profile::ForgetSizes)
      .def("stop", &Profile::Stop);
}

}  // namespace tidepool::python
