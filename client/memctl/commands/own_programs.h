// OwnPrograms: what only memserver's own program can do: read a machine's topology (hwloc), and
// measure a drive. memctl runs it, and shows what it says; both come from one package and lie in
// one folder.
//
// One thread; blocks until it has ended.
#pragma once

#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// `memserver topo` of the file --xml: in the form of /v1/topology. Errors: kFileUnreadable with
// what memserver said.
Result<std::string> TopologyOfFile(const Invocation& invocation);

// Measures each directory that is named, else those of memserver, one behind the other, and writes
// what suits it into its profile.
// Errors: kAdminNotFound (there is none), those of Ask. Shown::exit_code: that of the first that
// could not be measured.
Result<Shown> RunTune(const Invocation& invocation, const Style& style);
// The directories that RunTune measures. Errors: as there.
Result<std::vector<std::string>> DirectoriesToTune(const Invocation& invocation);

}  // namespace tidepool::client
