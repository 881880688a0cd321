#include "memserver/admin/admin_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/system/loopback.h"
#include "base/random.h"
#include "base/unique_fd.h"
#include "client/admin/ask_gpus.h"
#include "client/admin/ask_layout.h"
#include "client/admin/send_http.h"
#include "tests/memserver/admin/admin_fixture.h"

namespace tidepool::memserver {
namespace admin_server_test {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class AdminServerTest : public ::testing::Test {
 protected:
  AdminServerTest() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tidepool-admin-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    path_ = directory_ + "/admin.sock";
    Start({});
  }
  ~AdminServerTest() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  void Start(const AdminLimits& limits) {
    server_.reset();
    auto server =
        AdminServer::Start({.socket_path = path_, .metrics_listen = metrics_}, &api_, limits);
    ASSERT_TRUE(server.ok()) << server.status().Format();
    server_ = std::move(server).value();
  }

  UniqueFd Connect() {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return fd;
  }

  static void Send(const UniqueFd& fd, const std::string& text) {
    // The server may have closed already: that shows in what is received.
    [[maybe_unused]] const auto n = send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }

  // Everything until the server closes; empty text and a failure when that takes too long.
  static std::string ReceiveAll(const UniqueFd& fd, int timeout_ms = 20'000) {
    std::string text;
    std::vector<char> buffer(1 << 16);
    while (true) {
      pollfd event{fd.get(), POLLIN, 0};
      if (poll(&event, 1, timeout_ms) != 1) {
        ADD_FAILURE() << "the server did not close in time, so far: " << text;
        return "";
      }
      const ssize_t n = recv(fd.get(), buffer.data(), buffer.size(), 0);
      if (n <= 0) return text;
      text.append(buffer.data(), static_cast<size_t>(n));
    }
  }

