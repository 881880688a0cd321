// PageServer: HTTP/1.1 on the loopback, by which a browser on this machine gets the page of `memctl
// page`.
//
// One thread. While memserver does not answer, nobody else is answered either, for at most the
// time-out of the invocation.
// The one door to Boost.Beast beside send_http.cpp is page_server.cpp.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "client/memctl/flags/invocation.h"

namespace tidepool::client {

class PageServer {
 public:
  // Listens. Errors: kConfigBadValue (--listen is no address of the loopback), kSocketFailed,
  // kNotReady.
  static Result<std::unique_ptr<PageServer>> Open(const Invocation& invocation);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  // "http://127.0.0.1:8642/#KEY". What stands behind the # is never sent by itself, nor to another
  // page.
  const std::string& url() const { return url_; }
  // Until the process ends.
  Status Serve();

 private:
  class Engine;  // everything of Asio and Beast
  PageServer(std::unique_ptr<Engine> engine, std::string url);
  std::unique_ptr<Engine> engine_;
  const std::string url_;
};

}  // namespace tidepool::client
