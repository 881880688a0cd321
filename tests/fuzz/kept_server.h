// KeptStage and KeptServer: kept memory that is filled anew as often as one likes, and a server on
// it that takes up what it finds.
//
// One thread. A stage outlives its servers; one server at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "device/host/host_device.h"
#include "memserver/loop/serve_loop.h"
#include "shm/segment.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/real_clock.h"
#include "tests/fakes/serve_world.h"
#include "tests/fuzz/kept_images.h"

namespace tidepool::memserver {

// Its pool is made once, because making one costs a hundred times what a server on it costs.
class KeptStage {
 public:
  KeptStage();
  const std::vector<KeptImage>& images() const { return images_; }
  HostPool* pool() const { return pool_.get(); }
  // As a killed server left it. No server is on the stage.
  void Fill(const KeptImage& image);
  std::span<std::byte> index_bytes() const { return {index_->data(), kIndexBytes}; }
  std::span<std::byte> pool_bytes() const;
  // Errors: those of KeptIndex::Adopt.
  Result<std::unique_ptr<KeptIndex>> AdoptIndex(IndexContents* contents) const;

 private:
  const std::vector<KeptImage> images_;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<shm::Segment> index_;
};

class KeptServer {
 public:
  KeptServer(const KeptStage& stage, std::unique_ptr<KeptIndex> index);
  ServeLoop& loop() { return *loop_; }

  // Turns until nothing happens any more.
  void Settle();
  // All servers before it have ended.
  void EndFormer();
  // Every awaited rank of every job comes back.
  void ResumeAll();
  // Ranks send what is left to do of the open step, or of loading; then they end the step.
  void WorkOn();
  // Ranks end, and leases; checks that every byte has come back.
  void LoseAll();

 private:
  void Attach(const ReserveGranted& granted);
  void SendDue(const Job& job, FakeRank* rank);

  HostPool* const pool_;
  FakeClock clock_;
  device::HostDevice device_{{.clock = RealClock()}};
  EventQueue<ControlEvent> events_;
  EventQueue<ControlReply> replies_;
  EventQueue<SaveRequest> saves_;
  EventQueue<SaveResult> saved_;
  const std::unique_ptr<KeptIndex> index_;
  std::unique_ptr<WorkerTeam> team_;
  std::unique_ptr<ServeLoop> loop_;
  std::vector<std::unique_ptr<FakeRank>> ranks_;
  ConnectionId last_connection_ = 0;
};

}  // namespace tidepool::memserver
