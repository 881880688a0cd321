#include "tests/fakes/serve_world.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/unique_fd.h"
#include "shm/spec/decode.h"
#include "shm/spec/encode.h"
#include "shm/spec/state_footprint.h"
#include "shm/spec/validate.h"
#include "tests/fakes/check_staging.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::memserver {
namespace {

MemoryBudget PlentyOfMemory() {
  return {uint64_t{1} << 40, uint64_t{1} << 40, "the test"};
}

shm::Request RangeRequest(shm::Op op, ChunkId chunk, uint64_t begin, uint64_t count,
                          uint64_t offset) {
  shm::Request request{};
  request.op = static_cast<uint32_t>(op);
  request.chunk = chunk;
  request.element_begin = begin;
  request.element_count = count;
  request.rcache_offset = offset;
  return request;
}

}  // namespace

WorldOptions WithStatesOnNvme(const shm::JobSpec& spec, uint64_t jobs, uint32_t directories) {
  WorldOptions options;
  options.nvme_directories = directories;
  options.nvme_bytes = jobs * shm::NvmeBytesOf(spec, 0);
  options.loop.live.states_on = StatesOn::kNvme;
  return options;
}

shm::JobSpec MakeSpec(const SpecOptions& options) {
  shm::JobSpec spec;
  spec.name = options.name;
  spec.world = options.world;
  spec.dtype = options.dtype;
  spec.f32_chunks = options.f32_chunks;
  spec.sums_gradients = options.sums_gradients;
  spec.micro_batches = options.micro_batches;
  spec.max_grad_norm = options.max_grad_norm;
  spec.loss_scaling = options.loss_scaling;
  spec.rcache_bytes = options.rcache_bytes;
  spec.parameter_groups = {{1.0F, 0.01F}, {0.5F, 0.0F}};
  spec.data_groups = {{(uint64_t{1} << options.world) - 1}};
  // The first parameter ends in the middle of a 64-byte line, so that there is padding; the second
  // reaches to the chunk's end.
  const uint64_t first = options.chunk_elements / 2 - 5;
  const uint64_t second_begin = RoundUp(first, 32);
  for (ChunkId id = 0; id < options.chunks; ++id) {
    spec.chunks.push_back({options.chunk_elements, 0});
    const std::string layer = "layer" + std::to_string(id);
    spec.parameters.push_back({layer + ".weight", {first}, id, 0, 0, first});
    const uint64_t second = options.chunk_elements - second_begin;
    spec.parameters.push_back({layer + ".bias", {second}, id, 1, second_begin, second});
  }
  const Status valid = shm::Validate(spec);
  TP_CHECK(valid.ok(), valid.Line().c_str());
  return spec;
}

uint64_t FakeRank::Send(shm::Request request) {
  request.counter = ++counter_;
  if (always_ready_) flags().ready(request.counter)->store(request.counter);
  TP_CHECK(port_->Push(request), "the test keeps to the size of the ring");
  return counter_;
}

shm::Request FakeRank::PutRequest(ChunkId chunk, uint64_t begin, uint64_t count, uint64_t offset) {
  return RangeRequest(shm::Op::kPutWeights, chunk, begin, count, offset);
}

shm::Request FakeRank::ClaimRequest(ChunkId chunk) {
  return RangeRequest(shm::Op::kClaimFrozen, chunk, 0, 0, 0);
}

shm::Request FakeRank::FetchRequest(ChunkId chunk, uint64_t begin, uint64_t count, uint64_t offset,
                                    Version version) {
  shm::Request request = RangeRequest(shm::Op::kFetch, chunk, begin, count, offset);
  request.version = version;
  return request;
}

shm::Request FakeRank::SubmitRequest(const Gradient& gradient) {
  shm::Request request = RangeRequest(shm::Op::kSubmitGradient, gradient.chunk, gradient.begin,
                                      gradient.count, gradient.offset);
  request.version = gradient.version;
  request.micro_batch = gradient.micro_batch;
  return request;
}

