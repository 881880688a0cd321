// OwnPrograms: tasks that only memserver's program can do: read a machine's topology (hwloc) and
// measure a drive. memctl runs it and shows its output; both are in one package and one folder.
//
// One thread; blocks until the program has ended.
#pragma once

#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// Runs `memserver topo` on the file of --xml; returns the form of /v1/topology. Errors:
// kFileUnreadable with memserver's message.
Result<std::string> TopologyOfFile(const Invocation& invocation);

// Measures the named directories, else those of memserver, one after another, and writes the best
// settings into each one's profile. Errors: kAdminNotFound (there is none), those of Ask.
// Shown::exit_code: that of the first directory that could not be measured.
Result<Shown> RunTune(const Invocation& invocation, const Style& style);
// The directories that RunTune measures. Errors: as RunTune.
Result<std::vector<std::string>> DirectoriesToTune(const Invocation& invocation);

}  // namespace tidepool::client
