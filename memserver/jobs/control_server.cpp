#include "memserver/jobs/control_server.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/jobs/accept_pace.h"
#include "memserver/jobs/acceptor.h"
#include "memserver/jobs/handshake.h"
#include "memserver/jobs/log_limiter.h"
#include "memserver/jobs/memory_preparer.h"
#include "memserver/jobs/peer_identity.h"
#include "memserver/jobs/rank_watch.h"
#include "shm/fd_socket.h"
#include "shm/frames.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {

namespace asio = boost::asio;
using Descriptor = asio::posix::stream_descriptor;
using boost::system::error_code;

namespace {
constexpr uint32_t kFdsOfClientMax = 2;     // of Resume; Hello and Save bring one at most
constexpr uint32_t kPacketsPerWakeUp = 16;  // of one client, before others have their turn
constexpr int64_t kLogIntervalNs = 60 * kNsPerSecond;
constexpr int64_t kAcceptPauseNs = 50 * kNsPerMs;  // after a failed accept, so that it cannot become a busy loop

void GiveTo(Descriptor* owner, UniqueFd fd) {
  owner->assign(fd.get());  // throws where the system cannot watch it; then it is still ours to close
  fd.Release();
}

}  // namespace

// One accepted socket. `death` is the pidfd of the process that connected.
struct Connection {
  Connection(asio::io_context& context, ConnectionId id, UniqueFd fd, PeerIdentity peer)
      : protocol(id, peer.user.uid, peer.user.pid, peer.process_start),
        uid(peer.user.uid),
        pid(peer.user.pid),
        socket(context),
        death(context),
        greeting(context) {
    GiveTo(&socket, std::move(fd));
    if (peer.pidfd.valid()) GiveTo(&death, std::move(peer.pidfd));
  }
  ConnectionProtocol protocol;
  uint32_t uid;
  int32_t pid;
  Descriptor socket, death;
  asio::steady_timer greeting;
  std::vector<UniqueFd> granted;  // in the order of Welcome or Resumed; from the end of preparation until it is sent
};

struct ControlServer::Reactor {
  Reactor(const ControlOptions& control_options, const ControlNeighbours& control_neighbours, UniqueFd listening)
      : options(control_options),
        neighbours(control_neighbours),
        preparer(control_neighbours.device, control_neighbours.gpus),
        acceptor(listening.get()),
        listener(context, listening.Release()),
        replies(context, Duplicate(control_neighbours.from_loop->event_fd()).Release()),
        prepared(context, Duplicate(preparer.results().event_fd()).Release()),
        lost_ranks(context, Duplicate(awaited.event_fd()).Release()),
        accept_pause(context) {}

  // --- accepting ---
  void WatchListener();
  void PauseListening(int64_t ns);
  void AcceptWaiting();
  void Admit(UniqueFd socket);
  Status CheckRoomFor(const PeerUser& user) const;
  void LogRefusal(const Status& why);
  // --- one connection ---
  void WatchSocket(ConnectionId id);
  void WatchDeath(ConnectionId id);
  void StartGreetingLimit(ConnectionId id);
  void ReadPackets(ConnectionId id);
  Status HandlePacket(Connection* connection, shm::Packet packet);
  void Send(ConnectionId id, const shm::Frame& frame, std::span<const int> fds = {});
  // Ends a connection: tells the client when there is a reason, and the loop once.
  void EndBadly(ConnectionId id, const Status& why, bool ours = false);
  void Close(ConnectionId id, const std::string& cause, bool ours = false);
  Connection* Find(ConnectionId id);
  // --- from the loop and the preparer ---
  void Watch(Descriptor* event, void (Reactor::*take)());
  void TakeReplies();
  void TakePrepared();
  void TakeLostRanks();
  void Attach(PreparedMemory memory);
  void On(ReserveGranted reply);
  void On(AwaitRank reply);
  void On(Refused reply);
  void On(Queued reply) { Send(reply.connection, shm::QueuedFrame{reply.place, reply.why}); }
  void On(Attached reply);
  void On(SessionOver reply);
  void On(PeerGone reply) { Send(reply.connection, shm::PeerLostFrame{reply.rank}); }
  void On(SaveDone reply);
  void On(CommandDone reply) { reply.ticket->Answer(std::move(reply.result)); }
  void On(SnapshotReady reply) { neighbours.snapshots->Push(std::move(reply.snapshot)); }
  void On(Discard) {}
  void On(ImportStates reply) { preparer.Start({.grant = {}, .memory = {}, .protocol = 0, .import = std::move(reply)}); }
  void On(Stopped) { context.stop(); }

