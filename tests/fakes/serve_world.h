// ServeWorld: a whole serve loop in the test's process, with the test as control thread, checkpoint
// thread and clock; and FakeRank, a trainer's end of one session over the real rings.
//
// One thread, unless the test calls Run on a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/host/host_device.h"
#include "memserver/loop/serve_loop.h"
#include "memserver/traffic/gpu_states.h"
#include "shm/port.h"
#include "nvme/page_memory.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/sim_disk.h"

namespace tidepool::memserver {

struct WorldOptions {
  uint64_t pool_bytes = 8 * kMiB;
  uint64_t pool_piece_bytes = 64 * kGiB;
  uint32_t workers = 0;         // 0: inline
  uint32_t inline_workers = 1;  // for an inline team
  uint32_t copy_threads = 0;    // 0: the loop copies
  // Tunings of the updates; each server after a restart takes the next one, and after the last the
  // first again.
  std::vector<optim::Tuning> tunings = {{}};
  // Number of simulated NVMe directories, of nvme_bytes each; they outlive servers.
  uint32_t nvme_directories = 0;
  uint64_t nvme_bytes = 4 * kMiB;
  uint64_t nvme_seed = 1;
  TierOptions tier = {};
  device::Device* device = nullptr;  // where given, opens the loop's streams; it outlives the world
  LoopOptions loop{.rcache_limit = 64 * kMiB};
};

// A world that keeps a job without ranks for a while.
inline constexpr int64_t kLeaseNs = 5 * kNsPerSecond;
inline WorldOptions WithLease() {
  WorldOptions options;
  options.loop.times.lease_ns = kLeaseNs;
  return options;
}

// A small job: `chunks` chunks of `chunk_elements`, two parameters in each (the second with weight
// decay off), one data group of all ranks.
struct SpecOptions {
  std::string name = "job";
  uint32_t world = 1;
  DType dtype = DType::kF32;
  uint32_t chunks = 2;
  uint64_t chunk_elements = 192;  // a multiple of 16 x ranks
  uint32_t micro_batches = 1;
  float max_grad_norm = 0;
  uint32_t loss_scaling = 0;
  uint64_t rcache_bytes = 64 * kKiB;
  uint32_t f32_chunks = 0;  // of a 16-bit job: the first so many are fp32
  uint32_t sums_gradients = 0;
};
shm::JobSpec MakeSpec(const SpecOptions& options);

// A world with simulated NVMe for all states of `jobs` jobs like `spec`, which go there.
WorldOptions WithStatesOnNvme(const shm::JobSpec& spec, uint64_t jobs = 1,
                              uint32_t directories = 1);

// A trainer rank: what client/ does, without its checks, so that a test can write anything.
class FakeRank {
 public:
  FakeRank(ConnectionId connection, Rank rank, std::unique_ptr<shm::ClientPort> port,
           std::unique_ptr<device::Memory> rcache, UniqueFd rcache_fd)
      : connection_(connection),
        rank_(rank),
        port_(std::move(port)),
        rcache_(std::move(rcache)),
        rcache_fd_(std::move(rcache_fd)) {}

  ConnectionId connection() const { return connection_; }
  Rank rank() const { return rank_; }
  std::byte* rcache() const { return rcache_->data(); }
  template <typename T>
  T* At(uint64_t offset) const {
    return reinterpret_cast<T*>(rcache() + offset);
  }
  shm::ClientPort& port() { return *port_; }
  uint64_t nonce() const { return nonce_; }
  uint64_t job_nonce() const { return job_nonce_; }
  void SetNames(uint64_t nonce, uint64_t job_nonce) {
    nonce_ = nonce;
    job_nonce_ = job_nonce;
  }
  // Comes back to another server: with a new connection and new rings, and the same rCache.
  void Reconnect(ConnectionId connection, std::unique_ptr<shm::ClientPort> port) {
    connection_ = connection;
    port_ = std::move(port);
    counter_ = 0;
  }
  const UniqueFd& rcache_fd() const { return rcache_fd_; }
  // The flags of a rank that brings its rCache.
  shm::FlagPages flags() const { return shm::FlagPages(flags_->data()); }
  void SetFlags(std::unique_ptr<device::Memory> flags) { flags_ = std::move(flags); }

