// ConfigCommands: memctl config show|diff|get|set: memserver's settings, and the file that they
// come from.
//
// One thread; blocks as commands.h says. The server takes no settings over its socket
// (docs/decisions/024): `set` changes the file, as an editor would, and has it read again.
#pragma once

#include "client/memctl/commands/preview.h"
#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// Does what the command line says. Errors: those of the server, and of the file.
Result<Shown> RunConfig(const Invocation& invocation, const Style& style);
// Answers --dry-run of `config set`. Errors: those of `config set` that can be known.
Result<Preview> PreviewOfSet(const Invocation& invocation);

}  // namespace tidepool::client
