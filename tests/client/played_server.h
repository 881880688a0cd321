// PlayedServer: the server's end of one rank's sessions, played by a test: it takes greetings,
// grants rings, answers what it is told to, and dies and comes back at the test's word.
//
// One thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "shm/flag_pages.h"
#include "shm/frames.h"
#include "shm/spec/job_spec.h"
#include "shm/messages.h"
#include "shm/port.h"
#include "shm/segment.h"

namespace tidepool::testing {

class PlayedServer {
 public:
  static constexpr uint64_t kRcacheBytes = 8192;
  static constexpr uint64_t kJobNonce = 0x10b;
  static shm::JobSpec Spec();

  // Listens in a new directory.
  PlayedServer();
  ~PlayedServer();
  PlayedServer(const PlayedServer&) = delete;
  PlayedServer& operator=(const PlayedServer&) = delete;

  const std::string& directory() const { return directory_; }
  // Waits for the next client at most 5 s; false when none comes.
  bool Accept();
  std::optional<shm::Frame> NextFrame();
  void Send(const shm::Frame& frame, const std::vector<int>& fds = {});
  // Accepts and reads a greeting; returns it.
  shm::HelloFrame TakeGreeting();
  // Grants the session that was asked for: fresh rings, and for a new rank the rCache, or flag
  // pages when it brings its own.
  void Welcome();
  // Accepts a client that comes back; returns its frame. Its descriptor is in `fds`.
  shm::ResumeFrame TakeResume();
  void Resumed(uint32_t session);
  // Accepts a client that comes back, and refuses it.
  void RefuseResume(ErrorId id);
  // The next request; waits for it at most 5 s.
  std::optional<shm::Request> NextRequest();
  void Answer(uint64_t counter, Version version = 0, ErrorId error = ErrorId::kNone);
  // As a killed process: the socket closes without a word, the rings stay as they are.
  void Die();
  void StopListening() { listening_.Reset(); }
  bool ClientWaits(int64_t timeout_ns) const;

  uint32_t protocol = shm::kAbiVersion;  // of the next session
  uint32_t attempt = 0;                  // at its open step
  std::vector<UniqueFd> fds;             // of the last frame
  UniqueFd brought;                      // that came with the greeting
  const shm::Segment& rcache() const { return *rcache_; }
  shm::ServerPort& port() { return *port_; }
  shm::FlagPages flags() const { return shm::FlagPages(flags_->data()); }

 private:
  std::string directory_;
  UniqueFd listening_, socket_;
  std::unique_ptr<shm::ServerPort> port_;
  std::unique_ptr<shm::Segment> rcache_;
  std::unique_ptr<shm::Segment> flags_;  // of a rank that brings its rCache
};

}  // namespace tidepool::testing
