// Nodes: one command line of memctl on several machines at once, over ssh, and what they said as
// one answer.
//
// One thread; blocks until all have ended. Each runs the memctl of its own machine, with the rights
// of whoever ssh lets in there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// A command line for another machine: without --node, and without -o and --watch, which are this
// one's.
std::vector<std::string> WordsForNodes(const std::vector<std::string>& words);
// Empty where `invocation` can be done on several machines; else why not.
std::string WhyNotOnNodes(const Invocation& invocation);

// Runs `invocation.words` on each of `invocation.nodes`. Tables are merged, with a column NODE;
// other texts come one below the other; as JSON it is an array with the answer, or the error, of
// each node. `run_here` renders a merged answer as that of one server. Shown::exit_code: the
// highest of all (3: ssh did not get there); Shown::remark: who failed, and what was said there.
using RunHere = std::function<Result<Shown>(const Invocation&)>;
Result<Shown> RunOnNodes(const Invocation& invocation, const Style& style, const RunHere& run_here);

}  // namespace tidepool::client
