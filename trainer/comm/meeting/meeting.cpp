#include "trainer/comm/meeting/meeting.h"

namespace tidepool::trainer {

Result<std::unique_ptr<Meeting>> Meeting::Open(const Rendezvous& meet) {
  std::unique_ptr<Meeting> meeting(new Meeting);
  if (meet.one_machine) {
    meeting->local_ = std::make_unique<LocalMeeting>(meet);
  } else {
    TP_ASSIGN_OR_RETURN(meeting->store_, RendezvousStore::Open(meet));
  }
  return meeting;
}

}  // namespace tidepool::trainer
