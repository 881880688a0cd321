// TraceEvents: slices, lanes and flows in the JSON form of Chrome's tracing ("Trace Event Format";
// ui.perfetto.dev opens it).
//
// One thread; pure. All times are of one clock, in nanoseconds, and are written in microseconds
// from `zero_ns` on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/text/json_writer.h"
#include "trainer/output/operator_trace.h"

namespace tidepool::trainer {

// What leads from one slice to another: a fetch to the operator that uses its chunk.
struct TraceFlow {
  std::string name;
  TraceSlice from, to;
};

class TraceEvents {
 public:
  // `process`: number and name of what is traced.
  TraceEvents(int64_t zero_ns, uint64_t process, const std::string& name);

  // What viewers write before a lane.
  void NameLane(uint64_t lane, const std::string& name);
  // Slices of one lane that overlap without nesting do not belong into one: each goes to the first
  // of a lane's rows where it has room. Row 0 is the lane, row n has the number lane + 100 n and
  // the name "NAME (n + 1)". Slices are in the order in which they began; each gets its row.
  void AddRows(const std::string& name, std::vector<TraceSlice>* slices);
  void Add(const TraceSlice& slice);
  // An arrow from the end of one slice, or where the other one begins if that is earlier, to the
  // other one's begin, or where the first ends. Both must have been added.
  void Add(const TraceFlow& flow);
  std::string Take();

 private:
  double Micros(int64_t ns) const;
  void Name(const char* what, uint64_t lane, const std::string& text);
  void AddPoint(const char* kind, const TraceFlow& flow, const TraceSlice& slice, int64_t at_ns);

  const int64_t zero_ns_;
  const uint64_t process_;
  uint64_t flows_ = 0;
  JsonWriter json_;
};

}  // namespace tidepool::trainer
