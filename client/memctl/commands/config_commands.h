// ConfigCommands: memctl config show|diff|get|set: memserver's settings and their file.
//
// One thread; blocks as described in commands.h. The server takes no settings over its socket
// (docs/decisions/024): `set` edits the file and makes memserver reload it.
#pragma once

#include "client/memctl/commands/preview.h"
#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// Runs the command. Errors: those of the server, and of the file.
Result<Shown> RunConfig(const Invocation& invocation, const Style& style);
// Answers --dry-run of `config set`. Errors: those of `config set` that can be predicted.
Result<Preview> PreviewOfSet(const Invocation& invocation);

}  // namespace tidepool::client
