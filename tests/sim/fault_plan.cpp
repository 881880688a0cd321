#include "tests/sim/fault_plan.h"

#include <array>
#include <bit>

namespace tidepool::memserver {
namespace {

constexpr uint32_t kKinds = static_cast<uint32_t>(Fault::kCount);
constexpr std::array<const char*, kKinds> kNames = {"rank deaths",
                                                    "server deaths",
                                                    "server deaths at points",
                                                    "keeper deaths",
                                                    "deaths in recovery",
                                                    "stalls",
                                                    "duplicates",
                                                    "reordering",
                                                    "non-finite",
                                                    "tight pool",
                                                    "lease ends",
                                                    "clock jumps",
                                                    "hand-overs",
                                                    "saves"};

uint32_t Bit(Fault fault) {
  return uint32_t{1} << static_cast<uint32_t>(fault);
}

}  // namespace

const char* NameOf(Fault fault) {
  return kNames[static_cast<uint32_t>(fault)];
}

FaultPlan::FaultPlan(SplitMix64* random) {
  for (uint32_t kind = 0; kind < kKinds; ++kind)
    armed_ |= random->Below(3) < 2 ? uint32_t{1} << kind : 0;
  while (size() < kFaultsMin) armed_ |= uint32_t{1} << random->Below(kKinds);
  const bool needs_deaths = Has(Fault::kDeathInRecovery) || Has(Fault::kDuplicate);
  if (needs_deaths && !KillsServers()) armed_ |= Bit(Fault::kServerDeathAtPoint);
}

uint32_t FaultPlan::size() const {
  return static_cast<uint32_t>(std::popcount(armed_ & ~Bit(Fault::kSave)));
}

std::string FaultPlan::Text() const {
  std::string text;
  for (uint32_t kind = 0; kind < kKinds; ++kind) {
    if (Has(static_cast<Fault>(kind)))
      text += (text.empty() ? "" : ", ") + std::string(kNames[kind]);
  }
  return text;
}

}  // namespace tidepool::memserver
