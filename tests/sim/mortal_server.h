// MortalServer: a whole serve loop that can be killed at any named point (base/point.h) and
// replaced by one that adopts its kept memory.
//
// One thread; one object at a time, because points have one hook. The kill is an exception out of
// the point: whatever the dead server still held is thrown away without a turn, and nothing of that
// writes kept memory, so the next server finds what kill -9 would have left.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {

// The points that the simulated server passes.
inline constexpr std::array kServerPoints = {
    "optim.piece_finished",    "optim.tile_progress",      "optim.tile_restored",
    "optim.tile_saved",        "optim.tile_written",       "recover.job_read",
    "recover.step_counted",    "recover.tiles_restored",   "server.chunk_published",
    "server.chunk_scanned",    "server.fetch_copied",      "server.fetch_started",
    "server.gradient_copied",  "server.gradient_staged",   "server.gradient_started",
    "server.gradient_stored",  "server.job_laid_out",      "server.job_opened",
    "server.job_removed",      "server.job_removing",      "server.job_reserved",
    "server.job_unrecorded",   "server.put_copied",        "server.put_kept",
    "server.put_started",      "server.rank_cleared",      "server.rank_resuming",
    "server.records_begun",    "server.records_written",   "server.request_parked",
    "server.request_taken",    "server.resubmit_answered", "server.run_broken",
    "server.save_ended",       "server.save_started",      "server.slot_leaving",
    "server.session_attached", "server.staging_free",      "server.step_abandoned",
    "server.step_answered",    "server.step_dropped",      "server.step_ended_by_rank",
    "server.step_recorded",    "server.step_sealed",       "server.step_sealing",
    "server.update_started"};

// And those that it passes only with states on NVMe.
inline constexpr std::array kNvmePoints = {"nvme.writes_out", "server.piece_staged",
                                           "server.piece_stored", "server.piece_written"};

// And while states leave the host.
inline constexpr std::array kDemotionPoints = {
    "server.demotion_begun", "server.demotion_staged",    "server.demotion_written",
    "server.demotion_noted", "server.demotion_committed", "server.demotion_ended"};

// And with frozen chunks.
inline constexpr std::array kFrozenPoints = {"server.frozen_claimed", "server.frozen_put",
                                             "server.frozen_sealed"};

class MortalServer {
 public:
  explicit MortalServer(const WorldOptions& options);
  ~MortalServer();
  MortalServer(const MortalServer&) = delete;
  MortalServer& operator=(const MortalServer&) = delete;

  ServeWorld& world() { return *world_; }
  // Kills the server when it passes `point` (null: any) for the `hits`-th time from now on. 0 hits:
  // never.
  void DieAt(const char* point, uint64_t hits);
  // Runs something that the server does: null when it lives, else the point at which it died.
  template <typename Action>
  const char* Run(Action action) {
    try {
      action();
      return nullptr;
    } catch (const Killed& killed) {
      return killed.point;
    }
  }
  uint64_t points_passed() const { return points_passed_; }

 private:
  struct Killed {
    const char* point;
  };
  void Pass(const char* point);

  std::unique_ptr<ServeWorld> world_;
  const char* point_ = nullptr;
  uint64_t hits_left_ = 0;
  uint64_t points_passed_ = 0;
};

}  // namespace tidepool::memserver
