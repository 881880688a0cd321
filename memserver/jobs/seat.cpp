#include "memserver/jobs/seat.h"

namespace tidepool::memserver {

void Answer(Seat* seat, const shm::Completion& completion) {
  if (seat->session->Answer(completion)) return;
  seat->violation = "the completion ring is full of answers that were not taken";
}

}  // namespace tidepool::memserver
