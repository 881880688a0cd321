// ServerProcess: a real memserver during a benchmark, with its own socket directory.
//
// One thread. The program is the memserver beside the benchmark. It ends with this object, and when
// the benchmark dies; the socket directory is removed.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tidepool::bench {

inline constexpr std::string_view kLoopThread = "tp-loop";

class ServerProcess {
 public:
  // `flags` follow `memserver run --socket-dir DIR`. Clients wait for the server with their connect
  // time-out. Errors: kLibraryFailed (no process), kFileWriteFailed (no directory).
  static Result<ServerProcess> Start(const std::vector<std::string>& flags);
  // Sends SIGTERM and waits for the end.
  ~ServerProcess();
  ServerProcess(ServerProcess&& other) noexcept;
  ServerProcess& operator=(ServerProcess&&) = delete;

  const std::string& socket_dir() const { return socket_dir_; }
  // CPU time of its threads so far, or of those with this name; the server's own only if started
  // with `--keeper none`.
  double CpuSeconds(std::string_view thread = {}) const;
  // Pins its serve loop to this CPU from now on. Ends the program if the system refuses.
  void PinLoop(int cpu) const;

 private:
  ServerProcess(pid_t pid, std::string socket_dir)
      : pid_(pid), socket_dir_(std::move(socket_dir)) {}
  pid_t pid_;
  std::string socket_dir_;
};

}  // namespace tidepool::bench
