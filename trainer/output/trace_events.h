// TraceEvents: writes slices, lanes and flows in Chrome's JSON trace format ("Trace Event Format";
// ui.perfetto.dev opens it).
//
// One thread; pure. All times are of one clock, in nanoseconds; the output has microseconds since
// `zero_ns`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/text/json_writer.h"
#include "trainer/output/operator_trace.h"

namespace tidepool::trainer {

// An arrow from one slice to another, such as from a fetch to the operator that uses its chunk.
struct TraceFlow {
  std::string name;
  TraceSlice from, to;
};

class TraceEvents {
 public:
  // `process`, `name`: number and name of the traced process.
  TraceEvents(int64_t zero_ns, uint64_t process, const std::string& name);

  // The events added from now on belong to another process, of this number and name.
  void BeginProcess(uint64_t process, const std::string& name);
  // Names a lane in the viewer.
  void NameLane(uint64_t lane, const std::string& name);
  // Adds slices of one lane that may overlap without nesting: each goes to the lane's first free
  // row. Row 0 is the lane itself; row n has the number lane + 100 n and the name "NAME (n + 1)".
  // Requires slices in the order of their begins; sets the lane of each to its row.
  void AddRows(const std::string& name, std::vector<TraceSlice>* slices);
  // Adds a slice; ignores one without an end.
  void Add(const TraceSlice& slice);
  // Adds an arrow from the end of `from` to the begin of `to`. If `to` begins earlier, the arrow
  // leaves `from` at that time. Requires that both slices have been added.
  void Add(const TraceFlow& flow);
  // Returns the complete JSON text. Call it once, last.
  std::string Take();

 private:
  double Micros(int64_t ns) const;
  void Name(const char* what, uint64_t lane, const std::string& text);
  void AddPoint(const char* kind, const TraceFlow& flow, const TraceSlice& slice, int64_t at_ns);

  const int64_t zero_ns_;
  const uint64_t first_process_;
  uint64_t process_;
  uint64_t flows_ = 0;
  JsonWriter json_;
};

}  // namespace tidepool::trainer