  std::string Ask(const std::string& request) {
    const UniqueFd fd = Connect();
    Send(fd, request);
    return ReceiveAll(fd);
  }
  std::string Get(const std::string& target) {
    return Ask("GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }
  void ExpectAlive() { EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200 OK")); }

  FakeLoop loop_;
  AdminApi api_{{.version = "1.2.3", .abi = 9, .build = "", .devices = {}, .socket_dir = ""},
                &loop_.source,
                loop_.mail()};
  std::string directory_, path_;
  std::string metrics_;  // the next Start listens there, too
  std::unique_ptr<AdminServer> server_;
};

TEST_F(AdminServerTest, AnswersWithJsonAndTheAbi) {
  const std::string answer = Get("/v1/version");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("X-Tidepool-Abi: 9\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(answer, HasSubstr("Cache-Control: no-store\r\n"));
  EXPECT_THAT(answer, EndsWith("}"));
}

TEST_F(AdminServerTest, AnybodyWhoLinksTheClientMayAskForTheGpus) {
  auto gpus = client::AskGpus(directory_, 5 * kNsPerSecond);
  ASSERT_TRUE(gpus.ok()) << gpus.status().Format();
  ASSERT_EQ(gpus->size(), 1U);
  EXPECT_EQ(gpus->front().uuid, OneGpu().uuid);
  EXPECT_EQ(gpus->front().taken, OneGpu().bytes_taken);
  EXPECT_EQ(client::AskGpus(directory_ + "/nobody", 5 * kNsPerSecond).status().id(),
            ErrorId::kNoServer);
}

TEST_F(AdminServerTest, AnybodyWhoLinksTheClientMayAskHowAJobIsLaidOut) {
  auto layout = client::AskLayout(directory_, "gpt", 5 * kNsPerSecond);
  ASSERT_TRUE(layout.ok()) << layout.status().Format();
  EXPECT_EQ(layout->parameters, (std::vector<std::string>{"h.0.weight", "h.0.bias", "h.1.weight"}));
  EXPECT_EQ(layout->rank_rcache_bytes, 1024U);
  EXPECT_EQ(client::AskLayout(directory_, "gtp", 5 * kNsPerSecond).status().id(),
            ErrorId::kAdminNotFound);
  EXPECT_EQ(client::AskLayout(directory_ + "/nobody", "gpt", 5 * kNsPerSecond).status().id(),
            ErrorId::kNoServer);
}

TEST_F(AdminServerTest, SeveralQuestionsOverOneConnectionAreAnsweredInTheirOrder) {
  const std::vector<client::HttpQuestion> questions{
      {"GET", "/v1/version"}, {"GET", "/v1/nothing"}, {"GET", "/livez"}};
  auto replies = client::SendHttpAtOnce(path_, questions, 5 * kNsPerSecond);
  ASSERT_TRUE(replies.ok()) << replies.status().Format();
  ASSERT_EQ(replies->size(), 3U);
  EXPECT_THAT((*replies)[0].body, HasSubstr("\"version\":\"1.2.3\""));
  EXPECT_EQ((*replies)[1].status, 404U);
  EXPECT_EQ((*replies)[2].status, 200U);

  Start({.connections_max = 0});
  auto refused = client::SendHttpAtOnce(path_, questions, 5 * kNsPerSecond);
  ASSERT_TRUE(refused.ok()) << refused.status().Format();
  ASSERT_EQ(refused->size(), 1U) << "the server closes behind its refusal";
  EXPECT_EQ(refused->front().status, 503U);
}

TEST_F(AdminServerTest, TheSocketFileIsForItsOwnerOnlyAndLeavesWithTheServer) {
  struct stat file {};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  server_.reset();
  EXPECT_NE(stat(path_.c_str(), &file), 0);
}

TEST_F(AdminServerTest, AStaleSocketFileIsReplaced) {
  server_.reset();
  {
    const UniqueFd stale(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(bind(stale.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  Start({});
  ExpectAlive();
}

TEST_F(AdminServerTest, APathThatCannotBeASocketIsAnError) {
  EXPECT_EQ(AdminServer::Start({.socket_path = directory_ + "/" + std::string(200, 'x')}, &api_)
                .status()
                .id(),
            ErrorId::kSocketFailed);
  EXPECT_EQ(
      AdminServer::Start({.socket_path = directory_ + "/none/admin.sock"}, &api_).status().id(),
      ErrorId::kSocketFailed);
}

// An address of the loopback, and how a reader of metrics asks there.
class MetricsPort {
 public:
  MetricsPort()
      : taken_(std::move(ListenLoopback("127.0.0.1:0", "--flag").value())),
        name_(AddressOf(taken_)) {
    socklen_t length = sizeof at_;
    EXPECT_EQ(getsockname(taken_.get(), reinterpret_cast<sockaddr*>(&at_), &length), 0);
  }
  // Nobody listens there any more.
  void LetGo() { taken_.Reset(); }
  UniqueFd Connected() const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&at_), sizeof at_) != 0) fd.Reset();
    return fd;
  }
  const std::string& name() const { return name_; }

 private:
  UniqueFd taken_;
  const std::string name_;
  sockaddr_in at_{};
};

TEST_F(AdminServerTest, APortOfMetricsThatSomebodyElseHasFailsNoStartAndIsTriedForAgain) {
  MetricsPort port;
  metrics_ = port.name();
  Start({.metrics_pause_ns = kNsPerMs});
  ExpectAlive();
  port.LetGo();
  UniqueFd reader;
  for (int tries = 0; tries < 20'000 && !reader.valid(); ++tries) {
    reader = port.Connected();
    if (!reader.valid()) SteadyClock().SleepNs(kNsPerMs);
  }
  ASSERT_TRUE(reader.valid()) << "nobody listens";
  Send(reader, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(ReceiveAll(reader), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(AdminServerTest, TheLoopbackAnswersReadersOfMetricsAndNothingElse) {
  MetricsPort port;
  metrics_ = port.name();
  port.LetGo();
  Start({.user_connections_max = 2});
  const auto connected = [&] { return port.Connected(); };
  const auto ask = [&](const std::string& request, const std::string& host = "localhost:9465") {
    const UniqueFd fd = connected();
    Send(fd, request + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
    return ReceiveAll(fd);
  };
  const std::string metrics = ask("GET /metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(metrics, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(metrics, HasSubstr("\ntidepool_job_steps_total{job_name=\"gpt\"} 41\n"));
  EXPECT_THAT(ask("GET /v1/status"), StartsWith("HTTP/1.1 404"));
  for (const char* host :
       {"", "x", "evil.example", "evil.example:9465", "localhost.evil.example", "10.1.2.3"}) {
    const std::string refused = ask("GET /metrics", host);
    EXPECT_THAT(refused, StartsWith("HTTP/1.1 421")) << host;
    EXPECT_THAT(refused, Not(HasSubstr("tidepool_job"))) << host;
  }
  for (const char* host : {"127.0.0.1:1", "[::1]:9465", "LOCALHOST"})
    EXPECT_THAT(ask("GET /metrics", host), StartsWith("HTTP/1.1 200")) << host;
  EXPECT_THAT(ask("POST /v1/drain"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask("POST /metrics"), StartsWith("HTTP/1.1 405"));
  EXPECT_TRUE(loop_.TakeCommands().empty());
  const UniqueFd first = connected(), second = connected();  // and say nothing
  EXPECT_THAT(ReceiveAll(connected()), StartsWith("HTTP/1.1 503")) << "who asks there is one user";
  ExpectAlive();
}

TEST_F(AdminServerTest, OnlyAddressesOfTheLoopbackAreListenedOn) {
  for (const char* address : {"0.0.0.0:9465", "10.1.2.3:9465", "[::]:9465", "localhost:9465",
                              "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", ":9465"}) {
    EXPECT_EQ(ListenLoopback(address, "--flag").status().id(), ErrorId::kConfigBadValue) << address;
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
  EXPECT_TRUE(ListenLoopback("127.5.0.1:0", "--flag").ok());
  EXPECT_TRUE(IsLoopback("127.5.0.1:9465") && IsLoopback("[::1]:9465"));
}

TEST_F(AdminServerTest, HeadGivesTheHeaderAlone) {
  const std::string answer =
      Ask("HEAD /v1/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: "));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n"));
}

TEST_F(AdminServerTest, OtherMethodsGetAllowAndAProblem) {
  const std::string answer =
      Ask("DELETE /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"));
  EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/problem+json\r\n"));
}

TEST_F(AdminServerTest, OneConnectionCarriesManyRequests) {
  const UniqueFd fd = Connect();
  std::string requests;
  for (int i = 0; i < 49; ++i) requests += "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
  Send(fd, requests + "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string answers = ReceiveAll(fd);
  int count = 0;
  for (size_t at = answers.find("HTTP/1.1 200"); at != std::string::npos;
       at = answers.find("HTTP/1.1 200", at + 1))
    ++count;
  EXPECT_EQ(count, 50);
}

TEST_F(AdminServerTest, AThousandRapidConnectionsAreAllAnswered) {
  for (int i = 0; i < 1000; ++i) ASSERT_THAT(Get("/v1/jobs"), StartsWith("HTTP/1.1 200 OK")) << i;
}

TEST_F(AdminServerTest, MalformedRequestsAreRefusedAndOthersStillServed) {
  for (const char* text :
       {"\x16\x03\x01\x02garbage\r\n\r\n", "GET\r\n\r\n", "GET /livez HTTP/9.9\r\n\r\n",
        "GET /livez\r\n\r\n", "GET /livez HTTP/1.1\r\nbad header\r\n\r\n",
        "GET /livez HTTP/1.1\r\nContent-Length: -4\r\n\r\n",
        "POST /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    const std::string answer = Ask(text);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 Bad Request")) << text;
    EXPECT_THAT(answer, HasSubstr("TP3102")) << text;
  }
  ExpectAlive();
}

TEST_F(AdminServerTest, RandomBytesNeverStopTheServer) {
  SplitMix64 random(77);
  const std::string valid =
      "GET /v1/chunks?limit=3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  for (int round = 0; round < 300; ++round) {
    std::string text = valid;
    for (int edit = 0; edit < 3; ++edit)
      text[random.Below(text.size())] = static_cast<char>(random.Next());
    const UniqueFd fd = Connect();
    Send(fd, text);
    shutdown(fd.get(), SHUT_WR);
    ReceiveAll(fd);
  }
  ExpectAlive();
}

TEST_F(AdminServerTest, TooLargeHeadersAndBodiesAreRefused) {
  const std::string long_header =
      "GET /livez HTTP/1.1\r\nX: " + std::string(20'000, 'a') + "\r\n\r\n";
  EXPECT_THAT(Ask(long_header), StartsWith("HTTP/1.1 431 "));
  const std::string announced =
      "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n";
  EXPECT_THAT(Ask(announced), StartsWith("HTTP/1.1 413 "));
  ExpectAlive();
}

TEST_F(AdminServerTest, ABodyOnAGetIsReadAndIgnored) {
  EXPECT_THAT(
      Ask("GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"),
      StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(AdminServerTest, AHalfRequestIsClosedAfterTheTimeLimit) {
  Start({.request_timeout_ns = 100 * kNsPerMs});
  const UniqueFd fd = Connect();
  Send(fd, "GET /livez HTT");
  EXPECT_EQ(ReceiveAll(fd), "");
  ExpectAlive();
}

TEST_F(AdminServerTest, AReaderThatNeverReadsIsClosedAndHoldsUpNobody) {
  Start({.answer_timeout_ns = 200 * kNsPerMs});
  const UniqueFd fd = Connect();
  const int small = 4096;
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  std::string requests;
  for (int i = 0; i < 4000; ++i) requests += "GET /v1/residency HTTP/1.1\r\nHost: x\r\n\r\n";
  fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  SteadyClock clock;
  const int64_t end = clock.NowNs() + 10 * kNsPerSecond;
  bool closed = false;
  while (!closed && clock.NowNs() < end) {  // asks on and on, and takes nothing
    closed = send(fd.get(), requests.data(), requests.size(), MSG_NOSIGNAL) < 0 && errno == EPIPE;
    ExpectAlive();
    clock.SleepNs(kNsPerMs);
  }
  EXPECT_TRUE(closed);
}

TEST_F(AdminServerTest, WhoFollowsTheEventsGetsThemAsTheyComeUntilItLeaves) {
  Start({.connections_max = 2, .follow_pause_ns = kNsPerMs});
  UniqueFd fd = Connect();
  LogInfo("an event before");
  Send(fd, "GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\n\r\n");
  std::string text;
  const auto receive_until = [&](const std::string& part) {
    std::array<char, 4096> buffer{};
    while (text.find(part) == std::string::npos) {
      pollfd event{fd.get(), POLLIN, 0};
      if (poll(&event, 1, 20'000) != 1) return false;
      const ssize_t count = recv(fd.get(), buffer.data(), buffer.size(), 0);
      if (count <= 0) return false;
      text.append(buffer.data(), static_cast<size_t>(count));
    }
    return true;
  };
  ASSERT_TRUE(receive_until("an event before")) << text;
  EXPECT_THAT(text, HasSubstr("Transfer-Encoding: chunked"));
  EXPECT_THAT(text, HasSubstr("Content-Type: application/x-ndjson"));
  for (int i = 0; i < 3; ++i) {
    LogInfo("event number " + std::to_string(i) + " of the test");
    ASSERT_TRUE(receive_until("event number " + std::to_string(i) + " of the test")) << text;
  }
  const size_t first = text.find("event number 0 of the test");
  EXPECT_EQ(text.find("event number 0 of the test", first + 1), std::string::npos)
      << "each comes once";
  ExpectAlive();
  fd.Reset();
  // Its place is free again: two others fit beside each other.
  std::string answer;
  for (int i = 0; i < 1000 && !::testing::Value(answer, StartsWith("HTTP/1.1 200")); ++i) {
    const UniqueFd other = Connect();
    Send(other, "GET /liv");
    answer = Get("/livez");
    SteadyClock().SleepNs(kNsPerMs);
  }
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(Get("/v1/events?follow=yes"), StartsWith("HTTP/1.1 400 "));
  // Whoever says more than its question has had its answer (fz_admin: its end was not seen behind
  // what it had said), and its time for the rest of what it began to say.
  Start({.request_timeout_ns = 200 * kNsPerMs});
  EXPECT_THAT(Ask("GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\n\r\nand more"),
              StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(AdminServerTest, AThousandSlowReadersAreEndedAndOthersAreServedAgain) {
  Start({.request_timeout_ns = 200 * kNsPerMs});
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 1000; ++i) {
    slow.push_back(Connect());
    Send(slow.back(), "GET /v1/residency HTTP/1.1\r\nHost: x\r\nX-Slow: ");
  }
  int refused = 0, closed = 0;
  for (const UniqueFd& fd : slow) {
    const std::string answer = ReceiveAll(fd);
    refused += answer.starts_with("HTTP/1.1 503 ") ? 1 : 0;
    closed += answer.empty() ? 1 : 0;
  }
  EXPECT_EQ(refused + closed, 1000);
  EXPECT_GT(closed, 0);
  ExpectAlive();
}

TEST_F(AdminServerTest, BeyondTheLimitConnectionsAreRefusedPolitely) {
  Start({.connections_max = 3});
  std::vector<UniqueFd> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(Connect());
    Send(held.back(), "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
    pollfd event{held.back().get(), POLLIN, 0};
    ASSERT_EQ(poll(&event, 1, 10'000), 1);  // served, and kept open
  }
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 503 "));
  held.clear();
  std::string answer;
  for (int i = 0; i < 200 && !::testing::Value(answer, StartsWith("HTTP/1.1 200")); ++i) {
    answer = Get("/livez");
    SteadyClock().SleepNs(kNsPerMs);
  }
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"))
      << "places of closed connections are free again";
}

TEST_F(AdminServerTest, EndingTheServerClosesOpenConnections) {
  const UniqueFd fd = Connect();
  Send(fd, "GET /liv");
  server_.reset();
  EXPECT_EQ(ReceiveAll(fd), "");
}

}  // namespace admin_server_test
}  // namespace tidepool::memserver
