// Memctl: memctl's commands in this process, against a real admin server over a prepared snapshot.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/memctl/commands/commands.h"
#include "client/memctl/flags/flags.h"
#include "memserver/admin/admin_server.h"
#include "tests/memserver/admin/admin_fixture.h"

namespace tidepool::client {

inline ParsedLine Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "memctl");
  return ParseCommandLine(static_cast<int>(words.size()), words.data());
}

inline constexpr const char* kTopology =
    R"({"source":"a test","nodes":[],"root_complexes":[],)"
    R"("plan":{"pool_nodes":[],"pool_spread":"system","worker_cpus":[],"staging":[]}})";

class Memctl : public ::testing::Test {
 protected:
  explicit Memctl(memserver::Snapshot snapshot = memserver::TwoJobs())
      : loop_(std::move(snapshot)) {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tidepool-memctl-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~Memctl() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  void Serve() {
    auto server = memserver::AdminServer::Start({.socket_path = directory_ + "/admin.sock"}, &api_);
    ASSERT_TRUE(server.ok()) << server.status().Format();
    server_ = std::move(server).value();
  }

  Result<Shown> Run(std::vector<const char*> words) {
    words.insert(words.end(), {"-s", directory_.c_str()});
    ParsedLine line = Parse(words);
    if (!line.invocation.has_value()) return Status(ErrorId::kUsageError, line.text);
    line.invocation->clock = &clock_;
    return RunCommand(*line.invocation, {});
  }
  std::string ResultOf(const std::vector<const char*>& words) {
    auto shown = Run(words);
    EXPECT_TRUE(shown.ok()) << shown.status().Format();
    return shown.ok() ? shown->result : "";
  }

  SteadyClock clock_;
  memserver::FakeLoop loop_;
  memserver::AdminApi api_{{.version = "1.2.3",
                            .abi = 1,
                            .build = "b",
                            .devices = {"host"},
                            .socket_dir = "/d",
                            .topology = kTopology},
                           &loop_.source,
                           loop_.mail()};
  std::string directory_;
  std::unique_ptr<memserver::AdminServer> server_;
};

}  // namespace tidepool::client
