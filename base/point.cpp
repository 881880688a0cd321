#include "base/point.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/units.h"

namespace tidepool {

std::atomic<bool> points_armed{false};

namespace {

// The signal that this process sends itself at one hit of one point.
struct PointPlan {
  const char* variable;
  int signal;
  std::string name;
  std::atomic<long> hits_left{0};
};

std::array<PointPlan, 2>& Plans() {
  static std::array<PointPlan, 2> plans{
      {{"TIDEPOOL_KILL_AT", SIGKILL, {}, 0}, {"TIDEPOOL_STOP_AT", SIGSTOP, {}, 0}}};
  return plans;
}

std::function<void(const char*)>& Hook() {
  static std::function<void(const char*)> hook;
  return hook;
}

// The signal of the store point whose page is protected now.
volatile std::sig_atomic_t signal_of_store = 0;

void EndAtStore(int) {
  kill(getpid(), signal_of_store);
}

void EndAtNextStoreTo(const void* address, int signal) {
  signal_of_store = signal;
  struct sigaction action {};
  action.sa_handler = EndAtStore;
  TP_CHECK(sigaction(SIGSEGV, &action, nullptr) == 0, "a handler of faults can be set");
  auto* const page =
      reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) / kPageBytes * kPageBytes);
  TP_CHECK(mprotect(page, kPageBytes, PROT_READ) == 0, "a page of a plane can be protected");
}

}  // namespace

void ArmPointsFromEnvironment() {
  for (PointPlan& plan : Plans()) {
    const char* text = std::getenv(plan.variable);
    if (text == nullptr || *text == '\0') continue;
    const char* colon = std::strrchr(text, ':');
    plan.name = colon ? std::string(text, colon) : std::string(text);
    plan.hits_left = colon ? std::strtol(colon + 1, nullptr, 10) : 1;
    points_armed.store(true, std::memory_order_release);
  }
}

void SetPointHook(std::function<void(const char*)> hook) {
  bool armed = static_cast<bool>(hook);
  for (const PointPlan& plan : Plans()) armed |= !plan.name.empty();
  Hook() = std::move(hook);
  points_armed.store(armed, std::memory_order_release);
}

void HitPoint(const char* name) {
  if (Hook()) Hook()(name);
  for (PointPlan& plan : Plans()) {
    if (plan.name == name && plan.hits_left.fetch_sub(1) == 1) kill(getpid(), plan.signal);
  }
}

void HitStorePoint(const char* name, const void* address) {
  if (Hook()) Hook()(name);
  for (PointPlan& plan : Plans()) {
    if (plan.name == name && plan.hits_left.fetch_sub(1) == 1)
      EndAtNextStoreTo(address, plan.signal);
  }
}

}  // namespace tidepool
