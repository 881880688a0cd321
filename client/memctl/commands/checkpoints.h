// Checkpoints: memctl checkpoint list|verify|diff|prune on a folder of checkpoints
// (docs/checkpoints.md). Contacts no server.
//
// One thread; blocks as long as the file system does.
#pragma once

#include "client/memctl/commands/preview.h"
#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// Runs the command. Shown::exit_code: kExitCorrupt if `verify` finds a damaged one, kExitFailed if
// `diff` finds a difference. Errors: kFileUnreadable, kCheckpointBad (of those that `diff`
// compares), kAdminNotFound (the folder holds none), kUsageError (`prune` without a number),
// kSaveFailed (one cannot be removed).
Result<Shown> RunCheckpoint(const Invocation& invocation, const Style& style);
// Answers --dry-run of `checkpoint prune`. Errors: as RunCheckpoint.
Result<Preview> PreviewOfPrune(const Invocation& invocation);

}  // namespace tidepool::client
