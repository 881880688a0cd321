// DurableDaemon: a test with memserver, its keeper and thin trainers as programs, in a directory of
// their own.
//
// One thread. At the end of a test whatever still serves the directory is killed.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/process/rig/child_process.h"

namespace tidepool::testing {

using Process = std::unique_ptr<ChildProcess>;

class DurableDaemon : public ::testing::Test {
 protected:
  static constexpr int64_t kLimit = 30 * int64_t{1000000000};

  // A memserver with a keeper, a lease of 20 s and a pool of 8 MiB, unless `more` says otherwise;
  // returns when it is ready.
  Process Serve(const std::vector<std::string>& more = {},
                const std::vector<std::string>& environment = {}) const;
  // The same as another program than this release's memserver.
  Process ServeBy(const std::string& program, const std::vector<std::string>& more = {},
                  const std::vector<std::string>& environment = {}) const;
  // A thin trainer of 60 steps that waits 60 s for a lost server, unless `more` says otherwise: a
  // test that waits for the next server waits for up to kLimit, and the trainer must not give up
  // before.
  Process Train(const std::vector<std::string>& more = {},
                const std::vector<std::string>& environment = {}) const;
  Process TrainBy(const std::string& program, const std::vector<std::string>& more = {},
                  const std::vector<std::string>& environment = {}) const;
  // SIGTERM; expects the hand-over to succeed within two seconds (longer under sanitizers).
  static void HandOver(ChildProcess* server);
  // The hash of each rank's weights after an undisturbed run of 60 steps.
  static std::vector<std::string> UndisturbedHashes(uint32_t world);
  static std::string UndisturbedHash() { return UndisturbedHashes(1).front(); }
  static std::string HashIn(const std::string& output);
  // Expects that the trainer ends well, with weights of this hash.
  static void ExpectDone(ChildProcess* job, const std::string& hash);
  // What memctl prints about the server of the directory; expects that it ends well.
  std::string Memctl(std::vector<std::string> arguments) const;
  pid_t ServerPid() const;
  bool WaitForFilesToGo() const;
  static void ExpectGone(pid_t pid);
  void TearDown() override;

  const TemporaryDirectory directory_;
};

}  // namespace tidepool::testing
