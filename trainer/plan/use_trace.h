// UseTrace: which parameters the operators of one forward and backward read, and where gradients
// come: an order of use before there is a layout; and the AccessSchedule that it becomes with one.
//
// Any thread; values and a pure function. The rules by which operators and gradients become moments
// are those of the rCache (trainer/cache/parameter_cache.h); a test compares what is foreseen here
// with what a run records, moment by moment.
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
    kEnd,       // the last one that began and has not ended ends
    kGradient,  // the gradient of notes[0] is complete
  };
  Kind kind = Kind::kBegin;
  std::vector<uint32_t> notes;  // indices of the ParameterNotes that the layout was made of
  friend bool operator==(const UseEvent&, const UseEvent&) = default;
};

struct UseTrace {
  std::vector<UseEvent> events;  // of one micro-batch
};

// One more than the largest note; 0 for none.
uint32_t NotesOf(const UseTrace& trace);
// Notes in the order in which operators first read them, those below `notes` that none reads behind
// them in their own order.
std::vector<uint32_t> FirstUses(const UseTrace& trace, uint32_t notes);
// By note, whether an operator reads it behind its gradient, or a second gradient comes: then its
// gradient must not lie over it (ParameterNote::multi_use). A parameter that several operators of
// forward use is none of these: LibTorch adds its gradient up before it comes.
std::vector<bool> UsedBehindGradient(const UseTrace& trace, uint32_t notes);

// The order of a training step of `rank` in chunks. Requires a trace of the model that the layout
// was made for.
AccessSchedule ForeseeOrder(const UseTrace& trace, const ChunkLayout& layout, Rank rank,
                            uint32_t micro_batches);
// The same of a whole step whose gradients do not go to the rCache: its operators alone.
AccessSchedule ForeseeUses(const UseTrace& trace, const ChunkLayout& layout, Rank rank);

}  // namespace tidepool::trainer