  ControlOptions options;
  ControlNeighbours neighbours;
  SteadyClock clock;
  MemoryPreparer preparer;
  RankWatch awaited;
  asio::io_context context{1};
  Acceptor acceptor;
  AcceptPace pace;
  Descriptor listener, replies, prepared, lost_ranks;
  asio::steady_timer accept_pause;
  std::map<ConnectionId, std::unique_ptr<Connection>> connections;
  std::map<ConnectionId, std::string> lost_in_preparation;  // the loop is told when the preparer no longer touches their memory
  ConnectionId last_id = 0;
  LogLimiter bad_input_log{kLogIntervalNs}, refusal_log{kLogIntervalNs};
};

// --- accepting ---

void ControlServer::Reactor::WatchListener() {
  listener.async_wait(Descriptor::wait_read, [this](const error_code& error) {
    if (!error) AcceptWaiting();
  });
}

void ControlServer::Reactor::PauseListening(int64_t ns) {
  accept_pause.expires_after(std::chrono::nanoseconds(ns));
  accept_pause.async_wait([this](const error_code& error) {
    if (!error) WatchListener();
  });
}

void ControlServer::Reactor::AcceptWaiting() {
  const bool slow = pace.slow(clock.NowNs());
  for (uint32_t i = 0; i < (slow ? AcceptPace::kAcceptsSlowly : AcceptPace::kAcceptsAtOnce); ++i) {
    auto socket = acceptor.Next();
    if (!socket.ok()) {
      LogRefusal(socket.status());
      return PauseListening(kAcceptPauseNs);
    }
    if (!socket->valid()) break;
    Admit(std::move(socket).value());
  }
  slow ? PauseListening(AcceptPace::kPauseNs) : WatchListener();
}

void ControlServer::Reactor::Admit(UniqueFd socket) {
  auto peer = IdentifyPeer(socket.get());
  const Status status = peer.ok() ? CheckRoomFor(peer->user) : peer.status();
  if (!status.ok()) {
    shm::SendPacket(socket.get(), shm::EncodeFrame(shm::RefusedFrame{status}));
    pace.NoteBroken(clock.NowNs());
    return LogRefusal(status);
  }
  const ConnectionId id = ++last_id;
  try {
    connections.emplace(id, std::make_unique<Connection>(context, id, std::move(socket), std::move(peer).value()));
  } catch (const boost::system::system_error& error) {  // the system has no room to watch one more descriptor
    return LogRefusal(Status(ErrorId::kTooManySessions, "memserver cannot watch another connection").Why(error.what()));
  }
  StartGreetingLimit(id);
  WatchSocket(id);
  WatchDeath(id);
}

Status ControlServer::Reactor::CheckRoomFor(const PeerUser& user) const {
  TP_RETURN_IF_ERROR(CheckMayConnect(options.access, user));
  const auto of_user = [&user](const auto& entry) { return entry.second->uid == user.uid; };
  const bool bounded = LevelOf(options.access, user) != AdminLevel::kAdmin;
  const auto own = bounded ? std::count_if(connections.begin(), connections.end(), of_user) : 0;
  return CheckConnections({connections.size(), options.connections_max}, {static_cast<size_t>(own), options.user_connections_max}, user);
}

void ControlServer::Reactor::LogRefusal(const Status& why) {
  if (const auto left_out = refusal_log.Allow(clock.NowNs())) LogWarn(why.Line(), {{"left_out", *left_out}});
}

// --- one connection ---

Connection* ControlServer::Reactor::Find(ConnectionId id) {
  const auto found = connections.find(id);
  return found == connections.end() ? nullptr : found->second.get();
}

void ControlServer::Reactor::WatchSocket(ConnectionId id) {
  Find(id)->socket.async_wait(Descriptor::wait_read, [this, id](const error_code& error) {
    if (!error) ReadPackets(id);
  });
}

void ControlServer::Reactor::WatchDeath(ConnectionId id) {
  Connection* connection = Find(id);
  if (!connection->death.is_open() || TP_PLANTED("jobs.death_not_watched")) return;  // dead already: the socket's end follows
  connection->death.async_wait(Descriptor::wait_read, [this, id](const error_code& error) {
    // asio gives the place of a closed descriptor to the next one, and with it an event that still stands in its queue: look first.
    Connection* woken = error ? nullptr : Find(id);
    if (woken != nullptr) HasEnded(woken->death.native_handle()) ? Close(id, "its process has ended") : WatchDeath(id);
  });
}

