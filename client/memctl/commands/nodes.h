// Nodes: runs one memctl command line on several machines at once, over ssh, and merges the
// answers.
//
// One thread; blocks until all have ended. Each machine runs its own memctl, with the rights of the
// user whom ssh logs in.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// The command line for another machine: without --node, -o and --watch, which apply to this one.
std::vector<std::string> WordsForNodes(const std::vector<std::string>& words);
// Empty if `invocation` can run on several machines; else why not.
std::string WhyNotOnNodes(const Invocation& invocation);

// Runs `invocation.words` on each of `invocation.nodes`. Tables are merged, with a column NODE;
// other texts are concatenated; JSON is an array with each node's answer or error. `run_here`
// renders a merged answer like that of one server. Shown::exit_code: the highest of all (3: ssh did
// not connect); Shown::remark: which nodes failed, and their messages.
using RunHere = std::function<Result<Shown>(const Invocation&)>;
Result<Shown> RunOnNodes(const Invocation& invocation, const Style& style, const RunHere& run_here);

}  // namespace tidepool::client
