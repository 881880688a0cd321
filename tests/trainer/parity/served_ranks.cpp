#include "tests/trainer/parity/served_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/formats/safetensors.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

// A private directory, removed with everything in it.
class Scratch {
 public:
  Scratch() {
    std::string name = "/tmp/tidepool-parity-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A rank that ends, for whatever reason, ends the waits of the others; which of them notices first
// is a matter of luck.
bool IsOfAPeer(const Status& status) {
  return status.id() == ErrorId::kPeerLost || status.id() == ErrorId::kCollectiveFailed ||
         status.id() == ErrorId::kRanksMissing;
}

Status CauseOf(const std::vector<Status>& ended) {
  const auto own = [](const Status& status) { return !status.ok() && !IsOfAPeer(status); };
  const auto cause = std::find_if(ended.begin(), ended.end(), own);
  if (cause != ended.end()) return *cause;
  const auto any =
      std::find_if(ended.begin(), ended.end(), [](const Status& status) { return !status.ok(); });
  return any != ended.end() ? *any : Status();
}

}  // namespace

Result<std::unique_ptr<RunSession>> ServedPlace::Open(SessionTask task) const {
  static SteadyClock clock;
  task.clock = &clock;
  task.server.socket_dir = directory;
  task.interrupted = [is_failed = failed] {
    return *is_failed ? Status(ErrorId::kPeerLost, "another rank of the test has failed")
                      : Status();
  };
  // Better than the time-out of the test, which would tell nothing.
  task.stuck = [rank = place.rank](const Status& why) {
    TP_CHECK(false,
             ("rank " + std::to_string(rank) + " hangs in a collective: " + why.Line()).c_str());
  };
  return RunSession::Open(place, std::move(task));
}

Status RunServedRanks(uint32_t world, const ServerChoice& choice,
                      const std::function<Status(const ServedPlace&)>& body) {
  SetLogLevel(LogLevel::kWarn);
  const Scratch scratch;
  memserver::ServerOptions options;
  options.settings.socket_dir = scratch.path();
  options.pool_bytes = 16 * kMiB;
  options.rcache_limit = 16 * kMiB;
  options.settings.optimizer.tuning = choice.tuning;
  options.settings.optimizer.threads = choice.adam_threads;
  options.settings.optimizer.isa = choice.isa;
  memserver::KeptHolder nobody(memserver::KeeperChoice::kNone, {});
  SteadyClock clock;
  const auto server = memserver::Server::Start(options, &nobody, &clock);
  if (!server.ok()) return server.status();
  std::atomic<bool> failed = false;
  std::vector<Status> ended(world);
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < world; ++rank) {
    ServedPlace at;
    at.place.rank = at.place.local_rank = rank;
    at.place.world = at.place.local_world = world;
    at.place.run_id = scratch.path();
    at.directory = scratch.path();
    at.failed = &failed;
    ranks.emplace_back([&, at = std::move(at)] {
      ended[at.place.rank] = body(at);
      if (!ended[at.place.rank].ok()) failed = true;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return CauseOf(ended);
}

std::map<std::string, std::vector<float>> ReadWeights(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint64_t data_begin = 0;
  const auto header = DecodeSafetensors(std::as_bytes(std::span(bytes)), &data_begin);
  EXPECT_TRUE(header.ok()) << header.status().Format();
  std::map<std::string, std::vector<float>> weights;
  if (!header.ok()) return weights;
  for (const SafetensorsEntry& entry : header.value().tensors) {
    std::vector<float>& values = weights[entry.name];
    values.resize((entry.end - entry.begin) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + data_begin + entry.begin, entry.end - entry.begin);
  }
  return weights;
}

}  // namespace tidepool::trainer
