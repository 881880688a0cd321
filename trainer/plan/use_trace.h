// UseTrace: which parameters the operators of one forward and backward read, and when gradients
// arrive: the order of use before a layout exists; and its conversion to an AccessSchedule.
//
// Any thread; values and a pure function. Operators and gradients become moments by the rules of
// the rCache (trainer/cache/parameter_cache.h); a test compares the order predicted here with a
// run's recording, moment by moment.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/access_schedule.h"

namespace tidepool::trainer {

// One event of the trace.
struct UseEvent {
  enum class Kind : uint8_t {
    kBegin,     // an operator that reads `notes` begins; operators nest
    kEnd,       // the innermost open operator ends
    kGradient,  // the gradient of notes[0] is complete
  };
  Kind kind = Kind::kBegin;
  std::vector<uint32_t> notes;  // indices of the ParameterNotes from which the layout was made
  friend bool operator==(const UseEvent&, const UseEvent&) = default;
};

struct UseTrace {
  std::vector<UseEvent> events;  // of one micro-batch
};

// The largest note plus one; 0 without notes.
uint32_t NotesOf(const UseTrace& trace);
// Notes by first read, followed by the notes below `notes` that no operator reads, in ascending
// order.
std::vector<uint32_t> FirstUses(const UseTrace& trace, uint32_t notes);
// By note, whether an operator reads it after its gradient, or a second gradient arrives: then its
// gradient must not overwrite it (ParameterNote::multi_use). Several uses in forward do not count:
// LibTorch sums the gradient before delivering it.
std::vector<bool> UsedBehindGradient(const UseTrace& trace, uint32_t notes);

// The order of a training step of `rank` in chunks. Requires a trace of the model for which the
// layout was made.
AccessSchedule ForeseeOrder(const UseTrace& trace, const ChunkLayout& layout, Rank rank,
                            uint32_t micro_batches);
// The same for a step whose gradients do not go to the rCache: operators only.
AccessSchedule ForeseeUses(const UseTrace& trace, const ChunkLayout& layout, Rank rank);

}  // namespace tidepool::trainer