shm::Request FakeRank::EndStepRequestOf(Version version, float learning_rate, float loss_scale) {
  shm::EndStepRequest request{};
  request.op = static_cast<uint32_t>(shm::Op::kEndStep);
  request.version = version;
  request.learning_rate = learning_rate;
  request.loss_scale = loss_scale;
  request.data_cursor = version * 1000;
  request.random_state = version * 7 + 1;
  return shm::AsRequest(request);
}

std::optional<shm::Completion> FakeRank::Take() {
  shm::Completion completion;
  if (!port_->Pop(&completion)) return std::nullopt;
  return completion;
}

ServeWorld::ServeWorld(const WorldOptions& options)
    : device_({.clock = RealClock(), .copy_threads = options.copy_threads, .together = true}),
      options_(options) {
  ReserveMemory();
  if (options_.nvme_directories > 0) MakeDisk();
  StartServing();
}

void ServeWorld::MakeDisk() {
  std::vector<uint64_t> files;
  for (uint32_t i = 0; i < options_.nvme_directories; ++i) {
    files.insert(files.end(), {options_.nvme_bytes, nvme::kManifestBytes, nvme::kManifestBytes});
  }
  disk_ = std::make_unique<nvme::SimDisk>(options_.nvme_seed, files, 64);
  for (uint32_t i = 0; i < options_.nvme_directories; ++i) {
    nvme::EncodeManifest(
        {.generation = 0, .store = 500 + i, .capacity = options_.nvme_bytes, .entries = {}},
        disk_->bytes(3 * i + 1));
  }
  auto staging = nvme::PageMemory::Map(StateTier::MemoryBytes(options_.nvme_directories), false);
  TP_CHECK(staging.ok(), "the test machine has room for staging");
  staging_ = std::make_unique<nvme::PageMemory>(std::move(staging).value());
}

void ServeWorld::OpenTier() {
  std::vector<TierDirectory> directories;
  for (uint32_t i = 0; i < options_.nvme_directories; ++i) {
    auto first = nvme::DecodeManifest(disk_->bytes(3 * i + 1));
    auto second = nvme::DecodeManifest(disk_->bytes(3 * i + 2));
    const bool takes_second =
        second.ok() && (!first.ok() || second->generation > first->generation);
    TP_CHECK(first.ok() || second.ok(), "a whole manifest outlives its server");
    directories.push_back(
        {"simulated" + std::to_string(i), std::move(takes_second ? second : first).value(), -1});
  }
  if (given_ == Given::kReversed) std::reverse(directories.begin(), directories.end());
  if (given_ == Given::kFirstGone) directories.front().manifest = {};
  if (given_ == Given::kFirstEmpty)
    directories.front().manifest = {.generation = 0, .store = 900, .capacity = 0, .entries = {}};
  tier_ = std::make_unique<StateTier>(disk_.get(), &clock_, std::move(directories),
                                      staging_->bytes(), options_.tier);
}

void ServeWorld::ReserveMemory() {
  HostPoolOptions pool;
  pool.bytes = options_.pool_bytes;
  pool.own_bytes = WorkerTeam::UndoBytes(std::max(options_.workers, options_.inline_workers));
  pool.piece_bytes_max = options_.pool_piece_bytes;
  pool.touch_threads = 1;
  auto reserved = HostPool::Reserve(pool, PlentyOfMemory());
  TP_CHECK(reserved.ok(), "the test machine has room for a small pool");
  pool_ = std::move(reserved).value();
  auto index = KeptIndex::Create(pool_->geometry(), ++pool_nonce_);
  TP_CHECK(index.ok(), "the test machine has room for an index");
  index_ = std::move(index).value();
}

