// LocalMeeting: how the ranks of one machine find each other and make groups: over Unix sockets,
// which the kernel guards, and without a port.
//
// One thread (the trainer's main thread). While it gathers, rank 0 listens
// (trainer/comm/meeting/meeting_host.h) under a name that nobody can predict; the others look for
// it and connect. Both sides ask the kernel for the peer's user before reading a byte, and rank 0
// compares run, specification, rank and world. It then gives every pair of ranks a connection of
// its own, over which groups are made. A connection of a foreign process is closed and does not
// affect the run. For the time-outs see trainer/comm/meeting/patience.h.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "trainer/comm/collective.h"
#include "trainer/comm/group_spec.h"
#include "trainer/comm/rank_link.h"
#include "trainer/comm/meeting/meeting_host.h"
#include "trainer/comm/meeting/patience.h"
#include "trainer/comm/meeting/rendezvous.h"

namespace tidepool::trainer {

class LocalMeeting {
 public:
  // `meet`: run and spec are set; world is at most kRanksOfMachineMax.
  explicit LocalMeeting(Rendezvous meet)
      : meet_(std::move(meet)), clock_(meet_.clock), peers_(meet_.world) {}

  // Blocks until every rank of the run has called it. May be repeated after Disband. Errors:
  // kRanksMissing (names the ranks on which it has given up), kJobMismatch (rank 0 has another
  // specification), kCollectiveFailed (no socket), and what meet.interrupted returned.
  Status Gather();
  // Leaves the meeting; this rank's groups live on.
  void Disband();

  // Blocks until all members have called it with the same spec. A group of one is a SoloCollective.
  // Errors: kCollectiveFailed (a member has left, or did not come before the time-out), what
  // meet.interrupted returned.
  Result<std::unique_ptr<Collective>> MakeGroup(const GroupSpec& spec);
  // Blocks until both ends have called it with the same spec; this rank is one of them. Errors: as
  // for MakeGroup.
  Result<std::unique_ptr<RankLink>> MakeLink(const LinkSpec& spec);

  // At rank 0: the peers refused in all meetings so far.
  const RefusedPeers& refused() const { return refused_; }

 private:
  struct Search;
  Patience::Terms WaitTerms() const;
  Status Host();
  Status Join();
  Status TryOne(const std::string& name, Search* search);
  Status Listen(int socket, Search* search);
  Status GoOn(Search* search, bool is_connected);
  void Take(MeetingPacket packet, UniqueFd fd, Search* search);
  Status Refused(const MeetingPacket& packet, Search* search) const;
  Status Interrupted() const { return meet_.interrupted ? meet_.interrupted() : Status(); }
  Result<UniqueFd> OfferConnection(uint32_t to, const MeetingPacket& packet);
  Result<UniqueFd> AwaitConnection(uint32_t from, const MeetingPacket& packet);
  // A connection to each other member.
  Result<SocketGroup> Connect(const GroupSpec& spec);
  Status PeerLeft(uint32_t rank, const char* how) const;

  const Rendezvous meet_;
  Clock* const clock_;
  std::vector<UniqueFd> peers_;  // by rank; invalid for this one, and outside a meeting
  RefusedPeers refused_;
};

}  // namespace tidepool::trainer
