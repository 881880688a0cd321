#include "memserver/keeper/fd_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "memserver/keeper/sd_notify.h"

namespace tidepool::memserver {

namespace {

constexpr int kFirstFd = 3;  // SD_LISTEN_FDS_START
constexpr std::string_view kPrefix = "tidepool-kept-";

std::string NameOf(uint32_t slot) {
  return std::string(kPrefix) + std::to_string(slot);
}

std::optional<uint32_t> SlotOf(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  uint32_t slot = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), slot);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return whole && slot < kKeptSlotsMax ? std::optional(slot) : std::nullopt;
}

long NumberOf(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

// Names of the descriptors from kFirstFd on, if passed to this process and not to its parent.
std::vector<std::string> PassedNames() {
  std::vector<std::string> names;
  const char* text = std::getenv("LISTEN_FDNAMES");
  if (text == nullptr || NumberOf("LISTEN_PID") != getpid()) return names;

  for (std::string_view rest(text);
       names.size() < static_cast<size_t>(std::max(0L, NumberOf("LISTEN_FDS")));) {
    const size_t colon = rest.find(':');
    names.emplace_back(rest.substr(0, colon));
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  return names;
}

}  // namespace

bool FdStoreOffered() {
  if (std::getenv("NOTIFY_SOCKET") == nullptr) return false;
  const auto names = PassedNames();
  return NumberOf("FDSTORE") > 0 ||
         std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return SlotOf(name).has_value(); });
}

std::vector<HeldMemory> TakeStored() {
  std::vector<HeldMemory> taken;
  int fd = kFirstFd;
  for (const std::string& name : PassedNames()) {
    const int passed = fd++;
    fcntl(passed, F_SETFD, FD_CLOEXEC);
    struct stat about {};
    const auto slot = SlotOf(name);
    if (slot && fstat(passed, &about) == 0)
      taken.push_back({*slot, UniqueFd(passed), static_cast<uint64_t>(about.st_size)});
  }

  for (const char* variable : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) unsetenv(variable);
  std::sort(taken.begin(), taken.end(),
            [](const HeldMemory& a, const HeldMemory& b) { return a.slot < b.slot; });
  return taken;
}

Status Store(uint32_t slot, int fd) {
  // Without FDPOLL=0 the manager would drop a descriptor that reports an error or a hang-up.
  if (NotifyServiceManager("FDSTORE=1\nFDNAME=" + NameOf(slot) + "\nFDPOLL=0", std::array{fd}))
    return Status();
  return Status(ErrorId::kKeeperFailed, "the service manager does not take kept memory")
      .Where("NOTIFY_SOCKET");
}

void RemoveStored(uint32_t slot) {
  NotifyServiceManager("FDSTOREREMOVE=1\nFDNAME=" + NameOf(slot));
}

}  // namespace tidepool::memserver
