// RunNote: what identifies a run beside its job's specification: data, their order, and the
// schedule of learning rates. memserver keeps the first rank's note with the job
// (docs/decisions/036-what-a-run-is-known-by.md); every rank compares its own with it, and with
// rank 0's.
//
// Any thread; pure functions, torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/data/corpus_facts.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

inline constexpr size_t kRunNoteBytesMax = 480;  // that memserver keeps

// What a run reads.
struct NotedInputs {
  uint64_t context = 0;  // tokens of a sequence
  CorpusFacts facts;
  std::string from;  // fingerprint of the weights of --from; empty: there are none
};
// Lines of "key value".
std::string MakeRunNote(const RunOptions& options, const NotedInputs& inputs);

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

// A rank and the job in which it has a slot, which is sealed at `version`.
struct NotedSlot {
  std::string job;
  Rank rank = 0;
  Version version = 0;
};
// The rank has the note `own`, the job keeps `kept` (empty: nothing): that of the rank which came
// first, when the job began.
// Errors: kJobMismatch with the rank, and all that changes the order, before and now.
Status CheckRunNote(const std::string& kept, const std::string& own, const NotedSlot& slot);
// The rank has the note `own`, and has met rank 0, which has the note `first`. Ranks of one run
// agree on all that a note says, also where the server keeps none yet.
// Errors: kJobMismatch with both ranks, and all that differs.
Status CheckRankNote(const std::string& first, const std::string& own, const NotedSlot& slot);
// The same told to the other ranks: which ranks were refused so, 1 in `refused` each. Errors:
// kJobMismatch (names them).
Status CheckOtherRanks(std::span<const double> refused, const std::string& job);
// One line for people each, for what differs and does not matter to the order: "--lr 0.0003 ->
// 0.001: goes on with the new one".
std::vector<std::string> DescribeChanges(const std::string& kept, const std::string& own);

// The cursor that `version` steps of this run have come to, in sequences, from the one that the
// job's step record has. Releases before notes counted micro-batches. Errors: kJobMismatch (steps
// of another --batch were taken).
Result<uint64_t> CursorInSequences(uint64_t kept, Version version, const RunOptions& options);

}  // namespace tidepool::trainer
