// PageDesk: answers a browser's requests to `memctl page`: the page's own files, a look at
// memserver, and a stream of looks.
//
// One thread. No browser input reaches memserver: a look is a fixed list of GETs, and a browser can
// request nothing else. A request for a look must carry the key (Authorization: Bearer KEY): a port
// does not identify its user, and memserver shows each user its own jobs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "client/memctl/flags/invocation.h"
#include "client/memctl/page/page_pictures.h"

namespace tidepool::client {

// A browser's request.
struct PageQuestion {
  std::string_view method, target;
  // The Host header; names other than those of the loopback are refused (DNS rebinding).
  std::string_view host;
  std::string_view authorization;  // the Authorization header
};

// The answer to it.
struct PageAnswer {
  unsigned status = 200;
  std::string content_type;
  std::string body;
  std::string allow = {};  // with status 405
  bool goes_on = false;    // a line follows per Look, while the browser reads
};

class PageDesk {
 public:
  static constexpr int64_t kLookAgeMax = 200 * kNsPerMs;  // bounds memserver's load by browsers

  // `look` returns a JSON object; `clock` outlives the desk.
  PageDesk(std::string key, std::function<std::string()> look, const Clock* clock);
  PageAnswer Answer(const PageQuestion& question);
  // memserver's present answer, or one at most kLookAgeMax old.
  const std::string& Look();

 private:
  const std::string key_;
  const std::function<std::string()> look_;
  const Clock* const clock_;
  std::string last_look_;
  int64_t looked_ns_ = 0;
};

// {"status":{...},"jobs":[...],...,"pictures":{...}}: memserver's unchanged reports, and what
// `pictures` draws from these and earlier ones; or {"problem":{...}} if it does not answer.
std::string LookForPage(const Invocation& invocation, PagePictures* pictures);
// 128 random bits of getrandom, as text. Errors: kNotReady.
Result<std::string> NewPageKey();

}  // namespace tidepool::client