void ControlServer::Reactor::StartGreetingLimit(ConnectionId id) {
  Connection* connection = Find(id);
  connection->greeting.expires_after(std::chrono::nanoseconds(options.greeting_timeout_ns));
  connection->greeting.async_wait([this, id](const error_code& error) {
    Connection* waiting = Find(id);
    if (error || waiting == nullptr || !waiting->protocol.HalfOpen()) return;
    EndBadly(id, Status(ErrorId::kHandshakeBad, "the greeting was not complete in time"));
  });
}

void ControlServer::Reactor::ReadPackets(ConnectionId id) {
  shm::Packet packet;
  for (uint32_t i = 0; i < kPacketsPerWakeUp; ++i) {
    Connection* connection = Find(id);
    if (connection == nullptr) return;
    switch (shm::ReceivePacket(connection->socket.native_handle(), kFdsOfClientMax, &packet)) {
      case shm::SocketResult::kWouldBlock: return WatchSocket(id);
      case shm::SocketResult::kClosed: return Close(id, "it closed the connection");
      case shm::SocketResult::kMalformed:
        return EndBadly(id, Status(ErrorId::kHandshakeBad, "a packet is truncated or brings too many descriptors"));
      case shm::SocketResult::kDone: break;
    }
    const Status handled = HandlePacket(connection, std::move(packet));
    if (!handled.ok()) return EndBadly(id, handled);
  }
  WatchSocket(id);
}

Status ControlServer::Reactor::HandlePacket(Connection* connection, shm::Packet packet) {
  TP_ASSIGN_OR_RETURN(shm::Frame frame, shm::DecodeFrame(packet.bytes));
  TP_RETURN_IF_ERROR(CheckDescriptors(frame, packet.fds.size()));
  TP_ASSIGN_OR_RETURN(FrameAction action, connection->protocol.OnFrame(std::move(frame), std::move(packet.fds)));
  if (!connection->protocol.HalfOpen()) connection->greeting.cancel();
  if (action.event) neighbours.to_loop->Push(std::move(*action.event));
  if (action.answer && shm::SendPacket(connection->socket.native_handle(), shm::EncodeFrame(*action.answer)) != shm::SocketResult::kDone) {
    return Status(ErrorId::kHandshakeBad, "it does not read its control socket");
  }
  return Status();
}

void ControlServer::Reactor::Send(ConnectionId id, const shm::Frame& frame, std::span<const int> fds) {
  Connection* connection = Find(id);
  if (connection == nullptr) return;
  const auto result = shm::SendPacket(connection->socket.native_handle(), shm::EncodeFrame(frame), fds);
  if (result == shm::SocketResult::kDone) return;
  // The frames of one session fit into its socket many times over: a full socket means that the client reads nothing.
  Close(id, result == shm::SocketResult::kClosed ? "it closed the connection" : "it does not read its control socket");
}

void ControlServer::Reactor::EndBadly(ConnectionId id, const Status& why, bool ours) {
  Connection* connection = Find(id);
  if (connection == nullptr) return;
  if (const auto left_out = bad_input_log.Allow(clock.NowNs())) {
    LogWarn("connection ended: " + why.Line(), {{"pid", connection->pid}, {"left_out", *left_out}});
  }
  const shm::Frame frame = connection->protocol.LastWords(why);
  shm::SendPacket(connection->socket.native_handle(), shm::EncodeFrame(frame));
  Close(id, why.Line(), ours);
}

void ControlServer::Reactor::Close(ConnectionId id, const std::string& cause, bool ours) {
  const auto found = connections.find(id);
  if (found == connections.end()) return;
  const ConnectionState state = found->second->protocol.state();
  if (found->second->protocol.HalfOpen()) pace.NoteBroken(clock.NowNs());
  connections.erase(found);
  TP_POINT("control.connection_closed");
  if (state == ConnectionState::kLeaving) return;  // the loop knows of its goodbye
  if (state == ConnectionState::kPreparing && !TP_PLANTED("jobs.memory_back_while_zeroed")) {
    lost_in_preparation.emplace(id, cause);
  } else {
    neighbours.to_loop->Push(ConnectionLost{id, cause, ours});
  }
}

// --- from the loop and the preparer ---

void ControlServer::Reactor::Watch(Descriptor* event, void (Reactor::*take)()) {
  event->async_wait(Descriptor::wait_read, [this, event, take](const error_code& error) {
    if (error) return;
    (this->*take)();
    Watch(event, take);
  });
}

void ControlServer::Reactor::TakeReplies() {
  neighbours.from_loop->ClearEvent();
  std::vector<ControlReply> taken;
  neighbours.from_loop->TakeAll(&taken);
  for (ControlReply& reply : taken) std::visit([this](auto&& content) { On(std::move(content)); }, std::move(reply));
}

