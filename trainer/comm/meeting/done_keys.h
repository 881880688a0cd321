// DoneKeys: keys in torchrun's store by which its ranks note that they have finished all work and
// only have to leave.
//
// One thread; each call opens a new connection. When one rank dies torchrun restarts all of them,
// even if the death came after the last work. The job may be gone by then, and the ranks would
// begin it from scratch. The agent's store outlives its ranks and ends with the run.
#pragma once

#include <string>

#include "trainer/comm/meeting/rendezvous.h"

namespace tidepool::trainer {

class DoneKeys {
 public:
  // `job` separates runs that share a store.
  DoneKeys(Rendezvous meet, std::string job) : meet_(std::move(meet)), job_(std::move(job)) {}

  // Sets this rank's key. Failure is silent: a store that has ended needs no key.
  void Set() const;
  // For a new run that finds the store of an earlier run of the same name.
  void Clear() const;
  // True when every rank has set its key; false also when the store does not answer.
  bool AllSet() const;

 private:
  const Rendezvous meet_;
  const std::string job_;
};

}  // namespace tidepool::trainer
