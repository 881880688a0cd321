#include "trainer/output/trace_events.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace tidepool::trainer {
namespace {

constexpr uint64_t kRowStride = 100;

}  // namespace

TraceEvents::TraceEvents(int64_t zero_ns, uint64_t process, const std::string& name)
    : zero_ns_(zero_ns), first_process_(process), process_(process) {
  json_.BeginObject().Field("displayTimeUnit", "ms").Key("traceEvents").BeginArray();
  Name("process_name", 0, name);
}

void TraceEvents::BeginProcess(uint64_t process, const std::string& name) {
  process_ = process;
  Name("process_name", 0, name);
}

double TraceEvents::Micros(int64_t ns) const {
  return std::round(static_cast<double>(ns - zero_ns_) / 1000);
}

void TraceEvents::Name(const char* what, uint64_t lane, const std::string& text) {
  json_.BeginObject()
      .Field("ph", "M")
      .Field("name", what)
      .Field("pid", process_)
      .Field("tid", lane);
  json_.Key("args").BeginObject().Field("name", text).EndObject().EndObject();
}

void TraceEvents::NameLane(uint64_t lane, const std::string& name) {
  Name("thread_name", lane, name);
}

void TraceEvents::AddRows(const std::string& name, std::vector<TraceSlice>* slices) {
  std::vector<int64_t> free_from;  // end of each row's last slice
  for (TraceSlice& slice : *slices) {
    if (slice.to_ns == 0) continue;
    const auto row = std::find_if(free_from.begin(), free_from.end(),
                                  [&](int64_t from) { return from <= slice.from_ns; });
    const auto number = static_cast<uint64_t>(row - free_from.begin());
    if (row == free_from.end()) {
      free_from.push_back(0);
      if (number > 0)
        NameLane(slice.lane + kRowStride * number, name + " (" + std::to_string(number + 1) + ")");
    }

    free_from[number] = slice.to_ns;
    slice.lane += kRowStride * number;
    Add(slice);
  }
}

void TraceEvents::Add(const TraceSlice& slice) {
  if (slice.to_ns == 0) return;
  json_.BeginObject().Field("ph", "X").Field("name", slice.name).Field("pid", process_);
  json_.Field("tid", slice.lane).Field("ts", Micros(slice.from_ns));
  json_.Field("dur", Micros(slice.to_ns) - Micros(slice.from_ns)).EndObject();
}

void TraceEvents::AddPoint(const char* kind, const TraceFlow& flow, const TraceSlice& slice,
                           int64_t at_ns) {
  json_.BeginObject().Field("ph", kind).Field("name", flow.name).Field("cat", "chunk");
  // Perfetto takes hexadecimal numbers alone. The first process makes the id unique in a file that
  // merges the traces of several ranks.
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.begin(), digits.end(), first_process_ << 32 | flows_, 16);
  json_.Field("id", "0x" + std::string(digits.begin(), end.ptr));
  json_.Field("pid", process_).Field("tid", slice.lane).Field("ts", Micros(at_ns));
  if (*kind == 'f') json_.Field("bp", "e");  // binds the end to the enclosing slice
  json_.EndObject();
}

void TraceEvents::Add(const TraceFlow& flow) {
  const int64_t leaves_ns = std::max(flow.from.from_ns, std::min(flow.from.to_ns, flow.to.from_ns));
  ++flows_;
  AddPoint("s", flow, flow.from, leaves_ns);
  AddPoint("f", flow, flow.to, std::max(leaves_ns, flow.to.from_ns));
}

std::string TraceEvents::Take() {
  return json_.EndArray().EndObject().Take();
}

}  // namespace tidepool::trainer
