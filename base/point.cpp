#include "base/point.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

namespace tidepool {

std::atomic<bool> points_armed{false};

namespace {

struct KillPlan {
  std::string name;
  std::atomic<long> hits_left{0};
};

KillPlan& Plan() {
  static KillPlan plan;
  return plan;
}

std::function<void(const char*)>& Hook() {
  static std::function<void(const char*)> hook;
  return hook;
}

}  // namespace

void ArmPointsFromEnvironment() {
  const char* text = std::getenv("TIDEPOOL_KILL_AT");
  if (text == nullptr || *text == '\0') return;
  const char* colon = std::strrchr(text, ':');
  Plan().name = colon ? std::string(text, colon) : std::string(text);
  Plan().hits_left = colon ? std::strtol(colon + 1, nullptr, 10) : 1;
  points_armed.store(true, std::memory_order_release);
}

void SetPointHook(std::function<void(const char*)> hook) {
  const bool armed = static_cast<bool>(hook) || !Plan().name.empty();
  Hook() = std::move(hook);
  points_armed.store(armed, std::memory_order_release);
}

void HitPoint(const char* name) {
  if (Hook()) Hook()(name);
  if (Plan().name == name && Plan().hits_left.fetch_sub(1) == 1) kill(getpid(), SIGKILL);
}

}  // namespace tidepool
