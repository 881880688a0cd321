// DescriptorDoor: receives clients' descriptors through helper processes that nobody waits for.
//
// A descriptor is the sender's file: closing it may run a file system of the sender's own (FUSE, a
// dead server), in the process that closes it, for any length of time. A process in such a call
// never ends, not even by SIGKILL, and keeps its locks, sockets and memory. So memserver never
// installs a descriptor whose close the sender can delay. A frame that brings descriptors is left
// in its socket, and a *lane*, a process with nothing in it, is asked to receive it. It returns
// only memfds, devices, and O_PATH descriptors, whose close involves no file system. Other
// descriptors are refused with an error and closed by the lane, however long that takes.
//
// A lane belongs to one user. A lane that is stuck in a close is left alone, and another one serves
// the user; a user whose kLanesPerUser lanes are all stuck can send no descriptors until one of
// them returns. Other users do not notice. Lanes hold nothing of memserver's: it ends, and the next
// one starts, while they are still stuck. One thread (control); Open and the destructor may run on
// another one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/control/descriptors/descriptor_lane.h"
#include "shm/fd_socket.h"

namespace tidepool::memserver {

class DescriptorDoor {
 public:
  // How many descriptors of a user may be stuck; a Resume brings two.
  static constexpr uint32_t kLanesPerUser = 4;
  static constexpr uint32_t kLanesMax = 64;
  // A lane that has not answered for this long gets no further packets.
  static constexpr int64_t kStuckNs = 200 * kNsPerMs;

  // `clock` outlives the door. Errors: kSocketFailed.
  static Result<std::unique_ptr<DescriptorDoor>> Open(const Clock* clock);
  // Waits for the process that forks lanes, which ends at once; does not wait for lanes.
  ~DescriptorDoor();
  DescriptorDoor(const DescriptorDoor&) = delete;
  DescriptorDoor& operator=(const DescriptorDoor&) = delete;

  struct Ask {
    ConnectionId connection = 0;
    uint32_t uid = 0;
    int socket = -1;  // stays the caller's, who must not read from it until the packet was taken
    LaneTask task = LaneTask::kTakeMemory;
    uint32_t fds_max = 0;
  };
  // Asks a lane to receive a packet. Errors: kTooManySessions (kLanesPerUser descriptors of the
  // user are stuck, or no lane can be made).
  Status Take(const Ask& ask);

  struct Taken {
    ConnectionId connection = 0;
    shm::SocketResult result = shm::SocketResult::kDone;  // as of ReceivePacket
    // A descriptor of the wrong kind came (kHandshakeBad; for an O_PATH one, kProtocolViolation)
    Status refused;
    shm::Packet packet;
  };
  // The packets received since the last call: one entry for each successful Take, unless its lane
  // is stuck.
  std::vector<Taken> TakeAll();
  // For poll or epoll, level-triggered: readable while TakeAll has something to return.
  int event_fd() const { return epoll_.get(); }

  // memserver has closed the O_PATH descriptors that this user sent over this connection.
  void Release(ConnectionId connection, uint32_t uid);
  // The user has no connection left: its lanes end, except stuck ones.
  void Leave(uint32_t uid);
  size_t lanes() const { return lanes_.size(); }

 private:
  struct Asked {
    ConnectionId connection = 0;
    LaneTask task = LaneTask::kTakeMemory;
    int64_t since_ns = 0;
    bool answered = false;  // its descriptors are not closed yet
  };
  struct Lane {
    Lane(uint32_t user, UniqueFd end) : uid(user), channel(std::move(end)) {}
    ~Lane();  // must work even if a forked process has a copy of the channel
    uint32_t uid = 0;
    UniqueFd channel;  // closing it removes it from epoll_
    std::deque<Asked> asked;
    bool left = false;  // the lane ends as soon as it is not stuck
  };
  explicit DescriptorDoor(const Clock* clock) : clock_(clock) {}
  bool ForkMaker();
  Lane* LaneFor(uint32_t uid);
  Lane* MakeLane(uint32_t uid);
  void Read(uint64_t number, Lane* lane, std::vector<Taken>* taken);
  void OnReply(Lane* lane, shm::Packet packet, std::vector<Taken>* taken);

  const Clock* const clock_;
  UniqueFd epoll_, maker_;
  int maker_pid_ = -1;
  std::map<uint64_t, Lane> lanes_;  // by the number registered in epoll_
  std::set<ConnectionId> places_;   // connections with O_PATH descriptors that lanes keep open
  uint64_t last_number_ = 0;
};

}  // namespace tidepool::memserver
