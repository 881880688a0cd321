// MeetingHost: rank 0's side of one meeting of the ranks of a machine: it listens, decides who
// belongs to the run, and connects all ranks with each other.
//
// One thread. It listens under a new name each time, with a prefix derived from the run
// (MeetingPrefix), so that nobody can take the name in advance. A peer is a process of another user
// (closed at once, unread), a process that is not of the run (refused with a reason), or a rank,
// which waits here until all have come. A rank that dies meanwhile may come again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "trainer/comm/meeting/meeting_packet.h"
#include "trainer/comm/meeting/peer_socket.h"
#include "trainer/comm/meeting/rendezvous.h"

namespace tidepool::trainer {

// Prefix of the names under which rank 0 of `run` listens.
std::string MeetingPrefix(const ContentHash& run);

// Refused peers, by reason.
struct RefusedPeers {
  uint64_t of_other_users = 0;
  uint64_t of_other_runs = 0;  // or of another specification, or of a rank already here
  uint64_t malformed = 0;      // sent a malformed packet, or none within the time
  // All of them.
  uint64_t total() const { return of_other_users + of_other_runs + malformed; }
};

class MeetingHost {
 public:
  // Starts to listen. Errors: kCollectiveFailed.
  static Result<std::unique_ptr<MeetingHost>> Open(const Rendezvous& meet);
  ~MeetingHost();

  // Admits the ranks that have come, and waits at most `wait_ms` for the next one. True: every rank
  // is here.
  bool Turn(int wait_ms);
  // Connects all ranks with each other and tells them that all are here. False: one has left
  // meanwhile; all others have been sent away and reconnect on their own.
  bool Introduce();
  // After Introduce: the connection to each rank, invalid for this one.
  std::vector<UniqueFd> TakePeers();

  // Bit r: rank r is missing.
  uint64_t missing() const;
  const RefusedPeers& refused() const { return refused_; }

 private:
  struct Guest {  // has not identified itself yet
    UniqueFd socket;
    int64_t since_ns;
  };

  MeetingHost(const Rendezvous& meet, UniqueFd listener);
  void AcceptAll();
  // False: drop this guest.
  bool Hear(Guest* guest);
  void Refuse(int socket, MeetingPacket::Verdict verdict);
  void DropTheDead();
  void TellMissing();
  bool Deliver(uint32_t to, const MeetingPacket& packet, int fd);
  void Count(uint64_t* counter, const char* why);

  const MeetingPacket own_;
  Clock* const clock_;
  UniqueFd listener_;
  std::vector<Guest> guests_;
  std::vector<UniqueFd> ranks_;  // by rank
  RefusedPeers refused_;
};

}  // namespace tidepool::trainer
