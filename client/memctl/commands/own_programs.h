// OwnPrograms: tasks that only other programs of this release can do: memserver's reads a machine's
// topology (hwloc) and measures a drive, tidepool-checkpoint writes a job's states. memctl runs
// them and shows their output; all are in one package and one folder.
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

// Has tidepool-checkpoint write the states of the job as a checkpoint in the folder of --to.
// Shown::exit_code and the message are those of that program.
Result<Shown> RunSnapshot(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
