// ServerProcess: a real memserver for the length of a benchmark, with a socket directory of its
// own.
//
// One thread. The program is the memserver beside the benchmark's own program. It ends with this
// object, and also when the benchmark dies; the socket directory is removed.
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
  // `flags` follow `memserver run --socket-dir DIR`. Clients wait for the server by their connect
  // time-out.
  // Errors: kLibraryFailed (no process), kFileWriteFailed (no directory).
  static Result<ServerProcess> Start(const std::vector<std::string>& flags);
  // SIGTERM, then waits for its end.
  ~ServerProcess();
  ServerProcess(ServerProcess&& other) noexcept;
  ServerProcess& operator=(ServerProcess&&) = delete;

  const std::string& socket_dir() const { return socket_dir_; }
  // CPU time that its threads have taken so far, or those of this name; of the server itself only
  // where it was started with `--keeper none`.
  double CpuSeconds(std::string_view thread = {}) const;
  // Its serve loop runs on this CPU from now on. Ends the program where the system refuses.
  void PinLoop(int cpu) const;

 private:
  ServerProcess(pid_t pid, std::string socket_dir)
      : pid_(pid), socket_dir_(std::move(socket_dir)) {}
  pid_t pid_;
  std::string socket_dir_;
};

}  // namespace tidepool::bench
