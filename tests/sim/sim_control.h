// SimControl and SimClock: a simulated server as a real client meets it: its control socket, and
// time that passes only while the client sleeps.
//
// One thread: the client's. Each sleep of the client lets the server's loop take turns.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "shm/spec/job_spec.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {

// Greets one rank of `spec` at a real socket, in place of the control thread.
class SimControl {
 public:
  // Listens in a new directory. The world outlives the object.
  SimControl(ServeWorld* world, const shm::JobSpec& spec);
  ~SimControl();
  SimControl(const SimControl&) = delete;
  SimControl& operator=(const SimControl&) = delete;

  const std::string& directory() const { return directory_; }
  // Takes what has come, and lets the loop take a turn. Never waits.
  void Turn();
  // As a killed process: nobody listens, and the connection closes without a word.
  void Die();
  // Greets nobody from here on: the socket stands open.
  void StandStill() { stands_still_ = true; }

 private:
  void TakeGreeting();
  void Attach();
  void Welcome();

  ServeWorld* const world_;
  const shm::JobSpec spec_;
  std::string directory_;
  UniqueFd listening_, socket_;
  bool stands_still_ = false;
  uint64_t spec_bytes_ = 0;  // that are still to come
  bool attached_ = false;
  device::HostDevice device_;
  uint32_t session_ = 0;
  UniqueFd submission_, completion_, doorbell_, rcache_;
};

// The world's time. Looking at it takes none.
class SimClock final : public Clock {
 public:
  // Both outlive the clock.
  SimClock(ServeWorld* world, SimControl* control) : world_(world), control_(control) {}

  int64_t NowNs() const override { return world_->clock().NowNs(); }
  void SleepNs(int64_t duration_ns) override {
    Sleep(duration_ns, [] { return false; });
  }
  void SleepOnWord(const std::atomic<uint32_t>* word, uint32_t expected,
                   int64_t duration_ns) override {
    Sleep(duration_ns, [&] { return word->load() != expected; });
  }
  void SleepOnDescriptor(int descriptor, int16_t events, int64_t duration_ns) override;

  // `event` happens during the sleep that comes to the time.
  void At(int64_t time_ns, std::function<void()> event) {
    events_.emplace(time_ns, std::move(event));
  }

 private:
  static constexpr int64_t kStepNs = 10 * kNsPerMs;
  void Sleep(int64_t duration_ns, const std::function<bool()>& woken);

  ServeWorld* const world_;
  SimControl* const control_;
  std::multimap<int64_t, std::function<void()>> events_;
};

}  // namespace tidepool::memserver
