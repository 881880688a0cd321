#include "tests/process/rig/daemon_fixture.h"

#include <poll.h>

#include <array>
#include <filesystem>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"

namespace tidepool::testing {

Holdings HoldingsOf(const std::string& socket_dir) {
  const std::string status = AskAdmin(socket_dir, "/v1/status");
  Holdings holdings;
  holdings.jobs = NumberIn(status, "jobs");
  holdings.sessions = NumberIn(status, "sessions");
  const size_t pool = status.find("\"pool\":"), rcache = status.find("\"rcache\":");
  if (pool == std::string::npos || rcache == std::string::npos) return holdings;
  holdings.pool_bytes = NumberIn(status.substr(pool), "bytes_used");
  holdings.rcache_bytes = NumberIn(status.substr(rcache), "bytes_used");
  return holdings;
}

Holdings WaitForHoldings(const std::string& socket_dir, const Holdings& expected,
                         int64_t timeout_ns) {
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + timeout_ns;
  for (;;) {
    const Holdings now = HoldingsOf(socket_dir);
    if (now == expected || clock.NowNs() > limit) return now;
    clock.SleepNs(10 * kNsPerMs);
  }
}

size_t SettledDescriptors() {
  SteadyClock clock;
  constexpr int kSameMin = 10;
  size_t before = 0;
  for (int same = 0; same < kSameMin; ++same) {
    const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
    const auto count = static_cast<size_t>(std::distance(begin(entries), end(entries)));
    if (count != before) same = 0;
    before = count;
    clock.SleepNs(5 * kNsPerMs);
  }
  return before;
}

memserver::ServerOptions DaemonInProcess::SmallServer() {
  memserver::ServerOptions options;
  options.pool_bytes = 32 * kMiB;
  options.rcache_limit = 32 * kMiB;
  options.settings.pool.huge_pages = false;
  return options;
}

DaemonInProcess::DaemonInProcess(memserver::ServerOptions options) {
  options.settings.socket_dir = directory_.path();
  auto server = memserver::Server::Start(options, &keeper_, &clock_);
  TP_CHECK(server.ok(), server.status().Format().c_str());
  server_ = std::move(server).value();
  pump_ = std::thread([this] { Pump(); });
}

void DaemonInProcess::Pump() {
  for (;;) {
    std::array<pollfd, 2> entries{
        {{server_->ended_fd(), POLLIN, 0}, {server_->snapshot_fd(), POLLIN, 0}}};
    poll(entries.data(), entries.size(), -1);
    if (entries[0].revents != 0) return;
    if (entries[1].revents != 0) server_->PublishSnapshots();
  }
}

DaemonInProcess::~DaemonInProcess() {
  server_->Stop();
  pump_.join();
  server_.reset();
}

std::vector<std::string> ThinCommand(const std::string& socket_dir,
                                     const std::vector<std::string>& more) {
  std::vector<std::string> command{TIDEPOOL_THIN_TRAINER, "--socket-dir", socket_dir};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

}  // namespace tidepool::testing