void ControlServer::Reactor::TakePrepared() {
  preparer.results().ClearEvent();
  std::vector<PreparedMemory> taken;
  preparer.results().TakeAll(&taken);
  for (PreparedMemory& memory : taken) Attach(std::move(memory));
}

void ControlServer::Reactor::TakeLostRanks() {
  for (const AwaitedRankLost& rank : awaited.TakeLost()) neighbours.to_loop->Push(rank);
}

void ControlServer::Reactor::Attach(PreparedMemory memory) {
  if (memory.imported) return neighbours.to_loop->Push(std::move(*memory.imported));
  const ConnectionId id = memory.connection;
  if (const auto lost = lost_in_preparation.extract(id)) {
    neighbours.to_loop->Push(ConnectionLost{id, lost.mapped()});
    return;
  }
  Connection* connection = Find(id);
  if (connection == nullptr) return;
  connection->protocol.SetState(ConnectionState::kAttaching);
  if (!memory.result.ok()) return EndBadly(id, memory.result, true);
  auto granted = DescriptorsFor(&memory, connection->protocol.resume().has_value());
  if (!granted.ok()) return EndBadly(id, granted.status(), true);
  connection->granted = std::move(granted).value();
  neighbours.to_loop->Push(AttachSession{id, std::move(memory.port), std::move(memory.rcache), std::move(memory.brought)});
}

void ControlServer::Reactor::On(ReserveGranted reply) {
  Connection* connection = Find(reply.connection);
  if (connection == nullptr) return;  // lost in between; the loop has been told
  connection->protocol.SetState(ConnectionState::kPreparing);
  preparer.Start({std::move(reply), connection->protocol.TakeMemory(), connection->protocol.agreed()});
}

void ControlServer::Reactor::On(AwaitRank reply) {
  if (!awaited.Watch(reply)) neighbours.to_loop->Push(AwaitedRankLost{reply.job, reply.rank, reply.nonce});
}

void ControlServer::Reactor::On(Refused reply) {
  Send(reply.connection, shm::RefusedFrame{reply.why});
  Close(reply.connection, "refused: " + reply.why.Line());
}

void ControlServer::Reactor::On(Attached reply) {
  Connection* connection = Find(reply.connection);
  if (connection == nullptr) return;
  connection->protocol.SetState(ConnectionState::kOpen);
  if (const auto& resume = connection->protocol.resume()) awaited.Forget({reply.job, resume->rank, resume->nonce});
  const auto granted = std::exchange(connection->granted, {});
  std::vector<int> fds;
  for (const UniqueFd& fd : granted) fds.push_back(fd.get());
  if (const uint32_t agreed = connection->protocol.agreed(); agreed != shm::kOwnProtocols.highest) {
    LogInfo("a session of an older protocol", {{"session", reply.session}, {"protocol", agreed}, {"newest", shm::kOwnProtocols.highest}});
  }
  Send(reply.connection, connection->protocol.AnswerTo(reply), fds);
}

void ControlServer::Reactor::On(SessionOver reply) {
  // Also the answer to a goodbye, which a trainer must tell from the end of a server that dies before it has taken the session down.
  Send(reply.connection, shm::EndedFrame{reply.why});
  Close(reply.connection, "session over: " + reply.why.Line());
}

void ControlServer::Reactor::On(SaveDone reply) {
  if (Connection* connection = Find(reply.connection)) connection->protocol.SaveEnded();
  Send(reply.connection, shm::SaveDoneFrame{reply.result});
}

// --- the server ---

Result<std::unique_ptr<ControlServer>> ControlServer::Open(const ControlOptions& options, const ControlNeighbours& neighbours) {
  TP_ASSIGN_OR_RETURN(UniqueFd listening, shm::ListenSocket(shm::DataSocketPath(options.socket_dir)));
  try {
    return std::unique_ptr<ControlServer>(new ControlServer(std::make_unique<Reactor>(options, neighbours, std::move(listening))));
  } catch (const boost::system::system_error& error) {
    return Status(ErrorId::kSocketFailed, "the data socket cannot be served").Where(options.socket_dir).Why(error.what());
  }
}

ControlServer::ControlServer(std::unique_ptr<Reactor> reactor) : reactor_(std::move(reactor)) {}

ControlServer::~ControlServer() = default;

void ControlServer::Run() {
  reactor_->WatchListener();
  reactor_->Watch(&reactor_->replies, &Reactor::TakeReplies);
  reactor_->Watch(&reactor_->prepared, &Reactor::TakePrepared);
  reactor_->Watch(&reactor_->lost_ranks, &Reactor::TakeLostRanks);
  reactor_->context.run();
}

}  // namespace tidepool::memserver
