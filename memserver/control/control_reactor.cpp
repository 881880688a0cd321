#include "memserver/control/control_reactor.h"

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "shm/fd_socket.h"
#include "shm/frames.h"
#include "shm/segment.h"
#include "shm/spec/encode.h"

namespace tidepool::memserver {

using boost::system::error_code;

namespace {
constexpr uint32_t kPacketsPerWakeUp = 16;  // of one client in one turn

Status MalformedPacket() {
  return Status(ErrorId::kHandshakeBad,
                "a packet is truncated, or brings descriptors that do not belong there");
}
}  // namespace

// --- accepting ---

void ControlReactor::Admit(UniqueFd socket) {
  auto peer = IdentifyPeer(socket.get());
  const Status status = peer.ok() ? CheckRoomFor(peer->user) : peer.status();
  if (!status.ok()) {
    shm::SendPacket(socket.get(), shm::EncodeFrame(shm::RefusedFrame{status}));
    listener.NoteBroken();
    return listener.LogRefusal(status);
  }

  const ConnectionId id = ++last_id;
  try {
    connections.emplace(id, std::make_unique<Connection>(context, id, std::move(socket),
                                                         std::move(peer).value(), &shelf));
  } catch (const boost::system::system_error&
               error) {  // the system has no room to watch one more descriptor
    return listener.LogRefusal(
        Status(ErrorId::kTooManySessions, "memserver cannot watch another connection")
            .Why(error.what()));
  }

  pace.Spend(Find(id)->uid, UserPace::kConnection, neighbours.clock->NowNs());
  StartTimeLimit(id);
  WatchSocket(id);
  WatchDeath(id);
}

Status ControlReactor::CheckRoomFor(const PeerUser& user) const {
  TP_RETURN_IF_ERROR(CheckMayConnect(options.access, user));
  const auto of_user = [&user](const auto& entry) { return entry.second->uid == user.uid; };
  const bool bounded = LevelOf(options.access, user) != AdminLevel::kAdmin;
  const auto own = bounded ? std::count_if(connections.begin(), connections.end(), of_user) : 0;
  return CheckConnections({connections.size(), options.connections_max},
                          {static_cast<size_t>(own), options.user_connections_max}, user);
}

// --- one connection ---

Connection* ControlReactor::Find(ConnectionId id) {
  const auto found = connections.find(id);
  return found == connections.end() ? nullptr : found->second.get();
}

void ControlReactor::WatchSocket(ConnectionId id) {
  Find(id)->socket.async_wait(Descriptor::wait_read, [this, id](const error_code& error) {
    if (!error) ReadPackets(id);
  });
}

void ControlReactor::WatchDeath(ConnectionId id) {
  Connection* connection = Find(id);
  // Dead already: the socket's end follows.
  if (!connection->death.is_open() || TP_PLANTED("jobs.death_not_watched")) return;
  connection->death.async_wait(Descriptor::wait_read, [this, id](const error_code& error) {
    // asio gives the slot of a closed descriptor to the next one, and with it an event that is
    // still queued: check first.
    Connection* woken = error ? nullptr : Find(id);
    if (woken != nullptr)
      HasEnded(woken->death.native_handle()) ? Close(id, "its process has ended") : WatchDeath(id);
  });
}

void ControlReactor::StartTimeLimit(ConnectionId id) {
  Connection* connection = Find(id);
  connection->limit.expires_after(std::chrono::nanoseconds(options.greeting_timeout_ns));
  connection->limit.async_wait([this, id](const error_code& error) {
    Connection* waiting = Find(id);
    if (error || waiting == nullptr) return;
    if (waiting->at_door)
      return EndBadly(id, Status(ErrorId::kHandshakeBad, "descriptors of this user do not close"));
    if (waiting->protocol.HalfOpen())
      EndBadly(id, Status(ErrorId::kHandshakeBad, "the greeting was not complete in time"));
  });
}

void ControlReactor::ReadPackets(ConnectionId id) {
  shm::PacketHead head;
  shm::Packet packet;
  for (uint32_t i = 0; i < kPacketsPerWakeUp; ++i) {
    Connection* connection = Find(id);
    if (connection == nullptr || Rests(connection)) return;
    const int socket = connection->socket.native_handle();

    auto result = shm::PeekPacket(socket, &head);
    const bool lets_in = TP_PLANTED("jobs.descriptors_let_in");
    if (result == shm::SocketResult::kDone && !lets_in && LeftToDoor(connection, head)) return;
    if (result == shm::SocketResult::kDone)
      result = shm::ReceivePacket(socket, lets_in ? 2 : 0, &packet);

    switch (result) {
      case shm::SocketResult::kWouldBlock: return WatchSocket(id);
      case shm::SocketResult::kClosed: return Close(id, "it closed the connection");
      case shm::SocketResult::kMalformed: return EndBadly(id, MalformedPacket());
      case shm::SocketResult::kDone: break;
    }

    const Status handled = HandlePacket(connection, std::move(packet));
    if (!handled.ok()) return EndBadly(id, handled);
  }
  WatchSocket(id);
}

bool ControlReactor::Rests(Connection* connection) {
  const int64_t pause_ns = pace.PauseNs(connection->uid, neighbours.clock->NowNs());
  if (pause_ns == 0) return false;

  const ConnectionId id = connection->id;
  connection->rest.expires_after(std::chrono::nanoseconds(pause_ns));
  connection->rest.async_wait([this, id](const error_code& error) {
    Connection* rested = error ? nullptr : Find(id);
    if (rested == nullptr) return;
    if (rested->protocol.HalfOpen()) StartTimeLimit(id);
    ReadPackets(id);
  });
  connection->limit.cancel();  // the wait is ours
  return true;
}

bool ControlReactor::LeftToDoor(Connection* connection, const shm::PacketHead& head) {
  if (!head.descriptors) return false;
  const DescriptorCall call = connection->protocol.CalledFor(head.read());
  const ConnectionId id = connection->id;
  pace.Spend(connection->uid, UserPace::kAtDoor, neighbours.clock->NowNs());

  Status left = call.most == 0 ? MalformedPacket() : Status();
  if (left.ok()) {
    left = door->Take({id, connection->uid, connection->socket.native_handle(),
                       call.places ? LaneTask::kTakeDirectory : LaneTask::kTakeMemory, call.most});
  }

  if (left.ok()) {
    connection->at_door = true;
    StartTimeLimit(id);
  } else {
    EndBadly(id, left);
  }
  return true;
}

void ControlReactor::TakeFromDoor() {
  for (DescriptorDoor::Taken& taken : door->TakeAll()) {
    const ConnectionId id = taken.connection;
    Connection* connection = Find(id);
    if (connection == nullptr) continue;
    connection->at_door = false;

    if (taken.result == shm::SocketResult::kClosed) {
      Close(id, "it closed the connection");
    } else if (taken.result == shm::SocketResult::kMalformed || !taken.refused.ok()) {
      EndBadly(id, taken.refused.ok() ? MalformedPacket() : taken.refused);
    } else {
      const bool done = taken.result == shm::SocketResult::kDone;
      const Status handled = done ? HandlePacket(connection, std::move(taken.packet)) : Status();
      handled.ok() ? WatchSocket(id) : EndBadly(id, handled);
    }
  }
}

Status ControlReactor::HandlePacket(Connection* connection, shm::Packet packet) {
  pace.Spend(connection->uid, UserPace::kPacket + packet.bytes.size() / UserPace::kBytesMovedAsOne,
             neighbours.clock->NowNs());
  TP_ASSIGN_OR_RETURN(shm::Frame frame, shm::DecodeFrame(packet.bytes));
  TP_RETURN_IF_ERROR(CheckDescriptors(frame, packet.fds.size()));
  auto handled = connection->protocol.OnFrame(std::move(frame), std::move(packet.fds));
  pace.Spend(connection->uid, shelf.TakeDecodedBytes(), neighbours.clock->NowNs());
  TP_ASSIGN_OR_RETURN(FrameAction action, std::move(handled));

  if (!connection->protocol.HalfOpen()) connection->limit.cancel();
  if (action.event) neighbours.to_loop->Push(std::move(*action.event));
  std::vector<int> fds;
  if (action.memory) fds.push_back(action.memory->fd());
  if (action.answer &&
      shm::SendPacket(connection->socket.native_handle(), shm::EncodeFrame(*action.answer), fds) !=
          shm::SocketResult::kDone) {
    return Status(ErrorId::kHandshakeBad, "it does not read its control socket");
  }
  return Status();
}

void ControlReactor::Send(ConnectionId id, const shm::Frame& frame, std::span<const int> fds) {
  Connection* connection = Find(id);
  if (connection == nullptr) return;
  const auto result =
      shm::SendPacket(connection->socket.native_handle(), shm::EncodeFrame(frame), fds);
  if (result == shm::SocketResult::kDone) return;
  // The frames of one session fit into its socket many times over, so a full socket means that the
  // client reads nothing.
  Close(id, result == shm::SocketResult::kClosed ? "it closed the connection"
                                                 : "it does not read its control socket");
}

void ControlReactor::EndBadly(ConnectionId id, const Status& why, bool ours) {
  Connection* connection = Find(id);
  if (connection == nullptr) return;
  if (const auto left_out = bad_input_log.Allow(neighbours.clock->NowNs())) {
    LogWarn("connection ended: " + why.Line(), {{"pid", connection->pid}, {"left_out", *left_out}});
  }
  const shm::Frame frame = connection->protocol.LastWords(why);
  shm::SendPacket(connection->socket.native_handle(), shm::EncodeFrame(frame));
  Close(id, why.Line(), ours);
}

void ControlReactor::Close(ConnectionId id, const std::string& cause, bool ours) {
  const auto found = connections.find(id);
  if (found == connections.end()) return;
  const ConnectionState state = found->second->protocol.state();
  const uint32_t uid = found->second->uid;
  if (found->second->protocol.HalfOpen()) listener.NoteBroken();
  connections.erase(found);
  TP_POINT("control.connection_closed");

  door->Release(id, uid);
  const auto of_user = [uid](const auto& entry) { return entry.second->uid == uid; };
  if (std::none_of(connections.begin(), connections.end(), of_user)) door->Leave(uid);

  if (state == ConnectionState::kLeaving) return;  // the loop knows about its goodbye
  if (state == ConnectionState::kPreparing && !TP_PLANTED("jobs.memory_back_while_zeroed")) {
    lost_in_preparation.emplace(id, cause);
  } else {
    neighbours.to_loop->Push(ConnectionLost{id, cause, ours});
  }
}

// --- from the loop and the preparer ---

void ControlReactor::Watch(Descriptor* event, void (ControlReactor::*take)()) {
  event->async_wait(Descriptor::wait_read, [this, event, take](const error_code& error) {
    if (error) return;
    (this->*take)();
    Watch(event, take);
  });
}

void ControlReactor::TakeReplies() {
  neighbours.from_loop->ClearEvent();
  std::vector<ControlReply> taken;
  neighbours.from_loop->TakeAll(&taken);
  for (ControlReply& reply : taken)
    std::visit([this](auto&& content) { On(std::move(content)); }, std::move(reply));
}

void ControlReactor::TakePrepared() {
  preparer.results().ClearEvent();
  std::vector<PreparedMemory> taken;
  preparer.results().TakeAll(&taken);
  for (PreparedMemory& memory : taken) Attach(std::move(memory));
}

void ControlReactor::TakeLostRanks() {
  for (const AwaitedRankLost& rank : awaited.TakeLost()) neighbours.to_loop->Push(rank);
}

void ControlReactor::Attach(PreparedMemory memory) {
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
  neighbours.to_loop->Push(AttachSession{id, std::move(memory.port), std::move(memory.rcache),
                                         std::move(memory.brought)});
}

void ControlReactor::On(ReserveGranted reply) {
  Connection* connection = Find(reply.connection);
  if (connection == nullptr) return;  // lost in between; the loop was told
  connection->protocol.SetState(ConnectionState::kPreparing);
  preparer.Start(
      {std::move(reply), connection->protocol.TakeMemory(), connection->protocol.agreed()});
}

void ControlReactor::On(AwaitRank reply) {
  if (!awaited.Watch(reply))
    neighbours.to_loop->Push(AwaitedRankLost{reply.job, reply.rank, reply.nonce});
}

void ControlReactor::On(Refused reply) {
  Send(reply.connection, shm::RefusedFrame{reply.why});
  Close(reply.connection, "refused: " + reply.why.Line());
}

void ControlReactor::On(Attached reply) {
  Connection* connection = Find(reply.connection);
  if (connection == nullptr) return;
  connection->protocol.SetState(ConnectionState::kOpen);
  if (const auto& resume = connection->protocol.resume())
    awaited.Forget({reply.job, resume->rank, resume->nonce});

  const auto granted = std::exchange(connection->granted, {});
  std::vector<int> fds;
  for (const UniqueFd& fd : granted) fds.push_back(fd.get());

  if (const uint32_t agreed = connection->protocol.agreed(); agreed != shm::kOwnProtocols.highest) {
    LogInfo(
        "a session of an older protocol",
        {{"session", reply.session}, {"protocol", agreed}, {"newest", shm::kOwnProtocols.highest}});
  }
  Send(reply.connection, connection->protocol.AnswerTo(reply), fds);
}

void ControlReactor::On(SessionOver reply) {
  // This is also the answer to a goodbye: a trainer must tell it from the end of a server that dies
  // before it has taken the session down.
  Send(reply.connection, shm::EndedFrame{reply.why});
  Close(reply.connection, "session over: " + reply.why.Line());
}

void ControlReactor::On(SaveDone reply) {
  if (Connection* connection = Find(reply.connection)) {
    connection->protocol.SaveEnded();
    door->Release(reply.connection, connection->uid);
  }
  Send(reply.connection, shm::SaveDoneFrame{reply.result});
}

void ControlReactor::On(StepsDone reply) {
  if (Connection* connection = Find(reply.connection)) connection->protocol.StepsEnded();
  Send(reply.connection, shm::StepsEndedFrame{{reply.result}});
}

// The specification goes in memory of its own, since it may be longer than a packet.
void ControlReactor::On(StatesGiven reply) {
  if (Find(reply.connection) == nullptr) return;
  const std::vector<std::byte> bytes = shm::Encode(*reply.spec);
  auto made = shm::Segment::Create("tp-spec", bytes.size(), shm::PeerAccess::kReadOnly);
  if (!made.ok()) return EndBadly(reply.connection, made.status(), true);
  std::copy(bytes.begin(), bytes.end(), (*made)->data());

  const std::array<int, shm::kGivenFds> fds{reply.memory->fd(), (*made)->fd()};
  Send(reply.connection, shm::StatesGivenFrame{reply.version, bytes.size(), reply.note}, fds);
}

// --- the thread ---

void ControlReactor::Run() {
  listener.Start();
  Watch(&replies, &ControlReactor::TakeReplies);
  Watch(&prepared, &ControlReactor::TakePrepared);
  Watch(&lost_ranks, &ControlReactor::TakeLostRanks);
  Watch(&taken_packets, &ControlReactor::TakeFromDoor);
  context.run();
}

}  // namespace tidepool::memserver
