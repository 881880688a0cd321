// DoneKeys: where the ranks that torchrun started note that nothing is left for them to do but to
// say goodbye: in the store of its agent.
//
// One thread; each call connects anew. When one rank dies torchrun starts all of them again, also
// when the death came behind the last work. The job may be gone by then, and the ranks would begin
// it anew. The agent's store outlives its ranks and ends with the run.
#pragma once

#include <string>

#include "trainer/comm/meeting/rendezvous.h"

namespace tidepool::trainer {

class DoneKeys {
 public:
  // `job` keeps runs apart that share a store.
  DoneKeys(Rendezvous meet, std::string job) : meet_(std::move(meet)), job_(std::move(job)) {}

  // This rank's key. A store that has ended needs none: failure is silent.
  void Set() const;
  // For a run that begins, where a store was left from another of its name.
  void Clear() const;
  // True when every rank has set its key; false also when the store does not answer.
  bool AllSet() const;

 private:
  const Rendezvous meet_;
  const std::string job_;
};

}  // namespace tidepool::trainer
