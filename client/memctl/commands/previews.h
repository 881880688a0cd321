// Previews: what a command that changes something would do, with numbers, found out by asking
// alone.
//
// One thread; blocks as commands.h says. A preview holds for its moment: others may change
// something before the change itself, which checks rights and room. A preview that knows of a
// refusal is that refusal.
#pragma once

#include "client/memctl/commands/preview.h"
#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// `invocation` is one for which FindChange is not null. Errors: those of the change, as far as
// they can be known.
Result<Preview> PreviewOf(const Invocation& invocation);
// Answers --dry-run: for people, or as a JSON object.
Result<Shown> RunPreview(const Invocation& invocation);

}  // namespace tidepool::client
