#include "tests/sim/mortal_server.h"

#include <cstring>

#include "base/point.h"

namespace tidepool::memserver {

MortalServer::MortalServer(const WorldOptions& options)
    : world_(std::make_unique<ServeWorld>(options)) {
  SetPointHook([this](const char* point) { Pass(point); });
}

MortalServer::~MortalServer() {
  SetPointHook({});
}

void MortalServer::DieAt(const char* point, uint64_t hits) {
  point_ = point;
  hits_left_ = hits;
}

void MortalServer::Pass(const char* point) {
  // Whoever decodes a description, or reads for a save, passes the first two, and that is not the
  // loop. The others only count work.
  for (const char* others :
       {"shm.spec_summed", "server.save_listed", "server.range_chosen", "server.directory_chosen",
        "server.frozen_listed", "server.frozen_let_go"}) {
    if (std::strcmp(point, others) == 0) return;
  }
  ++points_passed_;
  if (hits_left_ == 0) return;
  if (point_ != nullptr && std::strcmp(point_, point) != 0) return;
  if (--hits_left_ == 0) throw Killed{point};
}

}  // namespace tidepool::memserver
