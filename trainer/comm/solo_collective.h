// SoloCollective: the group of one rank. Every operation is complete when it is started; no network
// is used and nothing can fail.
//
// One thread calls all methods, as for every Collective.
#pragma once

#include "trainer/comm/collective.h"

namespace tidepool::trainer {

class SoloCollective final : public Collective {
 public:
  uint32_t rank() const override { return 0; }
  uint32_t world() const override { return 1; }
  Ticket StartAllGather(const BlockView& block) override;
  Ticket StartReduceScatter(const BlockView& block) override;
  Ticket StartAllToAll(const PartsView& parts) override;
  bool Test(Ticket ticket) override;
  Status Wait(Ticket ticket) override;
  Status Barrier() override { return {}; }
  Status SumDoubles(double*, uint64_t) override { return {}; }
  Status Broadcast(void*, uint64_t) override { return {}; }

 private:
  Ticket last_ = 0;
};

}  // namespace tidepool::trainer
