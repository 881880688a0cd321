// RunSession: what one rank holds beside the model while it runs: its place, the other ranks, the server's attachment.
//
// One thread (the trainer's main thread). Closing happens in order: detach, groups, private server.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/mem_client.h"
#include "trainer/comm/gloo_collective.h"
#include "trainer/job.h"
#include "trainer/launch/rank_place.h"
#include "trainer/launch/standalone_server.h"
#include "trainer/run_options.h"

namespace tidepool::trainer {

class RunSession {
 public:
  // Meets the other ranks. Errors: kUsageError, kCollectiveFailed.
  static Result<std::unique_ptr<RunSession>> Meet(const RankPlace& place);
  ~RunSession();

  // Starts the private server where asked (local rank 0 does, the others are told where it is) and attaches to the job. `groups` are the
  // layout's data groups. Errors: kNoServer, kPoolFull, kRcacheRefused, kJobMismatch and others of attaching; kCollectiveFailed.
  Status Attach(const RunOptions& options, const client::JobSpec& spec, const std::vector<std::vector<Rank>>& groups);

  const RankPlace& place() const { return place_; }
  Collective* world() { return world_.get(); }
  // One a data group; null where this rank is no member.
  std::vector<Collective*> groups() const;
  client::ChunkService* service() { return client_.get(); }
  const std::string& socket_dir() const { return socket_dir_; }
  // Orderly end; the private server's end is part of it.
  Status Close();
  // What a private server logged last; empty without one.
  std::string ServerLogTail() const { return server_ ? server_->LogTail() : std::string(); }

 private:
  explicit RunSession(const RankPlace& place) : place_(place) {}
  Status StartServer(const RunOptions& options, const client::JobSpec& spec);
  Status ShareSocketDir();

  RankPlace place_;
  std::unique_ptr<StandaloneServer> server_;
  std::unique_ptr<RendezvousStore> store_;
  std::unique_ptr<Collective> world_;
  std::vector<std::unique_ptr<Collective>> group_storage_;  // by data group; null where not a member, or where it is the world
  std::vector<bool> group_is_world_;
  std::unique_ptr<client::MemClient> client_;
  std::string socket_dir_;
};

}  // namespace tidepool::trainer
