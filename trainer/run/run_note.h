// RunNote: what identifies a run beside its job's specification: data, their order, and the
// schedule of learning rates. memserver keeps the first rank's note with the job
// (docs/decisions/036-what-a-run-is-known-by.md); every rank compares its own with it, and with
// rank 0's.
//
// Any thread; pure functions, torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/data/corpus_facts.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

inline constexpr size_t kRunNoteBytesMax = 480;  // that memserver keeps

// Lines of "key value". `context`: tokens of a sequence in this run.
std::string MakeRunNote(const RunOptions& options, uint64_t context, const CorpusFacts& facts);

// What two notes say differently.
struct NoteDifference {
  std::string what;  // "--batch"
  std::string before, now;
  // The run cannot go on with it: which sequences come next, or what the weights mean.
  bool changes_order = false;
};
// What only one of the notes speaks of is no difference: programs of other releases know other
// keys.
std::vector<NoteDifference> CompareRunNotes(const std::string& kept, const std::string& own);

// A rank with the note `own` has a seat in `job`, which is sealed at `version` and keeps `kept`
// (empty: nothing).
// Errors: kJobMismatch with all that changes the order, before and now.
Status CheckRunNote(const std::string& kept, const std::string& own, const std::string& job,
                    Version version);
// One line for people each, for what differs and does not matter to the order: "--lr 0.0003 ->
// 0.001: goes on with the new one".
std::vector<std::string> DescribeChanges(const std::string& kept, const std::string& own);

// The cursor that `version` steps of this run have come to, in sequences, from the one that the
// job's step record has. Releases before notes counted micro-batches. Errors: kJobMismatch (steps
// of another --batch were taken).
Result<uint64_t> CursorInSequences(uint64_t kept, Version version, const RunOptions& options);

}  // namespace tidepool::trainer