void ServeWorld::StartServing() {
  WorkerTeamOptions team;
  team.threads = options_.workers;
  team.clock = RealClock();
  team.inline_workers = options_.inline_workers;
  team.tuning = options_.tunings[servers_++ % options_.tunings.size()];
  team_ = std::make_unique<WorkerTeam>(team, pool_->own_records());
  LoopNeighbours neighbours;
  neighbours.clock = &clock_;
  neighbours.device = options_.device != nullptr ? options_.device : &device_;
  neighbours.pool = pool_.get();
  neighbours.index = index_.get();
  neighbours.team = team_.get();
  if (disk_ != nullptr && given_ != Given::kNone) OpenTier();
  neighbours.tier = tier_.get();
  neighbours.nvme_absent.resize(options_.nvme_directories);
  if (given_ == Given::kFirstGone)
    neighbours.nvme_absent.front() = Status(ErrorId::kNvmeDirectoryBad, "no such directory");
  if (given_ == Given::kFirstEmpty)
    neighbours.nvme_absent.front() = Status(ErrorId::kNvmeDirectoryMissing, "it held nothing");
  neighbours.events = &events_;
  neighbours.replies = &replies_;
  neighbours.saves = &saves_;
  neighbours.saved = &saved_;
  neighbours.keeps = &keeps_;
  neighbours.own_server = own_server_ =
      index_->NoteServer({static_cast<int32_t>(servers_), servers_, 1}).value();
  loop_ = std::make_unique<ServeLoop>(neighbours, options_.loop);
}

// Nothing of this writes kept memory.
void ServeWorld::EndServing() {
  loop_.reset();
  team_.reset();
  tier_.reset();
  if (disk_ != nullptr) disk_->LoseOwner();
  std::vector<ControlEvent> events;
  events_.TakeAll(&events);
  std::vector<ControlReply> replies;
  replies_.TakeAll(&replies);
  taken_replies_.clear();
  // Not TakeSaves: it would list the tensors of jobs that have ended with the loop.
  std::vector<SaveRequest> saves;
  saves_.TakeAll(&saves);
  std::vector<SaveResult> saved;
  saved_.TakeAll(&saved);
  std::vector<KeepStates> keeps;
  keeps_.TakeAll(&keeps);
}

void ServeWorld::StartOver() {
  EndServing();
  index_.reset();
  pool_.reset();
  ReserveMemory();
  kept_states_.clear();
  lingering_ = 0;
  StartServing();
  recovered_ = loop_->Recover({});
}

void ServeWorld::Restart() {
  EndServing();
  const PoolGeometry geometry = pool_->geometry();
  std::vector<UniqueFd> pieces;
  for (const PoolPiece& piece : pool_->pieces()) pieces.push_back(Duplicate(piece.fd));
  UniqueFd index_fd = Duplicate(index_->fd());
  index_.reset();
  pool_.reset();
  IndexContents contents;
  auto index = KeptIndex::Adopt(std::move(index_fd), &contents);
  TP_CHECK(index.ok() && contents.damaged_slots == 0, "the index outlives its server");
  index_ = std::move(index).value();
  for (const NotedServer& noted : contents.servers) lingering_ |= lingers_ ? BitOf(noted.place) : 0;
  index_->ForgetServers(~lingering_);
  auto pool = HostPool::Adopt(std::move(pieces), contents.geometry);
  TP_CHECK(pool.ok() && contents.geometry.bytes == geometry.bytes, "the pool outlives its server");
  pool_ = std::move(pool).value();
  StartServing();
  recovered_ = loop_->Recover(contents, kept_states_, lingering_);
}

void ServeWorld::EndLingering() {
  Post(FormerServersEnded{std::exchange(lingering_, 0)});
}

ConnectionId ServeWorld::AskToResume(const FakeRank& rank, const shm::JobSpec& spec, uint32_t uid) {
  ResumeSession event;
  event.connection = ++last_connection_;
  event.rank = rank.rank();
  event.job_nonce = rank.job_nonce();
  event.nonce = rank.nonce();
  event.rcache_bytes = spec.rcache_bytes;
  event.uid = uid;
  event.pid = 4242;
  event.client_owned_rcache = !gpus_.empty();
  Post(event);
  return last_connection_;
}

void ServeWorld::AttachAgain(const ReserveGranted& granted, FakeRank* rank) {
  auto port = shm::ServerPort::Create(granted.session);
  auto server_side = device_.Import(rank->rcache_fd(), granted.rcache_bytes);
  TP_CHECK(port.ok() && server_side.ok(), "memory for one session");
  shm::ServerPort& rings = **port;
  auto client =
      shm::ClientPort::Map(Duplicate(rings.submission_fd()), Duplicate(rings.completion_fd()),
                           Duplicate(rings.doorbell_fd()));
  TP_CHECK(client.ok(), "memory for one session");
  AttachSession attach{granted.connection, std::move(port).value(), std::move(server_side).value()};
  Bring(granted, rank->rank(), &attach, rank);
  Post(std::move(attach));
  rank->Reconnect(granted.connection, std::move(client).value());
}

