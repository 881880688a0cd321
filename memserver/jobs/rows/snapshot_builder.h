// SnapshotBuilder: the tables as one immutable picture for the admin socket.
//
// The serve loop's thread. A snapshot is built over as many turns as its chunks need,
// kSnapshotChunksPerTurn in each; asked for by the control thread at most a few times a second.
// What it promises:
//  1. it has the jobs that are there when it is complete, and shows nothing that is older than the
//     question;
//  2. all of it but the rows of chunks is of one turn, the last: sums, states and versions of jobs,
//     sessions, accounts fit each other;
//  3. the row of a chunk is of one turn between the question and that one, what ranks have asked
//     for and have no answer to of the last. Where all chunks of all jobs fit into a turn, it is
//     one turn for everything. A row is not newer than its job: no version in it is above the
//     job's.
// One is built at a time: a question that comes meanwhile is answered by another one, begun behind
// it.
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
  // What it looks at beside the tables.
  struct Sources {
    const std::vector<WaitingRank>& waiting;
    const Demotion& demotion;
  };
  // What it looks at must outlive it.
  SnapshotBuilder(const DeskContext& context, const Sources& sources)
      : neighbours_(context.neighbours),
        options_(context.options),
        tables_(context.tables),
        settings_(context.settings),
        sources_(sources) {}

  // Asks for a snapshot that is not older than now.
  void Ask();
  // Goes on with it, in every turn; null where it is not complete yet.
  std::shared_ptr<const Snapshot> Progress();
  bool asked() const { return asked_ > 0; }

 private:
  struct JobChunks {
    JobId job = 0;
    std::vector<ChunkRow> chunks;  // by id, as far as they were looked at
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
