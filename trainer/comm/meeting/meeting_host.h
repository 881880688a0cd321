// MeetingHost: rank 0's side of one meeting of the ranks of a machine: it listens, tells who
// belongs to the run, and connects everybody with everybody.
//
// One thread. Where it listens is a new name each time, behind a prefix that follows from the run
// (MeetingPrefix), so that nobody can take the name before. Who connects is another user (closed at
// once, nothing is read), a process that does not belong to the run (told so), or a rank, which
// waits here until all have come. A rank that dies meanwhile may come again.
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

// How the names begin under which rank 0 of `run` listens.
std::string MeetingPrefix(const ContentHash& run);

// Peers that were turned away, by reason.
struct RefusedPeers {
  uint64_t of_other_users = 0;
  uint64_t of_other_runs = 0;  // or of another specification, or a rank that has come already
  uint64_t malformed = 0;      // what they said, or nothing within the time
  // All of them.
  uint64_t total() const { return of_other_users + of_other_runs + malformed; }
};

class MeetingHost {
 public:
  // Listens. Errors: kCollectiveFailed.
  static Result<std::unique_ptr<MeetingHost>> Open(const Rendezvous& meet);
  ~MeetingHost();

  // Takes in the ranks that have come, and waits `wait_ms` at most for the next one. True: every
  // rank is here.
  bool Turn(int wait_ms);
  // Connects all ranks with each other and tells them that all are here. False: one has left
  // meanwhile; all others have been sent away and come again by themselves.
  bool Introduce();
  // After Introduce: the connection to each rank, invalid for this one.
  std::vector<UniqueFd> TakePeers();

  // Bit r: rank r has not come.
  uint64_t missing() const;
  const RefusedPeers& refused() const { return refused_; }

 private:
  struct Guest {  // has not said who it is
    UniqueFd socket;
    int64_t since_ns;
  };

  MeetingHost(const Rendezvous& meet, UniqueFd listener);
  void AcceptAll();
  // False: this guest is done with.
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
