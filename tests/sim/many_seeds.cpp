#include "tests/sim/many_seeds.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/check.h"

namespace tidepool::memserver {
namespace {

// Written by the handler of SIGABRT, so it is made before it is needed.
char seed_line[64];

void NameSeed(int) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, seed_line, std::strlen(seed_line));
  std::signal(SIGABRT, SIG_DFL);
  std::raise(SIGABRT);
}

}  // namespace

SimReport RunSeeds(uint64_t first, uint64_t last, uint64_t events) {
  const auto before = std::signal(SIGABRT, NameSeed);
  SimReport sum;
  for (uint64_t seed = first; seed <= last; ++seed) {
    std::snprintf(seed_line, sizeof seed_line, "seed %llu, --events %llu\n",
                  static_cast<unsigned long long>(seed), static_cast<unsigned long long>(events));
    const SimReport report = RunSeed(seed, events, false);
    if (seed % kRepeatEvery == 0)
      TP_CHECK(RunSeed(seed, events, false).hash == report.hash, "a seed repeats exactly");
    TP_CHECK(report.events >= events, "a seed has its events");
    sum.Add(report);
  }
  std::signal(SIGABRT, before);
  return sum;
}

std::string Summary(const SimReport& sum, uint64_t seeds, double seconds) {
  char text[1500];
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::snprintf(text, sizeof text,
                "%llu seeds in %.1f s (%.1f seeds/s), %llu events (%.0f a seed), hash %016llx, "
                "%llu steps sealed (%llu skipped), "
                "%llu server deaths (%llu with nobody to hold the states, %llu of them while the "
                "keeper was renewed), %llu keeper deaths, %llu "
                "stalls of the server, %llu deaths in recovery, %llu hand-overs, %llu ranks came "
                "back, %llu rank "
                "deaths (%llu slots given back), %llu rejoins, %llu saves, %llu refusals, %llu "
                "waits of a job for its former self, %llu rare paths, "
                "%llu requests to drives (%llu repeated; pieces abandoned for %llu turns), "
                "%llu server deaths between them, %llu parts of frozen chunks fetched, %llu wrong "
                "uploads found, %llu server deaths at them, "
                "%llu jobs moved to drives for others (%llu dropped), %llu server deaths at that, "
                "%llu jobs set aside for servers that had not ended "
                "(%llu late writes), %llu damaged (%llu refusals meanwhile)",
                number(seeds), seconds, static_cast<double>(seeds) / seconds, number(sum.events),
                static_cast<double>(sum.events) / static_cast<double>(seeds), number(sum.hash),
                number(sum.steps_sealed), number(sum.steps_skipped), number(sum.server_deaths),
                number(sum.losses), number(sum.losses_in_renewal), number(sum.keeper_deaths),
                number(sum.stalls), number(sum.deaths_in_recovery), number(sum.hand_overs),
                number(sum.comebacks), number(sum.rank_deaths), number(sum.cleared_slots),
                number(sum.rejoins), number(sum.saves), number(sum.refusals),
                number(sum.waits_for_itself), number(sum.rare_paths), number(sum.nvme_requests),
                number(sum.nvme_faults), number(sum.abandoned), number(sum.nvme_deaths),
                number(sum.frozen_fetched), number(sum.frozen_rejected), number(sum.frozen_deaths),
                number(sum.demotions), number(sum.demotions_dropped), number(sum.demotion_deaths),
                number(sum.set_aside), number(sum.late_writes), number(sum.damaged),
                number(sum.withheld));
  return text;
}

}  // namespace tidepool::memserver
