// SnapshotBuilder: the tables as one immutable snapshot for the admin socket.
//
// The serve loop's thread. A snapshot is built over as many turns as its chunks need,
// kSnapshotChunksPerTurn in each; the control thread asks for one at most a few times a second.
// Guarantees:
//  1. it has the jobs that exist when it is complete, and shows nothing older than the question;
//  2. all of it except chunk rows is of one turn, the last: sums, states and versions of jobs,
//     sessions, accounts fit each other;
//  3. a chunk row is of one turn between the question and the last one; the ranks' unanswered
//     requests in it are of the last turn. If all chunks of all jobs fit into a turn, everything is
//     of one turn. A row is not newer than its job: no version in it is above the job's.
// One is built at a time: a question that comes meanwhile is answered by the next one.
#pragma once

#include <memory>
#include <vector>

#include "memserver/jobs/admission/waiting_rank.h"
#include "memserver/jobs/desk_context.h"
#include "memserver/residency/snapshot.h"
#include "memserver/update/staging/demotion.h"

namespace tidepool::memserver {

class SnapshotBuilder {
 public:
  // What it reads besides the tables.
  struct Sources {
    const std::vector<WaitingRank>& waiting;
    const Demotion& demotion;
  };
  // What it reads must outlive it.
  SnapshotBuilder(const DeskContext& context, const Sources& sources)
      : neighbours_(context.neighbours),
        options_(context.options),
        tables_(context.tables),
        settings_(context.settings),
        sources_(sources) {}

  // Asks for a snapshot that is not older than now.
  void Ask();
  // Continues the build, in every turn; null while it is incomplete.
  std::shared_ptr<const Snapshot> Progress();
  bool asked() const { return asked_ > 0; }

 private:
  struct JobChunks {
    JobId job = 0;
    std::vector<ChunkRow> chunks;  // by id, as far as visited
  };
  void Begin();
  void TakeUpJobs();
  bool LookAtChunks();
  std::shared_ptr<const Snapshot> Build();
  void AddPool(Snapshot* snapshot) const;
  void AddNvme(Snapshot* snapshot) const;
  void AddCounters(Snapshot* snapshot) const;
  void AddJobs(Snapshot* snapshot);
  void AddGpus(Snapshot* snapshot) const;
  void AddWaiting(Snapshot* snapshot) const;

  const LoopNeighbours& neighbours_;
  const LoopOptions& options_;
  const Tables* const tables_;
  const AdminSettings& settings_;
  const Sources sources_;
  uint32_t asked_ = 0;  // questions without an answer
  std::vector<JobChunks> jobs_;
  size_t next_job_ = 0;
};

}  // namespace tidepool::memserver
