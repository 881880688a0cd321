// PlayedSession: a MemClient of rank 0 at a PlayedServer: what tests of both begin with.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "client/mem_client.h"
#include "tests/client/played_server.h"

namespace tidepool::client {

class PlayedSession : public ::testing::Test {
 protected:
  PlayedSession() {
    options_.clock = &clock_;
    options_.socket_dir = server_.directory();
    options_.wait_timeout_ns = 5 * kNsPerSecond;
  }
  // Runs the server's part beside the client's.
  template <typename Client>
  static auto Beside(const std::function<void()>& server, const Client& client) {
    std::thread thread(server);
    auto result = client();
    thread.join();
    return result;
  }
  void Connect() {
    auto client = Beside(
        [this] {
          hello_ = server_.TakeGreeting();
          server_.Welcome();
        },
        [this] { return MemClient::Connect(options_, server_.Spec(), 0); });
    ASSERT_TRUE(client.ok()) << client.status().Format();
    client_ = std::move(client).value();
  }
  // A fetch whose rCache offset names it.
  Ticket Fetch(uint64_t name) { return client_->StartFetch({0, 0, 64, name}, 12).value(); }

  SteadyClock clock_;
  testing::PlayedServer server_;
  ClientOptions options_;
  std::unique_ptr<MemClient> client_;
  shm::HelloFrame hello_;
};

}  // namespace tidepool::client
