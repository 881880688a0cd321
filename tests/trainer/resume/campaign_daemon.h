// Daemon: memserver and its keeper under a campaign's kills, whichever processes they are now.
//
// One thread, the campaign's.
#pragma once

#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "tests/process/rig/child_process.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {

inline constexpr int64_t kLeaseNs = 30 * kNsPerSecond;
// Longer than a first pause of the keeper, and than a busy machine needs to start a server.
inline constexpr int64_t kKeeperNs = 2 * kNsPerSecond;
// Where memserver kills itself, if the campaign started it.
inline constexpr std::string_view kServerPoints[] = {
    "server.request_taken",      "server.fetch_copied",  "server.gradient_stored",
    "server.step_ended_by_rank", "server.step_recorded", "server.step_sealed",
    "optim.tile_written",        "optim.piece_finished", "server.chunk_published",
    "server.session_attached",   "server.rank_resuming", "recover.job_read",
    "server.step_answered"};

inline std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// What went wrong; "": nothing.
using Wrong = std::string;

class Daemon {
 public:
  explicit Daemon(SplitMix64* random) : random_(random) { Start(""); }
  ~Daemon() { KillDaemon(directory_.path()); }

  const std::string& socket_dir() const { return directory_.path(); }
  bool IsReady() {
    return started_.back()->WaitForOutput("\"message\":\"ready\"", 30 * kNsPerSecond);
  }

  void Kill() {
    const pid_t pid = Pid();
    if (pid == started_.back()->pid()) point_.clear();
    if (pid > 0) kill(pid, SIGKILL);
  }
  // True when the keeper can be killed without loss: a server is there, holds all, and is not about
  // to die at a point.
  bool MayLoseKeeper() const {
    return Lives() && point_.empty() && FindKeeper(socket_dir()) != 0 &&
           HoldingsOf(socket_dir()).jobs >= 0;
  }
  // Kills the keeper; returns when another one holds everything.
  Wrong KillKeeper() {
    const size_t before = KeepersRenewed();
    kill(FindKeeper(socket_dir()), SIGKILL);
    const int64_t end_ns = clock_.NowNs() + 20 * kNsPerSecond;
    while (KeepersRenewed() == before) {
      if (clock_.NowNs() > end_ns) return "memserver did not start another keeper";
      clock_.SleepNs(kNsPerMs);
    }
    return "";
  }
  // Starts the next one where nobody else has. True when memserver was found dead at the point that
  // was armed.
  bool Poll(bool arm) {
    bool hit = false;
    if (const auto ended = started_.back()->Wait(0); ended && !point_.empty())
      hit = ended->signal == SIGKILL && !std::exchange(point_, "").empty();
    if (Lives()) {
      dead_since_ns_ = 0;
    } else if (dead_since_ns_ == 0) {
      dead_since_ns_ = clock_.NowNs();
    } else if (clock_.NowNs() - dead_since_ns_ > kKeeperNs) {
      const size_t point = random_->Below(std::size(kServerPoints));
      Start(arm ? std::string(kServerPoints[point]) + ":" +
                      std::to_string(1 + random_->Below(point < 3 ? 40 : 3))
                : "");
      dead_since_ns_ = 0;
    }
    return hit;
  }
  bool Lives() const {
    const pid_t pid = Pid();
    return pid > 0 && kill(pid, 0) == 0 &&
           ReadText("/proc/" + std::to_string(pid) + "/stat").find(") Z ") == std::string::npos;
  }
  const std::string& point() const { return point_; }
  // The output of all servers and keepers.
  std::string Output() const {
    std::string output;
    for (const auto& process : started_) output += process->Output();
    return output;
  }
  // Ends server and keeper in order; nothing may stay.
  Wrong Stop() {
    const int64_t end_ns = clock_.NowNs() + 20 * kNsPerSecond;
    while ((Lives() || FindKeeper(socket_dir()) != 0) && clock_.NowNs() < end_ns) {
      if (const pid_t pid = Pid(); pid > 0) kill(pid, SIGINT);
      started_.back()->Wait(0);
      clock_.SleepNs(50 * kNsPerMs);
    }
    if (Lives() || FindKeeper(socket_dir()) != 0)
      return "memserver or its keeper did not end at Ctrl-C";
    for (const auto& entry : std::filesystem::directory_iterator(socket_dir()))
      return "left behind: " + entry.path().string();
    return "";
  }

 private:
  void Start(const std::string& point) {
    point_ = point;
    const auto armed = point.empty() ? std::vector<std::string>()
                                     : std::vector<std::string>{"TIDEPOOL_KILL_AT=" + point};
    started_.push_back(std::make_unique<ChildProcess>(
        MemserverCommand(socket_dir(),
                         {"--keeper", "process", "--lease",
                          std::to_string(kLeaseNs / kNsPerSecond) + "s", "--pool", "16MiB"}),
        armed));
  }
  pid_t Pid() const { return FindServer(socket_dir()); }
  // Counted over all servers: those that a keeper starts write to where the keeper does.
  size_t KeepersRenewed() const {
    const std::string output = Output();
    size_t count = 0;
    for (size_t at = 0; (at = output.find("a new one holds", at)) != std::string::npos; ++at)
      ++count;
    return count;
  }

  SteadyClock clock_;
  SplitMix64* random_;
  TemporaryDirectory directory_;
  // Servers started by the campaign; the present one may be the keeper's.
  std::vector<std::unique_ptr<ChildProcess>> started_;
  std::string point_;
  int64_t dead_since_ns_ = 0;
};

}  // namespace tidepool::testing
