// RunNote: identifies a run beyond its job's specification: data, their order, and the learning
// rate schedule. memserver keeps the first rank's note with the job
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

inline constexpr size_t kRunNoteBytesMax = 480;  // limit of memserver

// The inputs that a run reads.
struct NotedInputs {
  uint64_t context = 0;  // tokens per sequence
  CorpusFacts facts;
  std::string from;      // fingerprint of the weights of --from; empty: none
  std::string moe = {};  // NoteOfExperts (trainer/run/expert_plan.h); empty: no --moe
};
// Lines of "key value".
std::string MakeRunNote(const RunOptions& options, const NotedInputs& inputs);

// One setting in which two notes differ.
struct NoteDifference {
  std::string what;  // "--batch"
  std::string before, now;
  // The run cannot continue with it: it changes which sequences come next, or what the weights
  // mean.
  bool changes_order = false;
};
// A key in only one of the notes is not a difference: other releases know other keys.
std::vector<NoteDifference> CompareRunNotes(const std::string& kept, const std::string& own);

// A rank and the job in which it has a slot; the job is sealed at `version`.
struct NotedSlot {
  std::string job;
  Rank rank = 0;
  Version version = 0;
};
// Compares the rank's note `own` with `kept`, the job's note from the first rank to come (empty:
// none). Errors: kJobMismatch with the rank, and all settings that change the order, before and
// now.
Status CheckRunNote(const std::string& kept, const std::string& own, const NotedSlot& slot);
// Compares the note `own` with rank 0's note `first`, after meeting it. Ranks of one run agree on
// all settings of a note, even if the server keeps none yet. Errors: kJobMismatch with both ranks
// and all differences.
Status CheckRankNote(const std::string& first, const std::string& own, const NotedSlot& slot);
// The same error on the other ranks; `refused` has a 1 for each rank that was refused. Errors:
// kJobMismatch (names those ranks).
Status CheckOtherRanks(std::span<const double> refused, const std::string& job);
// One line per difference that does not affect the order: "--lr 0.0003 -> 0.001: goes on with the
// new one".
std::vector<std::string> DescribeChanges(const std::string& kept, const std::string& own);

// The data cursor of this run after `version` steps, in sequences, converted from the job's step
// record (`kept`). Releases before notes counted micro-batches. Errors: kJobMismatch (steps were
// taken with another --batch).
Result<uint64_t> CursorInSequences(uint64_t kept, Version version, const RunOptions& options);

}  // namespace tidepool::trainer
