#include "client/memctl/page/page_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "memserver/admin/admin_server.h"
#include "tests/fakes/fake_clock.h"
#include "tests/memserver/admin/admin_fixture.h"

namespace tidepool::client {
namespace page_desk_test {

using memserver::AdminApi;
using memserver::AdminServer;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Desk : public ::testing::Test {
 protected:
  PageAnswer Ask(const PageQuestion& question) { return desk_.Answer(question); }

  FakeClock clock_;
  int looks_ = 0;
  PageDesk desk_{"abc", [this] { return "{\"look\":" + std::to_string(++looks_) + "}"; }, &clock_};
};

TEST_F(Desk, ThePageAndItsPartsAreForEverybodyOnTheMachine) {
  const PageAnswer page = Ask({"GET", "/", "127.0.0.1:8642", ""});
  EXPECT_EQ(page.status, 200u);
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  EXPECT_THAT(page.body, StartsWith("<!DOCTYPE html>"));
  EXPECT_EQ(Ask({"GET", "/page.css", "localhost", ""}).content_type, "text/css; charset=utf-8");
  EXPECT_EQ(Ask({"HEAD", "/page.js", "localhost", ""}).content_type,
            "text/javascript; charset=utf-8");
  const PageAnswer palette = Ask({"GET", "/palette.css", "localhost", ""});
  EXPECT_EQ(palette.content_type, "text/css; charset=utf-8");
  EXPECT_THAT(palette.body, HasSubstr(".ink-held{fill:var(--held)}"));
  EXPECT_EQ(looks_, 0);
}

// Nothing inline, which the policy would refuse, and nothing of another place.
TEST_F(Desk, ThePageNeedsNothingElse) {
  for (const char* part : {"/", "/page.css", "/page.js", "/palette.css"}) {
    const std::string text = Ask({"GET", part, "localhost", ""}).body;
    for (const char* word :
         {"https:", "url(", "@import", "innerHTML", "eval(", "style=", "onload="})
      EXPECT_THAT(text, Not(HasSubstr(word))) << part;
  }
  EXPECT_THAT(Ask({"GET", "/", "localhost", ""}).body, Not(HasSubstr("<style")));
}

TEST_F(Desk, OtherNamesThanThoseOfTheLoopbackAreRefused) {
  for (const char* host : {"127.0.0.1", "127.0.0.1:1", "127.8.0.1:8642", "localhost:8642",
                           "LocalHost", "[::1]", "[::1]:8642"}) {
    EXPECT_EQ(Ask({"GET", "/", host, ""}).status, 200u) << host;
  }
  for (const char* host : {"", "evil.example", "evil.example:8642", "127.0.0.1.evil.example",
                           "127.evil.example", "localhost.evil.example", "192.168.0.1", "0.0.0.0",
                           "[::2]", "[::1].evil.example", "[::1", "10.0.0.1:8642"}) {
    EXPECT_EQ(Ask({"GET", "/look", host, "Bearer abc"}).status, 421u) << host;
  }
}

TEST_F(Desk, ALookNeedsTheKey) {
  for (const char* given : {"", "abc", "Bearer ", "Bearer ab", "Bearer abcd", "Bearer abd",
                            "bearer abc", "Basic abc"}) {
    const PageAnswer refused = Ask({"GET", "/look", "localhost", given});
    EXPECT_EQ(refused.status, 401u) << given;
    EXPECT_THAT(refused.body, HasSubstr("TP3007"));
  }
  EXPECT_EQ(looks_, 0);
  const PageAnswer look = Ask({"GET", "/look", "localhost", "Bearer abc"});
  EXPECT_EQ(look.status, 200u);
  EXPECT_EQ(look.body, "{\"look\":1}");
}

TEST_F(Desk, NothingIsChangedAndNothingElseIsThere) {
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get", ""}) {
    for (const char* target : {"/", "/look", "/stream"}) {
      const PageAnswer refused = Ask({method, target, "localhost", "Bearer abc"});
      EXPECT_EQ(refused.status, 405u) << method;
      EXPECT_EQ(refused.allow, "GET, HEAD");
    }
  }
  for (const char* target : {"", "/v1/status", "/look?x=1", "/look/", "//look", "/../look",
                             "/page.html", "http://localhost/look", "*"}) {
    EXPECT_EQ(Ask({"GET", target, "localhost", "Bearer abc"}).status, 404u) << target;
  }
  EXPECT_EQ(looks_, 0);
}

TEST_F(Desk, ManyBrowsersCostNoMoreThanOne) {
  for (int i = 0; i < 10; ++i) Ask({"GET", "/look", "localhost", "Bearer abc"});
  EXPECT_EQ(looks_, 1);
  clock_.SleepNs(PageDesk::kLookAgeMax);
  EXPECT_EQ(Ask({"GET", "/look", "localhost", "Bearer abc"}).body, "{\"look\":1}") << "not yet";
  clock_.SleepNs(1);
  EXPECT_EQ(Ask({"GET", "/look", "localhost", "Bearer abc"}).body, "{\"look\":2}");
}

TEST(PageLook, ReportsAreThoseOfTheServerToTheLastByte) {
  std::string pattern = (std::filesystem::temp_directory_path() / "tidepool-page-XXXXXX").string();
  SteadyClock clock;
  Invocation invocation;
  invocation.clock = &clock;
  invocation.socket_dir = mkdtemp(pattern.data());
  invocation.timeout_ns = 10 * kNsPerSecond;
  PagePictures pictures;
  EXPECT_THAT(LookForPage(invocation, &pictures),
              StartsWith("{\"problem\":{\"detail\":\"no memserver listens "
                         "at the admin socket\",\"code\":\"TP3001\""));

  memserver::FakeLoop loop;
  AdminApi api{
      {.version = "1.2.3", .abi = 1, .build = "b", .devices = {"host"}, .socket_dir = "/d"},
      &loop.source,
      loop.mail()};
  auto server = AdminServer::Start({.socket_path = invocation.socket_dir + "/admin.sock"}, &api);
  ASSERT_TRUE(server.ok()) << server.status().Format();
  const std::string look = LookForPage(invocation, &pictures);
  EXPECT_THAT(look, StartsWith("{\"status\":{\"state\":\"ready\""));
  for (const char* report : {"jobs", "residency", "quotas", "health"}) {
    const auto own = api.Answer(
        {"GET", "/v1/" + std::string(report), "", {.level = memserver::AdminLevel::kAdmin}});
    EXPECT_THAT(look, HasSubstr(",\"" + std::string(report) + "\":" + own.body));
  }
  EXPECT_THAT(look,
              HasSubstr(",\"pictures\":{\"rates\":{\"to-ranks\":{\"now\":0,\"picture\":\"<div"));
  std::filesystem::remove_all(invocation.socket_dir);
}

TEST(PageKey, IsLongAndAnotherOneEachTime) {
  std::set<std::string> keys;
  for (int i = 0; i < 100; ++i) {
    auto key = NewPageKey();
    ASSERT_TRUE(key.ok());
    EXPECT_EQ(key->size(), 32u);
    EXPECT_EQ(key->find_first_not_of("0123456789abcdef"), std::string::npos);
    keys.insert(*key);
  }
  EXPECT_EQ(keys.size(), 100u);
}

}  // namespace page_desk_test
}  // namespace tidepool::client
