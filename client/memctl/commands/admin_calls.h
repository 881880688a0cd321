// AdminCalls: one request to the admin socket, and targets for it; the basis of all memctl
// commands.
//
// One thread; blocks for at most the time-out of the invocation.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "client/memctl/flags/invocation.h"
#include "client/admin/send_http.h"

namespace tidepool::client {

// Percent-encodes a text for a URL.
std::string Escaped(const std::string& text);
// "/v1/chunks" and its parameters; those with an empty value are left out.
std::string Target(const std::string& path,
                   std::initializer_list<std::pair<const char*, std::string>> parameters);
// Sends one request and returns any answer; -v logs it.
Result<HttpReply> Ask(const Invocation& invocation, const HttpQuestion& question);
// The body of a successful answer; else the server's error, or those of SendHttp.
Result<std::string> GetBody(const Invocation& invocation, const std::string& target);
// The same for several targets, asked over one connection.
Result<std::vector<std::string>> GetBodies(const Invocation& invocation,
                                           const std::vector<std::string>& targets);

}  // namespace tidepool::client
