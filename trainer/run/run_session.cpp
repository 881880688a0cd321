#include "trainer/run/run_session.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "base/formats/content_hash.h"
#include "base/log.h"
#include "base/point.h"
#include "base/units.h"
#include "trainer/advice/gpu_states.h"
#include "trainer/advice/host_fit.h"
#include "trainer/launch/done_marks.h"
#include "trainer/launch/stop_flag.h"
#include "trainer/run/resuming/run_note.h"

namespace tidepool::trainer {
namespace {

constexpr size_t kPathMax = 256;
constexpr int64_t kSlotPauseNs = 50 * kNsPerMs;
constexpr int64_t kConnectWaitNs = 10 * kNsPerSecond;  // for a server that is being restarted
constexpr int64_t kMeshRetryMs = 3000;                 // short: a run that resumes tries again
constexpr int64_t kTellAfterNs = 2 * kNsPerSecond;
// Bytes per upload to the rCache; larger ones would only delay the first copy.
constexpr uint64_t kUploadBytesMax = 8 * kMiB;

// Hash that distinguishes runs alive at the same time.
ContentHash RunHash(const RankPlace& place, const std::string& job) {
  const std::string text = job + "\n" + place.run_id + "\n" + place.master_host + ":" +
                           std::to_string(place.master_port) + "\n" +
                           std::to_string(place.restarts);
  return HashOf(std::as_bytes(std::span(text)));
}

// Hash of what all ranks of a run must agree on. The placement of states is settled with the
// server.
ContentHash SpecHash(client::JobSpec spec) {
  spec.states_on_gpu = 0;
  return HashOf(client::Encode(spec));
}

Status StoppedBySignal() {
  return Status(ErrorId::kSessionEnded, "stopped by a signal while other ranks were waited for");
}

}  // namespace

int64_t RunSession::CollectiveTimeoutMs() const {
  // A rank that waits for the server keeps the others blocked in a collective.
  const int64_t timeout_ms = kCollectiveTimeoutMs + waits_.server_timeout_ns / kNsPerMs;
  return standalone() ? timeout_ms + ReadyTimeoutNs(PrivateServer()) / kNsPerMs : timeout_ms;
}

Rendezvous RunSession::MeetingPlace() const {
  Rendezvous meet;
  meet.rank = place_.rank;
  meet.world = place_.world;
  meet.clock = task_.clock;
  meet.local_rank = place_.local_rank;
  meet.local_world = place_.local_world;
  meet.host = place_.master_host;
  meet.port = place_.master_port;

  meet.serves_store = place_.rank == 0 && !place_.agent_serves_store;
  meet.one_machine = place_.local_world == place_.world;
  meet.run = RunHash(place_, task_.spec.name);
  meet.spec = SpecHash(task_.spec);
  meet.prefix = HexOf(meet.run);
  meet.timeout_ms = CollectiveTimeoutMs();
  return meet;
}

Result<std::unique_ptr<RunSession>> RunSession::Make(const RankPlace& place, SessionTask task) {
  std::unique_ptr<RunSession> session(new RunSession(place, std::move(task)));
  TP_ASSIGN_OR_RETURN(session->waits_, WaitsOf(session->task_.job, session->task_.server));
  // A private server's states end with it, so there is nothing to wait for.
  if (session->standalone()) session->waits_ = {.pool_bytes = session->waits_.pool_bytes};
  if (!place.roll.empty()) {
    Result<RankRollView> roll = RankRollView::Open(place.roll, place.world);
    if (roll.ok()) session->roll_.emplace(std::move(roll).value());
    if (!roll.ok())
      LogWarn("other ranks are waited for without knowing whether they live",
              {{"why", roll.status().Line()}});
  }
  return session;
}

Result<std::unique_ptr<RunSession>> RunSession::Open(const RankPlace& place, SessionTask task) {
  TP_ASSIGN_OR_RETURN(std::unique_ptr<RunSession> session, Make(place, std::move(task)));
  TP_RETURN_IF_ERROR(session->Attach());
  TP_RETURN_IF_ERROR(session->Meet());
  return session;
}

RunSession::~RunSession() {
  Leave();
}

Status RunSession::StartPrivateServer() {
  TP_RETURN_IF_ERROR(MeetWorld());
  Status started;
  if (place_.rank == 0) started = LaunchServer();
  Status shared = ShareSocketDir();  // also after a failure, or the other ranks would wait
  TP_RETURN_IF_ERROR(started);
  return shared;
}

StandaloneOptions RunSession::PrivateServer() const {
  StandaloneOptions standalone;
  standalone.program = task_.server.program;
  standalone.pool_bytes = waits_.pool_bytes.value_or(RoundUp(
      client::StateBytesOf(task_.spec).total() + client::FrozenPoolBytes(task_.spec), kMiB));
  standalone.rcache_limit_bytes = RoundUp(task_.spec.rcache_bytes, kMiB) * place_.local_world;
  return standalone;
}

Status RunSession::LaunchServer() {
  TP_RETURN_IF_ERROR(CheckPrivatePool(PrivateServer().pool_bytes, ReadMemoryBudget()));
  TP_ASSIGN_OR_RETURN(server_, StandaloneServer::Start(PrivateServer(), task_.clock));
  socket_dir_ = server_->socket_dir();
  return {};
}

// Local rank 0 has started the server and tells all ranks where it is. With a private server all
// ranks of a run are on one node.
Status RunSession::ShareSocketDir() {
  std::array<char, kPathMax> path{};
  std::memcpy(path.data(), socket_dir_.data(), std::min(socket_dir_.size(), kPathMax - 1));
  TP_RETURN_IF_ERROR(world_->Broadcast(path.data(), path.size()));
  socket_dir_ = path.data();
  if (socket_dir_.empty())
    return Status(ErrorId::kNoServer, "rank 0 could not start the private memserver")
        .Fix("see the output of rank 0");
  return {};
}

DoneKeys RunSession::MakeDoneKeys() const {
  return DoneKeys(MeetingPlace(), task_.spec.name);
}

bool RunSession::DoneBefore() const {
  return place_.agent_serves_store && place_.restarts > 0 && MakeDoneKeys().AllSet();
}

Status RunSession::Attach() {
  TP_POINT("trainer.coming");
  if (place_.agent_serves_store && place_.restarts == 0) MakeDoneKeys().Clear();
  // If the private server could not be started, the other ranks must learn that and not contact
  // another process's server.
  if (!standalone()) socket_dir_ = task_.server.socket_dir;
  if (standalone() && socket_dir_.empty()) TP_RETURN_IF_ERROR(StartPrivateServer());

  client::ClientOptions client;
  client.clock = task_.clock;
  client.socket_dir = socket_dir_;
  client.server_timeout_ns = waits_.server_timeout_ns;
  client.on_wait = task_.say;
  client.queue_timeout_ns = waits_.queue_timeout_ns;
  client.give_up = StopFlag::Requested;
  client.brought = task_.device.brought;
  client.run_note = task_.note;

  if (task_.resumes)
    client.connect_timeout_ns =
        std::max(client.connect_timeout_ns, std::min(kConnectWaitNs, waits_.server_timeout_ns));
  return TakeSlot(client);
}

// The client's own wait for a slot (attach_retry) does not react to signals.
Status RunSession::TakeSlot(const client::ClientOptions& options) {
  Clock* const clock = task_.clock;
  const int64_t start_ns = clock->NowNs();
  bool told = false;
  for (;;) {
    Result<std::unique_ptr<client::MemClient>> made =
        client::MemClient::Connect(options, task_.spec, place_.rank);
    const int64_t waited_ns = clock->NowNs() - start_ns;

    if (made.ok()) {
      client_ = std::move(made).value();
      return task_.device.take_flags ? task_.device.take_flags(client_->attachment()) : Status();
    }

    if (GivesUpGpuStates(made.status())) continue;
    if (made.status().id() == ErrorId::kJobMismatch && !no_gpu_states_.ok() &&
        no_gpu_states_.id() != ErrorId::kJobMismatch) {
      return Status(no_gpu_states_)
          .Fix("give --gpu-states off: other ranks have states there, and this one cannot");
    }

    const bool taken = made.status().id() == ErrorId::kRankTaken && task_.resumes;
    if (!taken || waited_ns > waits_.slot_timeout_ns) {
      Status why = taken ? SeatStaysTaken(made.status(), waited_ns, standalone()) : made.status();
      const bool is_alone = why.id() == ErrorId::kNoServer && !standalone();
      if (is_alone && !task_.no_server_fix.empty()) why = Status(why).Fix(task_.no_server_fix);
      return why.where().empty() ? Status(why).Where("memserver at " + options.socket_dir) : why;
    }

    if (StopFlag::Requested()) return StoppedBySignal();
    if (!std::exchange(told, told || waited_ns > kTellAfterNs) && told && task_.say) {
      task_.say("waiting for the ranks of the run before to leave the job: " +
                made.status().what());
    }
    clock->SleepNs(kSlotPauseNs);
  }
}

bool RunSession::GivesUpGpuStates(const Status& refused) {
  if (!task_.states_may_stay_on_host || task_.spec.states_on_gpu == 0 ||
      !IsAboutGpuStates(refused.id()))
    return false;
  task_.spec.states_on_gpu = 0;
  no_gpu_states_ = refused;
  if (task_.say) task_.say("all states stay on the host: " + refused.what());
  return true;
}

RankStanding RunSession::StandingOf(uint32_t rank) const {
  const RollEntry entry = roll_->Read(rank);
  if (entry.state == RollEntry::State::kEnded)
    return {.kind = RankStanding::Kind::kEnded, .exit_code = entry.exit_code};
  if (entry.state != RollEntry::State::kComing || !ProcessLives(entry.pid)) return {};
  return {.kind = RankStanding::Kind::kComing, .pid = entry.pid};
}

Status RunSession::Interrupted() {
  if (StopFlag::Requested()) return StoppedBySignal();
  if (task_.interrupted) TP_RETURN_IF_ERROR(task_.interrupted());
  return SlotLost();
}

Status RunSession::SlotLost() {
  return client_ ? client_->Check() : Status();
}

Status RunSession::MeetWorld() {
  if (world_) return {};
  Rendezvous meet = MeetingPlace();
  if (task_.saves) {  // rank 0 saves alone while the others wait in a barrier
    meet.gather_timeout_ms = meet.timeout_ms;
    meet.timeout_ms += client::ClientOptions().save_timeout_ns / kNsPerMs;
  }
  if (task_.resumes) {
    meet.mesh_timeout_ms = kMeshRetryMs;
    meet.gather_timeout_ms = waits_.rejoin_timeout_ns / kNsPerMs;
  }

  meet.interrupted = [this] { return Interrupted(); };
  if (roll_) meet.standing = [this](uint32_t rank) { return StandingOf(rank); };
  meet.say = [](const std::string& line) { LogWarn(line); };
  meet.doomed = [this] { return SlotLost(); };
  meet.stuck = task_.stuck;

  if (!meeting_) {
    TP_ASSIGN_OR_RETURN(meeting_, Meeting::Open(meet));
  }
  TP_RETURN_IF_ERROR(meeting_->Gather());
  TP_ASSIGN_OR_RETURN(world_, meeting_->MakeGroup(WholeRun(meet)));
  return CompareNotes();
}

// At a first start the server has no note to compare with; a private server never has one.
Status RunSession::CompareNotes() {
  std::array<char, kRunNoteBytesMax + 1> first{};
  std::memcpy(first.data(), task_.note.data(), std::min(task_.note.size(), kRunNoteBytesMax));
  TP_RETURN_IF_ERROR(world_->Broadcast(first.data(), first.size()));
  const Status same =
      CheckRankNote(first.data(), task_.note, {.job = task_.spec.name, .rank = place_.rank});

  std::vector<double> refused(place_.world, 0);
  refused[place_.rank] = same.ok() ? 0 : 1;
  TP_RETURN_IF_ERROR(world_->SumDoubles(refused.data(), refused.size()));
  return same.ok() ? CheckOtherRanks(refused, task_.spec.name) : same;
}

Result<uint64_t> RunSession::ProvideFrozen(const client::ReadFrozen& read) {
  const client::UploadRange range{0, std::min(kUploadBytesMax, client_->attachment().rcache_bytes),
                                  task_.device.copy_in};
  return client::ProvideFrozen(client_.get(), task_.spec, place_.rank, range, read);
}

void RunSession::AwaitServer() {
  if (client_ && !StopFlag::Requested()) static_cast<void>(client_->Check());
}

void RunSession::GiveJobBack() {
  if (client_) static_cast<void>(client_->Detach());
}

void RunSession::Leave() {
  // Groups first: their operations in flight access the client's rCache. They fail at once if a
  // peer has died or left.
  experts_.clear();
  routing_.reset();
  group_storage_.clear();
  link_storage_.clear();
  if (task_.device.give_up_flags) task_.device.give_up_flags();
  world_.reset();
  // Leaves the meeting before the server can admit ranks for the next one.
  LeaveMeeting();
  if (place_.rank != 0) meeting_.reset();  // rank 0's may hold the port open
  client_.reset();
}

void RunSession::LeaveMeeting() {
  if (meeting_) meeting_->Disband();
}

Status RunSession::Close() {
  Status together = world_ ? world_->Barrier() : Status();
  TP_RETURN_IF_ERROR(together);
  // A private server must still be shut down.
  if (!standalone() && !place_.done_mark.empty()) SetDoneMark(place_.done_mark, place_.rank);
  if (place_.agent_serves_store) MakeDoneKeys().Set();
  TP_POINT("trainer.run_done");
  if (task_.device.give_up_flags) task_.device.give_up_flags();
  Status detached = client_ ? client_->Detach() : Status();
  client_.reset();
  TP_POINT("trainer.detached");
  // The private server ends when every rank has left it.
  if (standalone()) together = world_->Barrier();
  Status stopped = server_ ? server_->Stop() : Status();
  TP_RETURN_IF_ERROR(detached);
  TP_RETURN_IF_ERROR(together);
  return stopped;
}

}  // namespace tidepool::trainer
