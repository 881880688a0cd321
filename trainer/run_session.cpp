#include "trainer/run_session.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/units.h"

namespace tidepool::trainer {
namespace {

constexpr size_t kPathMax = 256;

Rendezvous RendezvousOf(const RankPlace& place) {
  Rendezvous meet;
  meet.rank = place.rank;
  meet.world = place.world;
  meet.local_rank = place.local_rank;
  meet.local_world = place.local_world;
  meet.host = place.master_host;
  meet.port = place.master_port;
  meet.serves_store = place.rank == 0 && !place.agent_serves_store;
  meet.prefix = "attempt" + std::to_string(place.restarts);
  return meet;
}

}  // namespace

Result<std::unique_ptr<RunSession>> RunSession::Meet(const RankPlace& place) {
  std::unique_ptr<RunSession> session(new RunSession(place));
  const Rendezvous meet = RendezvousOf(place);
  TP_ASSIGN_OR_RETURN(session->store_, RendezvousStore::Open(meet));
  TP_ASSIGN_OR_RETURN(session->world_, session->store_->MakeGroup(WholeRun(meet)));
  return session;
}

RunSession::~RunSession() {
  client_.reset();
  group_storage_.clear();
  world_.reset();
  store_.reset();
}

Status RunSession::StartServer(const RunOptions& options, const client::JobSpec& spec) {
  StandaloneOptions standalone;
  standalone.pool_bytes = RoundUp(client::StateBytesOf(spec).total(), kMiB);
  if (!options.pool.empty()) {
    TP_ASSIGN_OR_RETURN(standalone.pool_bytes, ParseSize(options.pool));
  }
  standalone.rcache_limit_bytes = RoundUp(spec.rcache_bytes, kMiB) * place_.local_world;
  TP_ASSIGN_OR_RETURN(server_, StandaloneServer::Start(standalone));
  socket_dir_ = server_->socket_dir();
  return {};
}

// Local rank 0 started the server: every rank of the run learns where. Ranks of one run are on one node here.
Status RunSession::ShareSocketDir() {
  std::array<char, kPathMax> path{};
  std::memcpy(path.data(), socket_dir_.data(), std::min(socket_dir_.size(), kPathMax - 1));
  TP_RETURN_IF_ERROR(world_->Broadcast(path.data(), path.size()));
  socket_dir_ = path.data();
  if (socket_dir_.empty())
    return Status(ErrorId::kNoServer, "rank 0 could not start the private memserver").Fix("see the output of rank 0");
  return {};
}

Status RunSession::Attach(const RunOptions& options, const client::JobSpec& spec, const std::vector<std::vector<Rank>>& groups) {
  socket_dir_ = options.socket_dir;
  if (options.standalone) {
    Status started;
    if (place_.rank == 0) started = StartServer(options, spec);
    Status shared = ShareSocketDir();  // also after a failure, so that the others do not wait for us
    TP_RETURN_IF_ERROR(started);
    TP_RETURN_IF_ERROR(shared);
  }
  client::ClientOptions client;
  client.socket_dir = socket_dir_;
  TP_ASSIGN_OR_RETURN(client.wait_timeout_ns, ParseDurationNs(options.server_timeout));
  TP_ASSIGN_OR_RETURN(client_, client::MemClient::Connect(client, spec, place_.rank));
  for (size_t i = 0; i < groups.size(); ++i) {
    const bool member = std::find(groups[i].begin(), groups[i].end(), place_.rank) != groups[i].end();
    group_is_world_.push_back(groups[i].size() == place_.world);
    group_storage_.emplace_back();
    if (group_is_world_.back() || !member) continue;
    TP_ASSIGN_OR_RETURN(group_storage_.back(), store_->MakeGroup({"data" + std::to_string(i), groups[i]}));
  }
  return {};
}

std::vector<Collective*> RunSession::groups() const {
  std::vector<Collective*> groups;
  for (size_t i = 0; i < group_storage_.size(); ++i) groups.push_back(group_is_world_[i] ? world_.get() : group_storage_[i].get());
  return groups;
}

Status RunSession::Close() {
  Status detached = client_ ? client_->Detach() : Status();
  client_.reset();
  // The private server ends when every rank has left it.
  Status together = world_->Barrier();
  Status stopped = server_ ? server_->Stop() : Status();
  TP_RETURN_IF_ERROR(detached);
  TP_RETURN_IF_ERROR(together);
  return stopped;
}

}  // namespace tidepool::trainer