  struct Gradient {
    ChunkId chunk = 0;
    uint64_t begin = 0, count = 0, offset = 0;
    Version version = 0;
    uint32_t micro_batch = 0;
  };
  static shm::Request PutRequest(ChunkId chunk, uint64_t begin, uint64_t count, uint64_t offset);
  static shm::Request FetchRequest(ChunkId chunk, uint64_t begin, uint64_t count, uint64_t offset,
                                   Version version);
  static shm::Request SubmitRequest(const Gradient& gradient);
  static shm::Request EndStepRequestOf(Version version, float learning_rate, float loss_scale);
  // Sends the request with the next counter, and returns the counter.
  uint64_t Send(shm::Request request);
  // For a rank that brings its rCache: its flags say that every request may begin.
  void SetAlwaysReady() { always_ready_ = true; }
  uint64_t Put(ChunkId chunk, uint64_t begin, uint64_t count, uint64_t offset) {
    return Send(PutRequest(chunk, begin, count, offset));
  }
  uint64_t Fetch(ChunkId chunk, uint64_t begin, uint64_t count, uint64_t offset, Version version) {
    return Send(FetchRequest(chunk, begin, count, offset, version));
  }
  static shm::Request ClaimRequest(ChunkId chunk);
  uint64_t Claim(ChunkId chunk) { return Send(ClaimRequest(chunk)); }
  uint64_t Submit(const Gradient& gradient) { return Send(SubmitRequest(gradient)); }
  uint64_t EndStep(Version version, float learning_rate, float loss_scale = 1) {
    return Send(EndStepRequestOf(version, learning_rate, loss_scale));
  }
  // Takes the next answer.
  std::optional<shm::Completion> Take();
  std::optional<ErrorId> Ended() const { return port_->Ended(); }

 private:
  ConnectionId connection_;
  const Rank rank_;
  std::unique_ptr<shm::ClientPort> port_;
  const std::unique_ptr<device::Memory> rcache_;
  const UniqueFd rcache_fd_;
  std::unique_ptr<device::Memory> flags_;
  bool always_ready_ = false;
  uint64_t nonce_ = 0, job_nonce_ = 0;
  uint64_t counter_ = 0;
};

class ServeWorld {
 public:
  explicit ServeWorld(const WorldOptions& options = {});

  const WorldOptions& options() const { return options_; }
  ServeLoop& loop() { return *loop_; }
  HostPool& pool() { return *pool_; }
  const KeptIndex& index() const { return *index_; }
  WorkerTeam& team() { return *team_; }
  FakeClock& clock() { return clock_; }
  nvme::SimDisk& disk() { return *disk_; }
  bool has_tier() const { return tier_ != nullptr; }
  StateTier& tier() { return *tier_; }
  // Waits until the weights of the job are in; those on NVMe take some turns after the last put was
  // answered. Returns immediately where the job is gone.
  void AwaitWeights(const std::string& job);
  // Lets time pass until a transfer that failed is to be repeated.
  void AwaitRetry();
  // Servers that are killed from now on do not end: the next ones find them alive.
  void LetKilledLinger(bool linger) { lingers_ = linger; }
  // All that linger end, and the server hears of it.
  void EndLingering();
  uint32_t lingering() const { return lingering_; }
  // As if a rank of the job had brought a GPU.
  void PretendGpus(const Job& job) const { job.states->records().NoteGpus(own_server_); }
  // Which NVMe directories later servers get: all, none, all in reverse order, or all while the
  // first is gone or empty.
  enum class Given { kAll, kNone, kReversed, kFirstGone, kFirstEmpty };
  void GiveDisks(Given given) { given_ = given; }
  // The result of the last restart.
  const Status& recovered() const { return recovered_; }
  const Tables& tables() const { return loop_->tables(); }
  const JobDesk& jobs() const { return loop_->jobs(); }

  // Kills the server; another one adopts the kept memory. What stood in queues and rings is gone,
  // connections too. A hook of points (base/point.h) may throw out of this, or out of a turn: that
  // server is dead; Restart again.
  void Restart();
  // Kills the server together with the keeper of its memory: the next one has an empty pool.
  void StartOver();

  void Post(ControlEvent event) { events_.Push(std::move(event)); }
  // Makes turns until nothing happens any more (inline worlds), at most `turns_max`.
  void Settle(int turns_max = 100000);
  // The oldest reply not taken yet of type T; others before it stay.
  template <typename T>
  std::optional<T> TakeReply();
  // All replies not taken yet, in order; discards what was to be discarded.
  std::vector<ControlReply> TakeAllReplies();

