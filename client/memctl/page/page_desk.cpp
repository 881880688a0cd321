#include "client/memctl/page/page_desk.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/picture/palette.h"
#include "base/text/json_writer.h"
#include "base/system/loopback.h"
#include "client/memctl/commands/admin_calls.h"
#include "client/memctl/page/page_files.h"

namespace tidepool::client {
namespace {

constexpr std::string_view kLookPath = "/look", kStreamPath = "/stream",
                           kPalettePath = "/palette.css";
// What a look holds, first what the pictures are drawn from.
constexpr std::array kReports{"status", "jobs", "residency", "quotas", "health"};

std::string ProblemText(const Status& error) {
  const ErrorEntry& entry = ErrorEntryOf(error.id());
  JsonWriter json;
  json.BeginObject()
      .Field("detail", error.what())
      .Field("code", "TP" + std::to_string(static_cast<unsigned>(error.id())));
  json.Field("name", entry.name).Field("where", error.where()).Field("why", error.why());
  return json.Field("remedy", error.fix().empty() ? entry.advice : error.fix()).EndObject().Take();
}

PageAnswer Problem(unsigned http_status, const Status& error) {
  return {.status = http_status,
          .content_type = "application/problem+json",
          .body = ProblemText(error)};
}

// Constant-time comparison.
bool IsSame(std::string_view given, std::string_view wanted) {
  unsigned different = given.size() == wanted.size() ? 0 : 1;
  for (size_t i = 0; i < wanted.size(); ++i)
    different |= static_cast<unsigned char>(wanted[i] ^ (i < given.size() ? given[i] : 0));
  return different == 0;
}

}  // namespace

PageDesk::PageDesk(std::string key, std::function<std::string()> look, const Clock* clock)
    : key_(std::move(key)), look_(std::move(look)), clock_(clock) {}

PageAnswer PageDesk::Answer(const PageQuestion& question) {
  if (!IsLoopbackName(question.host)) {
    return Problem(421,
                   Status(ErrorId::kNotOwner,
                          "this page is served to this machine alone, by names of the loopback")
                       .Fix("open the address that `memctl page` has printed"));
  }

  const auto files = PageFiles();
  const auto file = std::find_if(files.begin(), files.end(), [&](const PageFile& each) {
    return each.path == question.target;
  });

  const bool goes_on = question.target == kStreamPath;
  const bool is_made = question.target == kLookPath || question.target == kPalettePath || goes_on;
  if (file == files.end() && !is_made) {
    return Problem(404, Status(ErrorId::kAdminNotFound, "the page has no such part")
                            .Fix("open the address that `memctl page` has printed"));
  }

  if (question.method != "GET" && question.method != "HEAD") {
    PageAnswer refused =
        Problem(405, Status(ErrorId::kAdminBadRequest, "the page shows, and changes nothing")
                         .Fix("memctl changes what is to be changed"));
    refused.allow = "GET, HEAD";
    return refused;
  }

  if (question.target == kPalettePath) {
    return {.status = 200,
            .content_type = "text/css; charset=utf-8",
            .body = PictureStyle(PictureHome::kPage)};
  }

  if (file != files.end())
    return {.status = 200,
            .content_type = std::string(file->content_type),
            .body = std::string(file->text)};

  if (!IsSame(question.authorization, "Bearer " + key_)) {
    return Problem(
        401, Status(ErrorId::kNotOwner, "the key is missing, or is that of another `memctl page`")
                 .Fix("open the address that `memctl page` has printed, with all that stands "
                      "behind the #"));
  }

  if (goes_on)
    return {.status = 200, .content_type = "application/x-ndjson", .body = {}, .goes_on = true};
  return {.status = 200, .content_type = "application/json", .body = Look()};
}

const std::string& PageDesk::Look() {
  if (last_look_.empty() || clock_->NowNs() - looked_ns_ > kLookAgeMax) {
    last_look_ = look_();
    looked_ns_ = clock_->NowNs();
  }
  return last_look_;
}

std::string LookForPage(const Invocation& invocation, PagePictures* pictures) {
  std::vector<std::string> targets;
  for (const char* report : kReports) targets.push_back(std::string("/v1/") + report);
  auto bodies = GetBodies(invocation, targets);
  if (!bodies.ok()) return "{\"problem\":" + ProblemText(bodies.status()) + "}";

  std::string text = "{";
  for (size_t i = 0; i < kReports.size(); ++i)
    text += (i > 0 ? ",\"" : "\"") + std::string(kReports[i]) + "\":" + (*bodies)[i];

  const auto drawn = pictures->Draw((*bodies)[0], (*bodies)[1], (*bodies)[2]);
  if (!drawn.ok()) return "{\"problem\":" + ProblemText(drawn.status()) + "}";
  return text + ",\"pictures\":" + drawn.value() + "}";
}

Result<std::string> NewPageKey() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return Status(ErrorId::kNotReady,
                  "the system gives no random number for the key of the page (getrandom)")
        .Why(std::strerror(errno));
  }

  std::string key;
  std::array<char, 3> digits{};
  for (const unsigned char byte : bytes) {
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned>(byte));
    key += digits.data();
  }
  return key;
}

}  // namespace tidepool::client
