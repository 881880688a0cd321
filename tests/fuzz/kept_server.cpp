#include "tests/fuzz/kept_server.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/unique_fd.h"

namespace tidepool::memserver {
namespace {

// Largest rCache of a played rank; a damaged specification may ask for any.
constexpr uint64_t kRcacheBytesMax = kMiB;
constexpr uint32_t kChunksPlayed = 64, kMicroBatchesPlayed = 4;

}  // namespace

KeptStage::KeptStage() : images_(MakeKeptImages()) {
  HostPoolOptions options;
  options.bytes = kImagePoolBytes;
  options.own_bytes = WorkerTeam::UndoBytes(0);
  options.touch_threads = 1;
  auto reserved = HostPool::Reserve(options, {uint64_t{1} << 40, uint64_t{1} << 40, "the test"});
  auto segment = shm::Segment::Create("staged-index", kIndexBytes, shm::PeerAccess::kReadWrite);
  TP_CHECK(reserved.ok() && segment.ok(), "room for a small pool");
  pool_ = std::move(reserved).value();
  index_ = std::move(segment).value();
  TP_CHECK(pool_bytes().size() == images_.front().pool.size(),
           "the images' pools are of this size");
}

// The own records lie at the start of the one piece.
std::span<std::byte> KeptStage::pool_bytes() const {
  return {pool_->own_records().data(), pool_->pieces().front().bytes};
}

void KeptStage::Fill(const KeptImage& image) {
  std::memcpy(index_bytes().data(), image.index.data(), image.index.size());
  std::memcpy(pool_bytes().data(), image.pool.data(), image.pool.size());
}

Result<std::unique_ptr<KeptIndex>> KeptStage::AdoptIndex(IndexContents* contents) const {
  return KeptIndex::Adopt(Duplicate(index_->fd()), contents);
}

KeptServer::KeptServer(const KeptStage& stage, std::unique_ptr<KeptIndex> index)
    : pool_(stage.pool()), index_(std::move(index)) {
  team_ = std::make_unique<WorkerTeam>(WorkerTeamOptions{}, pool_->own_records());
  LoopNeighbours neighbours;
  neighbours.clock = &clock_;
  neighbours.device = &device_;
  neighbours.pool = pool_;
  neighbours.index = index_.get();
  neighbours.team = team_.get();
  neighbours.events = &events_;
  neighbours.replies = &replies_;
  neighbours.saves = &saves_;
  neighbours.saved = &saved_;
  loop_ = std::make_unique<ServeLoop>(
      neighbours, LoopOptions{.times = {.lease_ns = kNsPerSecond}, .rcache_limit = 64 * kMiB});
}

void KeptServer::Settle() {
  int turns = 0;
  for (int idle = 0; idle < 2; ++turns) {
    TP_CHECK(turns < 100000, "the loop comes to rest");
    idle = loop_->Turn() ? 0 : idle + 1;
  }
}

void KeptServer::EndFormer() {
  events_.Push(FormerServersEnded{~uint32_t{0}});
  Settle();
  TP_CHECK(loop_->tables().set_aside.empty(), "nobody is waited for any more");
}

void KeptServer::ResumeAll() {
  for (const auto& job : loop_->tables().jobs) {
    for (Rank rank = 0; rank < job->spec().world; ++rank) {
      if (!job->IsAwaited(rank) || job->spec().rcache_bytes > kRcacheBytesMax) continue;
      ResumeSession event;
      event.connection = ++last_connection_;
      event.rank = rank;
      event.job_nonce = job->nonce;
      event.nonce = job->NonceOf(rank);
      event.rcache_bytes = job->spec().rcache_bytes;
      event.uid = job->uid;
      events_.Push(event);
    }
  }
  Settle();
  std::vector<ControlReply> replies;
  replies_.TakeAll(&replies);
  for (ControlReply& reply : replies) {
    if (auto* granted = std::get_if<ReserveGranted>(&reply)) Attach(*granted);
  }
  Settle();
}

void KeptServer::Attach(const ReserveGranted& granted) {
  const SessionSlot* slot = loop_->tables().FindSlot(granted.connection);
  if (slot == nullptr) return;
  auto port = shm::ServerPort::Create(granted.session);
  UniqueFd exported;
  auto server_side = device_.CreateExportable(granted.rcache_bytes, &exported);
  auto client_side = device_.Import(exported, granted.rcache_bytes);
  TP_CHECK(port.ok() && server_side.ok() && client_side.ok(), "memory for one session");
  const shm::ServerPort& rings = **port;
  auto client =
      shm::ClientPort::Map(Duplicate(rings.submission_fd()), Duplicate(rings.completion_fd()),
                           Duplicate(rings.doorbell_fd()));
  TP_CHECK(client.ok(), "memory for one session");
  ranks_.push_back(std::make_unique<FakeRank>(granted.connection, slot->rank,
                                              std::move(client).value(),
                                              std::move(client_side).value(), std::move(exported)));
  events_.Push(
      AttachSession{granted.connection, std::move(port).value(), std::move(server_side).value()});
}

void KeptServer::SendDue(const Job& job, FakeRank* rank) {
  const shm::JobSpec& spec = job.spec();
  JobStates& states = *job.states;
  for (ChunkId id = 0; id < spec.chunks.size() && id < kChunksPlayed; ++id) {
    if (!spec.IsMember(id, rank->rank()) ||
        spec.ShardElements(id) * sizeof(float) > spec.rcache_bytes)
      continue;
    const ShardIntake& intake = states.intake(id, rank->rank());
    const uint64_t count = spec.ShardElements(id), begin = states.ShardBegin(id, rank->rank());
    if (!states.weights_ready()) {
      if (intake.put_elements < count)
        rank->Put(id, begin + intake.put_elements, count - intake.put_elements, 0);
      continue;
    }
    for (uint32_t k = intake.micro_batches_accepted;
         k < std::min(spec.micro_batches, kMicroBatchesPlayed); ++k) {
      rank->Submit({id, begin, count, 0, states.sealed_version(), k});
      Settle();
    }
  }
}

void KeptServer::WorkOn() {
  for (const auto& rank : ranks_) {
    const SessionSlot* slot = loop_->tables().FindSlot(rank->connection());
    if (slot == nullptr || slot->session == nullptr) continue;
    SendDue(*slot->job, rank.get());
    Settle();
  }
  for (const auto& rank : ranks_) {
    const SessionSlot* slot = loop_->tables().FindSlot(rank->connection());
    if (slot != nullptr && slot->job->states->weights_ready())
      rank->EndStep(slot->job->states->sealed_version(), 0.01F);
  }
  Settle();
  for (const auto& rank : ranks_) {
    while (rank->Take()) {
    }
  }
}

void KeptServer::LoseAll() {
  for (const auto& rank : ranks_)
    events_.Push(ConnectionLost{rank->connection(), "killed by the test"});
  Settle();
  // Waits out the lease of ranks that did not come back, then that of their job.
  for (int lease = 0; lease < 2; ++lease) {
    clock_.Advance(3600 * kNsPerSecond);
    Settle();
  }
  TP_CHECK(loop_->tables().jobs.empty() && pool_->free_bytes() == pool_->total_bytes(),
           "every byte comes back");
}

}  // namespace tidepool::memserver
