#include "memserver/residency/snapshot.h"

#include <array>

#include "base/check.h"

namespace tidepool::memserver {
namespace {

struct StateName {
  char letter;
  const char* name;
};

// In the order of ChunkState.
constexpr std::array<StateName, 7> kStateNames = {{
    {'_', "empty"},
    {'.', "resident"},
    {'g', "gradients"},
    {'G', "complete"},
    {'O', "update-due"},
    {'A', "updating"},
    {'=', "frozen"},
}};

const StateName& Row(ChunkState state) {
  const auto index = static_cast<size_t>(state);
  TP_CHECK(index < kStateNames.size(), "a chunk state of the table");
  return kStateNames[index];
}

}  // namespace

char LetterOf(ChunkState state) {
  return Row(state).letter;
}
const char* NameOf(ChunkState state) {
  return Row(state).name;
}

}  // namespace tidepool::memserver
