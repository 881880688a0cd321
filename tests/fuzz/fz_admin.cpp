// Fuzz target: the admin socket (attack A13 of the reliability notes): request line, headers, path,
// parameters and JSON body of hostile requests, through the socket and the HTTP parser of a server
// that runs, and past those, with every level of rights, into the table of paths. Whatever comes,
// the answer is one of the documented ones, reading changes nothing, and a change that gets through
// is within its limits.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <boost/json/parse.hpp>
#include <memory>
#include <set>
#include <string>
#include <variant>

#include "base/check.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "memserver/admin/admin_server.h"
#include "memserver/admin/request_body.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/memserver/admin/admin_fixture.h"

namespace tidepool::memserver {
namespace {

using fuzz::FuzzInput;

// Lives as long as the process: a thread that plays the serve loop, and one that serves the socket.
struct Stage {
  Stage() {
    InitLog("fuzz", LogLevel::kError, LogFormat::kJson);
    auto started = AdminServer::Start({.socket_path = path}, &api);
    TP_CHECK(started.ok(), "the admin server starts");
    server = std::move(started).value();
  }
  const std::string path = "/tmp/tp-fz-admin-" + std::to_string(getpid()) + ".sock";
  FakeLoop loop;
  AdminApi api{{.version = "1.2.3",
                .abi = 9,
                .build = "b",
                .devices = {"host"},
                .socket_dir = "/d",
                .pid = 7},
               &loop.source,
               loop.mail()};
  // The api of the socket's thread is that thread's alone; requests past the socket have their own.
  AdminApi direct{api.facts(), &loop.source, loop.mail()};
  std::unique_ptr<AdminServer> server;
};

void CheckJson(const std::string& text) {
  boost::system::error_code error;
  boost::json::parse({text.data(), text.size()}, error);
  TP_CHECK(!error, "an answer is JSON");
}

void CheckAnswer(unsigned status, const std::string& body, const std::string& kind) {
  constexpr std::array<unsigned, 11> kDocumented{200, 400, 403, 404, 405, 409,
                                                 413, 431, 503, 504, 408};
  TP_CHECK(std::find(kDocumented.begin(), kDocumented.end(), status) != kDocumented.end(),
           "the answer has a documented status");
  if (kind == "application/json") CheckJson(body);
  if (status == 200) return;
  TP_CHECK(kind == "application/problem+json", "what is refused is a problem document");
  CheckJson(body);
  TP_CHECK(body.find("\"code\":\"TP") != std::string::npos &&
               body.find("\"remedy\":\"") != std::string::npos,
           "a problem has code and remedy");
}

// A change that has reached the loop is sound in itself.
void CheckCommand(const AdminCommand& command) {
  if (const auto* set = std::get_if<SetJobQuota>(&command.what)) {
    TP_CHECK(!set->change.weight || (*set->change.weight >= 1 && *set->change.weight <= kWeightMax),
             "a weight is within its limits");
    TP_CHECK(command.caller.level >= AdminLevel::kOperator, "quotas are for operators");
  } else if (const auto* mute = std::get_if<MuteCheck>(&command.what)) {
    TP_CHECK(mute->for_ns >= 0 && mute->for_ns <= 30ll * 24 * 3600 * kNsPerSecond, "a mute ends");
    TP_CHECK(command.caller.level >= AdminLevel::kOperator, "mutes are for operators");
  } else if (const auto* level = std::get_if<ChangeLogLevel>(&command.what)) {
    TP_CHECK(level->for_ns >= 0, "a level is not for a time before now");
    TP_CHECK(command.caller.level == AdminLevel::kAdmin, "levels are for admins");
  } else if (std::holds_alternative<DrainJobs>(command.what) ||
             std::holds_alternative<StartScrub>(command.what)) {
    TP_CHECK(command.caller.level >= AdminLevel::kOperator,
             "draining and scrubbing are for operators");
  }
}

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Words of the API, among bytes of the input: a free text seldom spells one.
std::string Word(FuzzInput* input) {
  constexpr std::array<const char*, 32> kWords{
      "v1",       "jobs",   "gpt",     "7",         "3",      "quota",   "suspend", "resume",
      "nvme",     "scrub",  "health",  "mutes",     "drain",  "log",     "reload",  "config",
      "chunks",   "diff",   "status",  "residency", "events", "metrics", "livez",   "readyz",
      "topology", "quotas", "version", "..",        "%2e",    "%00",     "%ff",     ""};
  return input->OneIn(4) ? input->Text(8) : kWords[input->Choice(kWords.size())];
}

std::string Target(FuzzInput* input) {
  std::string target = input->OneIn(16) ? "" : "/";
  for (uint32_t segments = 1 + input->Choice(4); segments > 0; --segments)
    target += Word(input) + (segments > 1 ? "/" : "");
  constexpr std::array<const char*, 10> kParameters{"job",   "state", "cursor", "limit",  "force",
                                                    "check", "after", "a",      "job%3d", ""};
  for (uint32_t count = input->Choice(3); count > 0; --count) {
    target += (target.find('?') == std::string::npos ? "?" : "&") +
              std::string(kParameters[input->Choice(kParameters.size())]) + "=" +
              (input->OneIn(2) ? input->Text(10) : Word(input));
  }
  return target;
}

std::string Body(FuzzInput* input) {
  constexpr std::array<const char*, 10> kFields{
      "guarantee", "limit", "nvme_limit", "weight", "priority", "level", "for", "check", "x", ""};
  constexpr std::array<const char*, 16> kValues{
      "1",         "0",       "-1",       "101",  "1e3",  "1.5", "18446744073709551616",
      "\"10GiB\"", "\"50%\"", "\"none\"", "true", "null", "[1]", "{\"a\":1}",
      "\"high\"",  "\"1h\""};
  if (input->OneIn(4)) return Text(input->Rest());
  std::string body = "{";
  for (uint32_t count = input->Choice(5); count > 0; --count) {
    body +=
        std::string("\"") + kFields[input->Choice(kFields.size())] + "\":" +
        (input->OneIn(4) ? "\"" + input->Text(8) + "\"" : kValues[input->Choice(kValues.size())]) +
        (count > 1 ? "," : "");
  }
  return body + "}" + input->Text(2);
}

const char* Method(FuzzInput* input) {
  return std::array{"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"}[input->Choice(6)];
}

// Past the socket: every level of rights.
void AskDirectly(Stage* stage, FuzzInput* input) {
  const std::string method = input->OneIn(8) ? input->Text(6) : Method(input);
  const AdminCaller caller{
      .uid = input->Choice(2), .pid = 5, .level = static_cast<AdminLevel>(1 + input->Choice(3))};
  const std::string target = Target(input), body = Body(input);
  const AdminAnswer answer = stage->direct.Answer({method, target, body, caller});
  CheckAnswer(answer.status, answer.body, answer.content_type);
  const auto commands = stage->loop.TakeCommands();
  TP_CHECK(commands.size() <= 1, "a request is one change at most");
  TP_CHECK(commands.empty() || (method != "GET" && method != "HEAD"), "reading changes nothing");
  for (const AdminCommand& command : commands) {
    TP_CHECK(command.caller.level == caller.level && command.caller.uid == caller.uid,
             "the change is its caller's");
    CheckCommand(command);
  }
  if (caller.level == AdminLevel::kUser && caller.uid != 0) {
    TP_CHECK(target.find("gpt") != std::string::npos || body.find("gpt") != std::string::npos ||
                 answer.body.find("gpt") == std::string::npos,
             "a user does not learn of others' jobs");
  }
}

// What is sent over the socket: bytes as they are, or a request whose parts are odd.
std::string Wire(FuzzInput* input) {
  if (input->OneIn(3)) return Text(input->Rest());
  const std::string method = input->OneIn(4) ? input->Text(10) : Method(input);
  std::string request = method + (input->OneIn(8) ? input->Text(3) : " ") + Target(input) +
                        (input->OneIn(8) ? input->Text(9) : " HTTP/1.1") + "\r\n";
  constexpr std::array<const char*, 8> kHeaders{"Host: x",
                                                "Content-Length: 5",
                                                "Content-Length: 99999999999999999999",
                                                "Transfer-Encoding: chunked",
                                                "Connection: close",
                                                "Expect: 100-continue",
                                                "Content-Length: -1",
                                                "Upgrade: h2c"};
  for (uint32_t count = input->Choice(5); count > 0; --count) {
    request += (input->OneIn(4) ? input->Text(20)
                                : std::string(kHeaders[input->Choice(kHeaders.size())])) +
               "\r\n";
  }
  return request + "\r\n" + Body(input) + Text(input->Rest());
}

// Sends all, ends its side, and reads to the end.
std::string Exchange(const std::string& path, const std::string& bytes) {
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  TP_CHECK(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
           "the server listens");
  [[maybe_unused]] const auto sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  shutdown(fd.get(), SHUT_WR);
  std::string answer;
  std::array<char, 16384> buffer{};
  for (;;) {
    pollfd ready{fd.get(), POLLIN, 0};
    const int polled = poll(&ready, 1, 15'000);
    if (polled < 0 && errno == EINTR) continue;  // the fuzzer's own timer
    TP_CHECK(polled == 1, "the server answers or closes");
    const ssize_t count = read(fd.get(), buffer.data(), buffer.size());
    if (count <= 0) return answer;
    answer.append(buffer.data(), static_cast<size_t>(count));
  }
}

void AskOverTheSocket(Stage* stage, FuzzInput* input) {
  const std::string answer = Exchange(stage->path, Wire(input));
  if (!answer.empty()) {
    TP_CHECK(answer.starts_with("HTTP/1."), "what comes is HTTP");
    TP_CHECK(answer.find("\r\nX-Tidepool-Abi: 9\r\n") != std::string::npos,
             "an answer says which ABI it is of");
    CheckAnswer(static_cast<unsigned>(std::strtoul(answer.c_str() + 9, nullptr, 10)),
                "{\"code\":\"TP\",\"remedy\":\"\"}", "application/problem+json");
  }
  for (const AdminCommand& command : stage->loop.TakeCommands()) CheckCommand(command);
}

}  // namespace
}  // namespace tidepool::memserver

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static tidepool::memserver::Stage stage;
  tidepool::fuzz::FuzzInput input(data, size);
  if (input.OneIn(4)) {
    tidepool::memserver::AskOverTheSocket(&stage, &input);
  } else {
    tidepool::memserver::AskDirectly(&stage, &input);
  }
  return 0;
}
