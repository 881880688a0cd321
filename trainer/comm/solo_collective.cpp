#include "trainer/comm/solo_collective.h"

#include <cstring>

#include "base/check.h"

namespace tidepool::trainer {

Collective::Ticket SoloCollective::StartAllGather(const BlockView&) {
  return ++last_;
}

Collective::Ticket SoloCollective::StartReduceScatter(const BlockView&) {
  return ++last_;
}

Collective::Ticket SoloCollective::StartAllToAll(const PartsView& parts) {
  TP_CHECK(parts.out_elements == parts.in_elements, "what this rank gives itself, it takes");
  if (parts.out_bytes() > 0) std::memcpy(parts.in, parts.out, parts.out_bytes());
  return ++last_;
}

bool SoloCollective::Test(Ticket ticket) {
  TP_CHECK(ticket >= 1 && ticket <= last_, "a ticket that this group gave out");
  return true;
}

Status SoloCollective::Wait(Ticket ticket) {
  TP_CHECK(ticket >= 1 && ticket <= last_, "a ticket that this group gave out");
  return {};
}

}  // namespace tidepool::trainer
