// Previews: what a command that changes something would do, with numbers, found out by asking
// alone.
//
// One thread; blocks as commands.h says. A preview is of its moment: between it and the change
// others may do something too. Rights, and whether there is room, are checked by the change itself;
// a preview that knows of a refusal is that refusal.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "client/memctl/commands/commands.h"

namespace tidepool::client {

struct Preview {
  std::string change;                // "release job gpt"
  std::vector<std::string> effects;  // sentences
  std::vector<std::pair<std::string, uint64_t>> numbers = {};
};

// Of one for which FindChange is not null. Errors: those of the change, as far as they can be
// known.
Result<Preview> PreviewOf(const Invocation& invocation);
// Of --dry-run: for people, or as a JSON object.
Result<Shown> RunPreview(const Invocation& invocation);
}  // namespace tidepool::client
