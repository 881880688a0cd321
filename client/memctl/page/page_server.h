// PageServer: an HTTP/1.1 server on the loopback interface that serves the page of `memctl page` to
// browsers on this machine.
//
// One thread. While memserver does not answer, all other requests wait, for at most the time-out of
// the invocation.
// The one door to Boost.Beast besides send_http.cpp is page_server.cpp.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "client/memctl/flags/invocation.h"

namespace tidepool::client {

class PageServer {
 public:
  // Starts to listen. Errors: kConfigBadValue (--listen is not a loopback address), kSocketFailed,
  // kNotReady.
  static Result<std::unique_ptr<PageServer>> Open(const Invocation& invocation);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  // "http://127.0.0.1:8642/#KEY". A browser never sends the part after the # by itself, nor to
  // another page.
  const std::string& url() const { return url_; }
  // Runs until the process ends.
  Status Serve();

 private:
  class Engine;  // all state of Asio and Beast
  PageServer(std::unique_ptr<Engine> engine, std::string url);
  std::unique_ptr<Engine> engine_;
  const std::string url_;
};

}  // namespace tidepool::client
