// Previews: what a changing command would do, with numbers, determined by queries alone.
//
// One thread; blocks as described in commands.h. A preview is valid at its moment: others may
// change something before the change itself, which checks rights and room. If a preview knows that
// the change would be refused, it returns that refusal.
#pragma once

#include "client/memctl/commands/preview.h"
#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// Requires FindChange(invocation) != null. Errors: those of the change that can be predicted.
Result<Preview> PreviewOf(const Invocation& invocation);
// Answers --dry-run: text for people, or a JSON object.
Result<Shown> RunPreview(const Invocation& invocation);

}  // namespace tidepool::client