void ServeWorld::Bring(const ReserveGranted& granted, Rank rank, AttachSession* attach,
                       FakeRank* to) {
  Gpu* gpu = GpuFor(rank);
  if (gpu == nullptr) return;
  UniqueFd pages;
  attach->brought.gpu = gpu;
  attach->brought.flags = std::move(device_.CreateExportable(shm::kFlagBytes, &pages)).value();
  to->SetFlags(std::move(device_.Import(pages, shm::kFlagBytes)).value());
  if (always_ready_) to->SetAlwaysReady();
  if (granted.gpu_state_bytes == 0) return;
  auto states = MakeGpuStates(gpu, granted.gpu_state_bytes);
  TP_CHECK(states.ok(), states.status().Line().c_str());
  attach->brought.states = std::move(states).value();
}

void ServeWorld::PollShares() {
  std::vector<KeepStates> keeps;
  if (!keeper_held_back_) keeps_.TakeAll(&keeps);
  for (KeepStates& keep : keeps) {
    std::erase_if(kept_states_, [&keep](const HeldMemory& held) { return held.slot == keep.slot; });
    const bool let_go = !keep.exported.valid();
    if (!let_go) kept_states_.push_back({keep.slot, std::move(keep.exported), 1});
    Post(StatesKept{.job = keep.job, .rank = keep.rank, .let_go = let_go});
  }
  while (auto asked = TakeReply<ImportStates>()) {
    const auto gpu = std::find_if(gpus_.begin(), gpus_.end(), [&asked](const Gpu* one) {
      return one->facts().uuid == asked->gpu;
    });
    StatesImported imported{.job = asked->job, .rank = asked->rank, .result = {}};
    const Status missing(ErrorId::kCudaUnavailable, "the test has no such GPU");
    auto states = gpu == gpus_.end() ? Result<GpuStateMemory>(missing)
                                     : ImportGpuStates(*gpu, asked->exported, asked->bytes);
    imported.result = states.status();
    if (states.ok()) imported.states = std::move(states).value();
    Post(std::move(imported));
  }
}

bool ServeWorld::Resume(FakeRank* rank, const shm::JobSpec& spec, uint32_t uid) {
  AskToResume(*rank, spec, uid);
  loop_->Turn();
  const auto granted = TakeReply<ReserveGranted>();
  if (!granted) return false;
  AttachAgain(*granted, rank);
  loop_->Turn();
  return true;
}

void ServeWorld::AwaitRetry() {
  const int64_t due = tier_->next_retry_ns();
  if (due != INT64_MAX && due > clock_.NowNs()) clock_.Advance(due - clock_.NowNs());
}

void ServeWorld::AwaitWeights(const std::string& name) {
  for (int turn = 0; turn < 1000000; ++turn) {
    const Job* job = tables().FindJob(name);
    if (job == nullptr || job->states->weights_ready() ||
        (!has_tier() && !job->states->uses_gpus()))
      return;
    TurnOn();
  }
}

bool ServeWorld::TurnOn() {
  PollShares();
  const bool worked = loop_->Turn();
  if (tier_ != nullptr) CheckStaging(*tier_, tables(), jobs().demotion());
  if (worked) return true;
  if (tier_ == nullptr || tier_->in_flight() == 0) return false;
  clock_.Advance(kNsPerMs);
  return true;
}

void ServeWorld::Settle(int turns_max) {
  for (int idle = 0; turns_max > 0 && idle < 2; --turns_max) idle = TurnOn() ? 0 : idle + 1;
  TP_CHECK(turns_max > 0, "the loop comes to rest");
}

void ServeWorld::TakeReplies() {
  std::vector<ControlReply> replies;
  replies_.TakeAll(&replies);
  std::erase_if(replies,
                [](const ControlReply& reply) { return std::holds_alternative<Discard>(reply); });
  std::move(replies.begin(), replies.end(), std::back_inserter(taken_replies_));
}