  // First half of joining: leaves the reply to a reservation in the queue. nonce 0:
  // NonceOf(connection).
  ConnectionId Reserve(const shm::JobSpec& spec, Rank rank, uint32_t uid = 1000,
                       uint64_t nonce = 0);
  // The nonce of the incarnation that a connection reserved for.
  static uint64_t NonceOf(ConnectionId connection) { return 0x1000 + connection; }
  // First half of coming back after Restart: leaves the reply in the queue.
  ConnectionId AskToResume(const FakeRank& rank, const shm::JobSpec& spec, uint32_t uid = 1000);
  // Second half of coming back.
  void AttachAgain(const ReserveGranted& granted, FakeRank* rank);
  // Both halves, with turns in between; false when refused (the reply is left in the queue).
  bool Resume(FakeRank* rank, const shm::JobSpec& spec, uint32_t uid = 1000);
  // Second half of joining: zeroes, makes rings and rCache, posts AttachSession.
  std::unique_ptr<FakeRank> Attach(const ReserveGranted& granted, Rank rank);
  // Both halves, with turns in between; null when refused (the reply is left in the queue).
  std::unique_ptr<FakeRank> Join(const shm::JobSpec& spec, Rank rank, uint32_t uid = 1000);
  // Sets the process that later reservations come from; 0: each from one of its own.
  void ComeFrom(int32_t pid) { pid_ = pid; }
  // Later ranks bring their rCaches, as memory of this GPU (in truth the host's); null: no longer.
  void BringFrom(Gpu* gpu) {
    gpus_ = gpu == nullptr ? std::vector<Gpu*>() : std::vector<Gpu*>{gpu};
  }
  // The same, rank r with the r-th of these; and their copies may begin immediately.
  void BringFromEach(std::vector<Gpu*> gpus) {
    gpus_ = std::move(gpus);
    always_ready_ = true;
  }
  // Does what the keeper and the preparation thread do for memory of GPUs. Part of Settle.
  void PollShares();
  // Number of shares in memory of GPUs that the keeper holds.
  size_t shares_kept() const { return kept_states_.size(); }
  // Lets the keeper answer later.
  void HoldBackKeeper(bool held_back) { keeper_held_back_ = held_back; }
  // Lets the keeper lose the shares.
  void LoseShares() { kept_states_.clear(); }
  // Sets whether later reservations wait for room.
  void MayWait(bool may_wait) { may_wait_ = may_wait; }
  // Sets the note on their run in later reservations.
  void SayOfRun(std::string note) { note_ = std::move(note); }
  // Makes a change as an admin; returns the answer.
  Status Command(decltype(AdminCommand::what) what);
  Status SetQuota(const std::string& job, const QuotaChange& change);
  // Asks as an admin for a check of the states on NVMe; returns the answer.
  Status Scrub() { return Command(StartScrub{}); }
  void Lose(const FakeRank& rank) { Post(ConnectionLost{rank.connection(), "killed by the test"}); }
  void Leave(const FakeRank& rank) { Post(Goodbye{rank.connection()}); }

  // Waits in turns until the answer to `counter` comes, which must be this rank's next.
  shm::Completion Await(FakeRank* rank, uint64_t counter);
  // Takes the saves, as the checkpoint thread would.
  std::vector<SaveRequest> TakeSaves();
  void AnswerSave(ConnectionId connection, Status status) {
    saved_.Push({connection, std::move(status)});
  }
  // The same of a stream of steps, which ends.
  void AnswerSteps(ConnectionId connection, Status status) {
    saved_.Push({.connection = connection, .result = std::move(status), .of_steps = true});
  }

 private:
  void TakeReplies();
  // Makes the rank's memory that of its GPU.
  void Bring(const ReserveGranted& granted, Rank rank, AttachSession* attach, FakeRank* to);

  FakeClock clock_;
  device::HostDevice device_;  // makes rCaches
  void ReserveMemory();
  void StartServing();
  void EndServing();
  void MakeDisk();
  void OpenTier();
  // As Turn; while something moves, or waits to be repeated, it lets time pass and counts that as
  // work.
  bool TurnOn();

  const WorldOptions options_;
  size_t servers_ = 0;                       // started so far
  uint32_t own_server_ = 0, lingering_ = 0;  // bits in the index
  bool lingers_ = false;
  Given given_ = Given::kAll;
  Status recovered_;
  uint64_t pool_nonce_ = 76;
  int32_t pid_ = 0;
  std::string note_;
  bool may_wait_ = false;
  Gpu* GpuFor(Rank rank) const { return gpus_.empty() ? nullptr : gpus_[rank % gpus_.size()]; }
  std::vector<Gpu*> gpus_;
  bool always_ready_ = false, keeper_held_back_ = false;
  std::vector<HeldMemory> kept_states_;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<KeptIndex> index_;
  std::unique_ptr<WorkerTeam> team_;
  std::unique_ptr<nvme::PageMemory> staging_;
  std::unique_ptr<nvme::SimDisk> disk_;
  std::unique_ptr<StateTier> tier_;
  EventQueue<ControlEvent> events_;
  EventQueue<ControlReply> replies_;
  EventQueue<SaveRequest> saves_;
  EventQueue<SaveResult> saved_;
  EventQueue<KeepStates> keeps_;
  std::unique_ptr<ServeLoop> loop_;
  std::vector<ControlReply> taken_replies_;
  ConnectionId last_connection_ = 0;
};

template <typename T>
std::optional<T> ServeWorld::TakeReply() {
  TakeReplies();
  for (auto it = taken_replies_.begin(); it != taken_replies_.end(); ++it) {
    if (!std::holds_alternative<T>(*it)) continue;
    T reply = std::move(std::get<T>(*it));
    taken_replies_.erase(it);
    return reply;
  }
  return std::nullopt;
}

}  // namespace tidepool::memserver
