// AdminCalls: one question to the admin socket, and targets for it. What all commands of memctl are
// made of.
//
// One thread; blocks for at most the time-out of the invocation.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "base/status.h"
#include "client/memctl/flags/invocation.h"
#include "client/admin/send_http.h"

namespace tidepool::client {

// A text as it stands in a URL.
std::string Escaped(const std::string& text);
// "/v1/chunks" and its parameters; those with an empty value are left out.
std::string Target(const std::string& path,
                   std::initializer_list<std::pair<const char*, std::string>> parameters);
// One request, whatever is answered; -v tells of it.
Result<HttpReply> Ask(const Invocation& invocation, const HttpQuestion& question);
// The body of a successful answer; else the error that the server told of, and those of SendHttp.
Result<std::string> GetBody(const Invocation& invocation, const std::string& target);

}  // namespace tidepool::client