std::vector<ControlReply> ServeWorld::TakeAllReplies() {
  TakeReplies();
  return std::exchange(taken_replies_, {});
}

ConnectionId ServeWorld::Reserve(const shm::JobSpec& spec, Rank rank, uint32_t uid,
                                 uint64_t nonce) {
  ReserveJob event;
  event.connection = ++last_connection_;
  const std::vector<std::byte> encoded = shm::Encode(spec);
  auto decoded = shm::Decode(encoded);  // as the control thread does, with its sums
  event.spec = decoded.ok() ? std::make_shared<const shm::JobSpec>(std::move(decoded).value())
                            : std::make_shared<const shm::JobSpec>(spec);
  event.fingerprint = shm::Fingerprint(encoded);
  event.rank = rank;
  event.uid = uid;
  event.pid = pid_ != 0 ? pid_ : static_cast<int32_t>(1000 + last_connection_);
  event.nonce = nonce != 0 ? nonce : NonceOf(last_connection_);
  event.may_wait = may_wait_;
  event.note = note_;
  event.client_owned_rcache = !gpus_.empty();
  Post(std::move(event));
  return last_connection_;
}

std::unique_ptr<FakeRank> ServeWorld::Attach(const ReserveGranted& granted, Rank rank) {
  for (const std::span<std::byte> range : granted.to_zero)
    std::memset(range.data(), 0, range.size());
  auto port = shm::ServerPort::Create(granted.session);
  UniqueFd exported;
  auto server_side = device_.CreateExportable(granted.rcache_bytes, &exported);
  TP_CHECK(port.ok() && server_side.ok(), "memory for one session");
  auto client_side = device_.Import(exported, granted.rcache_bytes);
  shm::ServerPort& rings = **port;
  auto client =
      shm::ClientPort::Map(Duplicate(rings.submission_fd()), Duplicate(rings.completion_fd()),
                           Duplicate(rings.doorbell_fd()));
  TP_CHECK(client_side.ok() && client.ok(), "memory for one session");
  AttachSession attach{granted.connection, std::move(port).value(), std::move(server_side).value()};
  auto joined = std::make_unique<FakeRank>(granted.connection, rank, std::move(client).value(),
                                           std::move(client_side).value(), std::move(exported));
  Bring(granted, rank, &attach, joined.get());
  Post(std::move(attach));
  joined->SetNames(NonceOf(granted.connection), index_->NonceOf(granted.job));
  return joined;
}

std::unique_ptr<FakeRank> ServeWorld::Join(const shm::JobSpec& spec, Rank rank, uint32_t uid) {
  Reserve(spec, rank, uid);
  loop_->Turn();
  const auto granted = TakeReply<ReserveGranted>();
  if (!granted) return nullptr;
  auto joined = Attach(*granted, rank);
  loop_->Turn();
  if (tier_ != nullptr) Settle();  // the job's ranges reach the disk first
  return joined;
}

shm::Completion ServeWorld::Await(FakeRank* rank, uint64_t counter) {
  for (int turn = 0; turn < 1000000; ++turn) {
    if (const auto completion = rank->Take()) {
      TP_CHECK(completion->counter == counter, "answers come in the order that the test expects");
      return *completion;
    }
    TP_CHECK(!rank->Ended(), "the session lives while the test waits");
    TurnOn();
  }
  TP_CHECK(false, "the answer comes");
  return {};
}

Status ServeWorld::Command(decltype(AdminCommand::what) what) {
  Post(AdminCommand{
      {.level = AdminLevel::kAdmin}, std::make_shared<CommandTicket>(), std::move(what)});
  loop_->Turn();
  auto done = TakeReply<CommandDone>();
  TP_CHECK(done.has_value(), "a change is answered in its turn");
  return done->result;
}

Status ServeWorld::SetQuota(const std::string& job, const QuotaChange& change) {
  return Command(SetJobQuota{job, change});
}

std::vector<SaveRequest> ServeWorld::TakeSaves() {
  std::vector<SaveRequest> saves;
  saves_.TakeAll(&saves);
  for (SaveRequest& save : saves) {
    if (save.list) save.tensors = std::exchange(save.list, {})();
  }
  return saves;
}

}  // namespace tidepool::memserver
