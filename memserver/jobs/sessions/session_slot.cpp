#include "memserver/jobs/sessions/session_slot.h"

namespace tidepool::memserver {

void Answer(SessionSlot* slot, const shm::Completion& completion) {
  if (slot->session->Answer(completion)) return;
  slot->violation = "the completion ring is full of answers that were not taken";
}

}  // namespace tidepool::memserver
