#include "base/buggify.h"

#include "base/random.h"

namespace tidepool {

std::atomic<bool> buggify_armed{false};

namespace {

constexpr uint64_t kOneIn = 4;

struct Arming {
  uint64_t seed = 0;
  SplitMix64 random{0};
  uint64_t firings = 0;
};

Arming& Armed() {
  static Arming arming;
  return arming;
}

// FNV-1a; names are few and short.
uint64_t HashOf(const char* name) {
  uint64_t hash = 14695981039346656037ULL;
  for (; *name != '\0'; ++name)
    hash = (hash ^ static_cast<unsigned char>(*name)) * 1099511628211ULL;
  return hash;
}

}  // namespace

void ArmBuggify(uint64_t seed) {
  Armed() = {seed, SplitMix64(seed), 0};
  buggify_armed.store(true, std::memory_order_relaxed);
}

void DisarmBuggify() {
  buggify_armed.store(false, std::memory_order_relaxed);
}

uint64_t BuggifyFirings() {
  return Armed().firings;
}

bool BuggifyFires(const char* name) {
  Arming& arming = Armed();
  if (SplitMix64(arming.seed ^ HashOf(name)).Below(kOneIn) != 0) return false;
  if (arming.random.Below(kOneIn) != 0) return false;
  ++arming.firings;
  return true;
}

}  // namespace tidepool
