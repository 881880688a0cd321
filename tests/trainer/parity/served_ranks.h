// Served ranks: the ranks of a run as threads of this process, beside a memory server of their own
// that ends with them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "memserver/server.h"
#include "trainer/launch/rank_place.h"
#include "trainer/run/run_session.h"

namespace tidepool::trainer {

struct ServerChoice {
  uint32_t adam_threads = 1;
  optim::IsaLevel isa = optim::BestIsa();
  optim::Tuning tuning = {};
};

// What one rank is told.
struct ServedPlace {
  RankPlace place;
  // Private to the run, removed with it: the server's sockets, and what a rank saves.
  std::string directory;
  const std::atomic<bool>* failed = nullptr;  // another rank has: it is not waited for

  // Takes the rank's session slot at the server and meets the others. A collective that does not
  // end though a rank has left ends the program.
  Result<std::unique_ptr<RunSession>> Open(SessionTask task) const;
};

// Runs `body` as every rank and waits for all of them. The error is that of the first rank which
// failed by itself; only where none did, that of the first one which lost its peers.
Status RunServedRanks(uint32_t world, const ServerChoice& choice,
                      const std::function<Status(const ServedPlace&)>& body);

// fp32 values of a saved file, by name. A file that cannot be read is a failure of the calling
// test.
std::map<std::string, std::vector<float>> ReadWeights(const std::string& path);

}  // namespace tidepool::trainer
