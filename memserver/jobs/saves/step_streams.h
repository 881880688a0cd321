// StepStreams: begins and ends the streams of steps that ranks ask for, for their log.
//
// One thread (the serve loop); a reading thread of the checkpoint thread copies (step_stream.h). A
// stream begins behind the sealed version and goes on until its rank has left: what is sealed by
// then is still copied. Its gate holds the update of each chunk of a sealed step until the chunk's
// gradients were copied. A stream that fails opens its gate: no step waits for it any more.
#pragma once

#include <cstdint>

#include "memserver/checkpoint/save_request.h"
#include "memserver/jobs/desk_context.h"

namespace tidepool::memserver {

class StepStreams {
 public:
  // Streams of a user, and of all: each has a thread, and 16 MiB.
  static constexpr size_t kOfUser = 8, kOfAll = 64;

  explicit StepStreams(const DeskContext& context) : context_(context) {}

  // A rank asks for the steps behind the sealed version. The answer is a StepsDone, at the end.
  void Request(StreamSteps event);
  // The rank is gone: its stream ends behind the last sealed step.
  void Forget(ConnectionId connection);
  // Notes a chunk that was copied, or the end of a stream.
  void End(const SaveResult& result);

 private:
  Status Check(const SessionSlot* slot, const StreamSteps& event) const;

  const DeskContext context_;
};

}  // namespace tidepool::memserver
