// kill_campaign: kills trainers, memserver and keeper of a running job, again and again, and
// compares every bit with the undisturbed job.
//
//   kill_campaign --kills 600 --victims all             at random times, one or two of them at once
//   kill_campaign --losses 20                           memserver and keeper at once: the job's
//                                                       ranks are told, and it begins anew
//   kill_campaign --points server.step_sealed --each 5  at named points (default: all of them)
//   kill_campaign --large --kills 60                    of a chunk of several pieces: workers and
//                                                       copy threads die at work together
// Prints one line a part and a summary; exit code 1 at the first difference, with the seed that
// repeats it.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "tests/process/rig/campaign.h"
#include "tests/process/rig/flag_reader.h"

namespace tidepool::testing {
namespace {

const std::map<std::string, std::vector<Victim>> kVictims{
    {"trainer", {Victim::kTrainer}},
    {"server", {Victim::kServer}},
    {"keeper", {Victim::kKeeper}},
    {"pair", {Victim::kTrainerAndServer, Victim::kTrainerAndKeeper}},
    {"all",
     {Victim::kTrainer, Victim::kServer, Victim::kServer, Victim::kKeeper,
      Victim::kTrainerAndServer, Victim::kTrainerAndKeeper}}};

// What all threads have done. Each has a campaign of its own.
struct Totals {
  std::atomic<uint64_t> rounds = 0, kills = 0, losses = 0, points_hit = 0, recoveries = 0;
  std::atomic<bool> good = true;
};

// `point` without its hit number: counts the runs that were killed there.
bool Play(Campaign* campaign, const RoundPlan& plan, Totals* totals, const std::string& point = "",
          uint32_t* hits = nullptr) {
  const RoundReport report = campaign->Run(plan);
  ++totals->rounds;
  totals->kills += report.kills;
  totals->losses += report.losses;
  totals->points_hit += report.points_hit.size();
  totals->recoveries += report.recoveries;
  for (const std::string& hit : report.points_hit) {
    if (hits != nullptr && hit.substr(0, hit.rfind(':')) == point) ++*hits;
  }
  if (report.wrong.empty()) return true;
  std::printf("FAILED: %s\n", report.wrong.c_str());
  return false;
}

void RunOnThreads(uint32_t threads, const std::function<void(Campaign*)>& work) {
  const auto run = [&work] {
    Campaign campaign;
    work(&campaign);
  };
  std::vector<std::thread> others;
  for (uint32_t i = 1; i < threads; ++i) others.emplace_back(run);
  run();
  for (std::thread& other : others) other.join();
}

struct Counts {
  uint64_t seed = 1, kills = 0, losses = 0;
  uint32_t each = 0;
  std::vector<Victim> victims;
  std::vector<std::string> points;
  uint32_t threads = 2;  // a round mostly waits
  bool large = false;
};

RoundPlan RandomRound(const Counts& counts, Campaign* campaign) {
  constexpr uint32_t kKillsPerRound = 12;
  RoundPlan plan;
  plan.shape = campaign->RandomShape(counts.large);
  plan.kills = kKillsPerRound;
  plan.victims = counts.victims;
  plan.pause_ms = 2;
  const bool of_server =
      std::find(plan.victims.begin(), plan.victims.end(), Victim::kServer) != plan.victims.end();
  plan.kill_while_leaving = of_server && campaign->random().Below(2) == 0;
  return plan;
}

RoundPlan RoundOfLosses(const Counts& counts, Campaign* campaign) {
  constexpr uint32_t kLossesPerRound = 4;
  RoundPlan plan;
  plan.shape = campaign->RandomShape(counts.large);
  plan.losses = kLossesPerRound;
  plan.pause_ms = 1;
  return plan;
}

void KillAtRandomTimes(const Counts& counts, Totals* totals) {
  std::atomic<uint64_t> next{0};
  RunOnThreads(counts.threads, [&](Campaign* campaign) {
    while (totals->good && (totals->kills < counts.kills || totals->losses < counts.losses)) {
      campaign->Begin(counts.seed + 1000 * next++);
      const bool loss = totals->losses < counts.losses;
      if (!Play(campaign, loss ? RoundOfLosses(counts, campaign) : RandomRound(counts, campaign),
                totals))
        totals->good = false;
    }
  });
}

// Every named point of the processes that a run has, but keeper.given and keeper.respawning: with
// the keeper dies what it holds for a server that is not there (durability_test.cpp).
// tests/scripts/kill_points_test.py compares this list with the sources.
constexpr std::string_view kPoints[] = {"checkpoint.created",
                                        "checkpoint.flushed",
                                        "checkpoint.renamed",
                                        "checkpoint.written",
                                        "client.attached",
                                        "client.connected",
                                        "client.end_step_sent",
                                        "client.fetch_sent",
                                        "client.goodbye_sent",
                                        "client.gradient_sent",
                                        "client.hello_sent",
                                        "client.outcome_taken",
                                        "client.put_sent",
                                        "client.resubmitted",
                                        "client.resume_sent",
                                        "client.resumed",
                                        "client.save_sent",
                                        "client.schedule_sent",
                                        "client.server_lost",
                                        "client.spec_sent",
                                        "control.connection_closed",
                                        "keeper.held",
                                        "link.hold_sent",
                                        "link.taken",
                                        "optim.first_plane_stored",
                                        "optim.last_plane_stored",
                                        "optim.piece_finished",
                                        "optim.tile_progress",
                                        "optim.tile_restored",
                                        "optim.tile_saved",
                                        "optim.tile_written",
                                        "recover.job_read",
                                        "recover.step_counted",
                                        "recover.tiles_restored",
                                        "server.chunk_published",
                                        "server.chunk_scanned",
                                        "server.fetch_copied",
                                        "server.fetch_started",
                                        "server.former_cleared",
                                        "server.gradient_copied",
                                        "server.gradient_staged",
                                        "server.gradient_started",
                                        "server.gradient_stored",
                                        "server.job_laid_out",
                                        "server.job_opened",
                                        "server.job_removed",
                                        "server.job_removing",
                                        "server.job_reserved",
                                        "server.job_unrecorded",
                                        "server.kept_taken",
                                        "server.noted",
                                        "server.part_held",
                                        "server.pool_touched",
                                        "server.put_copied",
                                        "server.put_kept",
                                        "server.put_started",
                                        "server.rank_cleared",
                                        "server.rank_resuming",
                                        "server.records_begun",
                                        "server.records_written",
                                        "server.request_parked",
                                        "server.request_taken",
                                        "server.resubmit_answered",
                                        "server.run_broken",
                                        "server.save_ended",
                                        "server.save_started",
                                        "server.slot_leaving",
                                        "server.session_attached",
                                        "server.staging_free",
                                        "server.step_abandoned",
                                        "server.step_answered",
                                        "server.step_ended_by_rank",
                                        "server.step_recorded",
                                        "server.step_sealed",
                                        "server.step_sealing",
                                        "server.update_started"};

// Where a point lies decides who is armed. `rare`: the first passing is taken, because few were
// seen.
RoundPlan PlanOf(const Shape& shape, const std::string& point, uint32_t repeat, bool rare,
                 Campaign* campaign) {
  RoundPlan plan;
  plan.shape = shape;
  plan.shape.micro_batches = point.find("stag") != std::string::npos ? 2 : plan.shape.micro_batches;
  const std::string once = point + ":1";
  const std::string armed =
      rare ? once : point + ":" + std::to_string(1 + campaign->random().Below(8));
  if (point.starts_with("client.")) {
    plan.trainer_point = armed;
    // Others that had said goodbye would leave the job to its lease.
    if (point == "client.goodbye_sent") plan.shape.world = 1;
    if (point.find("resu") != std::string::npos || point == "client.server_lost") {
      plan.trainer_point = once;
      plan.server_points = {""};
    }
  } else if (point == "server.resubmit_answered") {
    // Stored, but not answered: the next server is asked again.
    plan.server_points = {
        "server.gradient_stored:" + std::to_string(1 + campaign->random().Below(100)), once};
  } else if (point.starts_with("keeper.")) {
    plan.server_points = {once};  // the keeper inherits it
  } else if (point.starts_with("recover.") || point == "optim.tile_restored") {
    // Recovery has something to restore after a death inside a tile; it is killed up to five times
    // in a row.
    plan.server_points = {"optim.tile_written:" +
                          std::to_string(1 + campaign->random().Below(shape.large ? 40 : 200))};
    for (uint32_t i = 0; i <= repeat % 5; ++i) plan.server_points.push_back(once);
  } else if (repeat % 2 == 0) {
    plan.server_points = {armed};
  } else {
    plan.server_points = {"", armed};
  }
  return plan;
}

bool KillAtPoint(Campaign* campaign, const std::string& point, const Counts& counts,
                 Totals* totals) {
  const uint32_t each = counts.each;
  uint32_t hits = 0, runs = 0;
  for (; hits < each && runs < 8 * each; ++runs) {
    const bool rare = runs < 2 || (hits < runs && campaign->random().Below(4) != 0);
    if (!Play(campaign, PlanOf(campaign->RandomShape(counts.large), point, runs, rare, campaign),
              totals, point, &hits))
      return false;
  }
  std::printf("%-28s %u kills in %u runs\n", point.c_str(), hits, runs);
  if (hits >= each) return true;
  std::printf("FAILED: %s was passed too rarely\n", point.c_str());
  return false;
}

void KillAtPoints(const Counts& counts, Totals* totals) {
  std::atomic<size_t> next{0};
  RunOnThreads(counts.threads, [&](Campaign* campaign) {
    for (size_t i = next++; i < counts.points.size() && totals->good; i = next++) {
      campaign->Begin(counts.seed + std::hash<std::string>()(counts.points[i]));
      if (!KillAtPoint(campaign, counts.points[i], counts, totals)) totals->good = false;
    }
  });
}

int Main(int argc, char** argv) {
  Counts counts;
  std::string victims = "all";
  FlagReader flags("kills the processes of a training job and compares every bit");
  flags.Add("--seed", &counts.seed);
  flags.Add("--kills", &counts.kills, "at random times");
  flags.Add("--losses", &counts.losses, "of memserver and keeper at once");
  flags.Text("--victims", &victims, "", {"trainer", "server", "keeper", "pair", "all"});
  flags.Texts("--points", &counts.points, "default: all");
  flags.Add("--each", &counts.each, "kills a point");
  flags.Switch("--large", &counts.large,
               "a chunk of several pieces, two workers, several copy threads");
  flags.Add("--jobs", &counts.threads, "rounds at once", 1u, 64u);
  if (const auto code = flags.Read(argc, argv)) return *code;
  SetLogLevel(LogLevel::kError);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const SteadyClock clock;
  const int64_t begin = clock.NowNs();
  counts.victims = kVictims.at(victims);
  if (counts.points.empty()) counts.points.assign(std::begin(kPoints), std::end(kPoints));
  Totals totals;
  if (counts.kills + counts.losses > 0) KillAtRandomTimes(counts, &totals);
  if (counts.each > 0 && totals.good) KillAtPoints(counts, &totals);
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "%s: seed %llu, %llu runs, %llu kills at random times, %llu at points, %llu recoveries, %llu "
      "losses that each rank was told "
      "of, %.1f s\n",
      totals.good ? "all bits equal" : "FAILED", number(counts.seed), number(totals.rounds),
      number(totals.kills), number(totals.points_hit), number(totals.recoveries),
      number(totals.losses), static_cast<double>(clock.NowNs() - begin) / kNsPerSecond);
  return totals.good ? 0 : 1;
}

}  // namespace
}  // namespace tidepool::testing

int main(int argc, char** argv) {
  return tidepool::testing::Main(argc, argv);
}
