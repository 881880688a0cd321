#include "base/error_catalog.h"

#include <array>

namespace tidepool {
namespace {

constexpr auto kCatalog = std::to_array<ErrorEntry>({
#define TIDEPOOL_ERROR_ROW(name, number, code, exit, meaning, advice) \
  {ErrorId::k##name, #name, Code::code, exit, meaning, advice},
    TIDEPOOL_ERRORS(TIDEPOOL_ERROR_ROW)
#undef TIDEPOOL_ERROR_ROW
});

}  // namespace

std::span<const ErrorEntry> ErrorCatalog() {
  return kCatalog;
}

const ErrorEntry& ErrorEntryOf(ErrorId id) {
  for (const ErrorEntry& entry : kCatalog) {
    if (entry.id == id) return entry;
  }
  return kCatalog.back();
}

}  // namespace tidepool
