// ControlReactor: the control thread's reaction to each event: a client connects or sends, the
// serve loop answers, memory is prepared, a rank is lost.
//
// One thread (control). Private to control_server.cpp, which alone includes it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "memserver/control/connection.h"
#include "memserver/control/control_options.h"
#include "memserver/control/descriptors/descriptor_door.h"
#include "memserver/control/listener.h"
#include "memserver/control/bounds/log_limiter.h"
#include "memserver/control/memory_preparer.h"
#include "memserver/control/rank_watch.h"
#include "memserver/control/bounds/user_pace.h"
#include "shm/fd_socket.h"

namespace tidepool::memserver {

struct ControlReactor {
  ControlReactor(const ControlOptions& control_options, const ControlNeighbours& control_neighbours,
                 UniqueFd listening, std::unique_ptr<DescriptorDoor> descriptor_door)
      : options(control_options),
        neighbours(control_neighbours),
        pace(control_options.user_pace),
        door(std::move(descriptor_door)),
        preparer(control_neighbours.device, control_neighbours.gpus),
        listener(control_neighbours.clock, &context, std::move(listening),
                 [this](UniqueFd socket) { Admit(std::move(socket)); }),
        // Queues that other threads fill.
        replies(context, Duplicate(control_neighbours.from_loop->event_fd()).Release()),
        prepared(context, Duplicate(preparer.results().event_fd()).Release()),
        lost_ranks(context, Duplicate(awaited.event_fd()).Release()),
        taken_packets(context, Duplicate(door->event_fd()).Release()) {}

  // Serves until the loop has answered Stopped.
  void Run();

  // --- accepting ---
  void Admit(UniqueFd socket);
  Status CheckRoomFor(const PeerUser& user) const;
  // --- one connection ---
  void WatchSocket(ConnectionId id);
  void WatchDeath(ConnectionId id);
  void StartTimeLimit(ConnectionId id);
  void ReadPackets(ConnectionId id);
  // True when the connection's user has used up its share of this thread; it is read again later.
  bool Rests(Connection* connection);
  // True when the next packet was left to the door, or ended the connection.
  bool LeftToDoor(Connection* connection, const shm::PacketHead& head);
  void TakeFromDoor();
  Status HandlePacket(Connection* connection, shm::Packet packet);
  void Send(ConnectionId id, const shm::Frame& frame, std::span<const int> fds = {});
  // Ends a connection: tells the client if there is a reason, and the loop once.
  void EndBadly(ConnectionId id, const Status& why, bool ours = false);
  void Close(ConnectionId id, const std::string& cause, bool ours = false);
  Connection* Find(ConnectionId id);
  // --- from the loop and the preparer ---
  void Watch(Descriptor* event, void (ControlReactor::*take)());
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
  void On(StepsDone reply);
  void On(StatesGiven reply);
  void On(CommandDone reply) { reply.ticket->Answer(std::move(reply.result)); }
  void On(SnapshotReady reply) { neighbours.snapshots->Push(std::move(reply.snapshot)); }
  void On(Discard) {}
  void On(ImportStates reply) {
    preparer.Start({.grant = {}, .memory = {}, .protocol = 0, .import = std::move(reply)});
  }
  void On(Stopped) { context.stop(); }

  ControlOptions options;
  ControlNeighbours neighbours;
  PeerMemory peer_memory;
  SpecShelf shelf{&peer_memory};
  UserPace pace;
  std::unique_ptr<DescriptorDoor> door;
  MemoryPreparer preparer;
  RankWatch awaited;
  asio::io_context context{1};
  Listener listener;
  Descriptor replies, prepared, lost_ranks, taken_packets;
  std::map<ConnectionId, std::unique_ptr<Connection>> connections;
  // The loop is told once the preparer no longer touches their memory.
  std::map<ConnectionId, std::string> lost_in_preparation;
  ConnectionId last_id = 0;
  LogLimiter bad_input_log{60 * kNsPerSecond};
};

}  // namespace tidepool::memserver
