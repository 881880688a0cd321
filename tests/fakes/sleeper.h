// A process that does nothing, for tests of whether one lives. Header only.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memserver/control/peer_identity.h"
#include "memserver/former_servers.h"

namespace tidepool::memserver {

class Sleeper {
 public:
  Sleeper() : pid_(fork()) {
    while (pid_ == 0) pause();
  }
  ~Sleeper() {
    Kill();
    waitpid(pid_, nullptr, 0);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  void Kill() const { kill(pid_, SIGKILL); }
  ProcessName name() const {
    return {pid_, ReadProcessStart(pid_), OwnProcess().value().pid_namespace};
  }

 private:
  const pid_t pid_;
};

}  // namespace tidepool::memserver
