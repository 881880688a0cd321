#include "tests/process/rig/sweep.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/error_catalog.h"
#include "base/random.h"
#include "tests/process/rig/flag_reader.h"

namespace tidepool::testing {
namespace {

const std::map<std::string, Victim> kVictims{
    {"memserver", Victim::kMemserver}, {"keeper", Victim::kKeeper}, {"trainer", Victim::kTrainer}};

const char* NameOf(Victim victim) {
  return victim == Victim::kMemserver ? "memserver"
         : victim == Victim::kKeeper  ? "keeper"
                                      : "trainer";
}

std::string Describe(const Failure& failure) {
  return std::string("--victim ") + NameOf(failure.victim) + " --call " +
         kFailCallNames[failure.call] + " --at " + std::to_string(failure.at);
}

using Places = std::map<std::pair<Victim, uint32_t>, std::vector<uint64_t>>;

// The calls of an undisturbed run.
Places FindPlaces(const Sweep& sweep) {
  Places places;
  for (const Victim victim : sweep.victims) {
    CallPlaces calls;
    const Outcome outcome = sweep.play({victim, 0, 0}, &calls);
    TP_CHECK(outcome.wrong.empty(), (outcome.wrong + "\n" + outcome.output).c_str());
    for (uint32_t call = 0; call < kFailCalls; ++call) places[{victim, call}] = calls[call];
  }
  return places;
}

// All of them, in an order in which the first are a fair sample: each function once, each again,
// and so on, at k chosen by `random`; rare functions come at every k.
std::vector<Failure> InOrder(const Places& places, SplitMix64* random) {
  std::map<std::pair<Victim, uint32_t>, std::vector<uint64_t>> shuffled = places;
  size_t longest = 0;
  for (auto& [key, calls] : shuffled) {
    for (size_t i = 0; i + 1 < calls.size(); ++i)
      std::swap(calls[i], calls[i + random->Below(calls.size() - i)]);
    longest = std::max(longest, calls.size());
  }
  std::vector<Failure> failures;
  for (size_t turn = 0; turn < longest; ++turn) {
    for (const auto& [key, calls] : shuffled) {
      if (turn < calls.size()) failures.push_back({key.first, key.second, calls[turn]});
    }
  }
  return failures;
}

struct Row {
  uint64_t runs = 0, failed = 0, jobs_ended = 0, servers_ended = 0;
};

using Table = std::map<std::pair<Victim, uint32_t>, Row>;

struct Playing {
  const Sweep& sweep;
  uint32_t threads;
  bool go_on;  // behind one that is wrong
};

// Plays them until in `wanted` runs the call was reached: threads and waits make the last calls of
// a run come or not come, and then the next in order takes the place. False when one is wrong.
bool PlayUntil(uint64_t wanted, const std::vector<Failure>& failures, const Playing& how,
               Table* table) {
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> reached{0};
  std::atomic<bool> good{true};
  std::mutex guard;
  const auto play_some = [&] {
    for (size_t i = next++; i < failures.size() && (good || how.go_on) && reached < wanted;
         i = next++) {
      const Outcome outcome = how.sweep.play(failures[i], nullptr);
      const std::lock_guard lock(guard);
      Row& row = (*table)[{failures[i].victim, failures[i].call}];
      ++row.runs;
      row.failed += outcome.failed ? 1 : 0;
      reached += outcome.failed ? 1 : 0;
      row.jobs_ended += outcome.job_ended ? 1 : 0;
      row.servers_ended += outcome.server_ended ? 1 : 0;
      if (outcome.wrong.empty()) continue;
      std::printf("FAILED: %s: %s\n%s\n", Describe(failures[i]).c_str(), outcome.wrong.c_str(),
                  outcome.output.c_str());
      good = false;
    }
  };
  std::vector<std::thread> others;
  for (uint32_t i = 1; i < how.threads; ++i) others.emplace_back(play_some);
  play_some();
  for (std::thread& other : others) other.join();
  return good;
}

// Returns in how many runs the call was reached.
uint64_t Print(const Table& table, const Places& places) {
  uint64_t runs = 0, failed = 0;
  std::printf("%-10s %-14s %7s %6s %8s %11s %13s\n", "victim", "call", "calls", "runs", "failed",
              "jobs ended", "server ended");
  for (const auto& [key, row] : table) {
    std::printf("%-10s %-14s %7llu %6llu %8llu %11llu %13llu\n", NameOf(key.first),
                kFailCallNames[key.second], static_cast<unsigned long long>(places.at(key).size()),
                static_cast<unsigned long long>(row.runs),
                static_cast<unsigned long long>(row.failed),
                static_cast<unsigned long long>(row.jobs_ended),
                static_cast<unsigned long long>(row.servers_ended));
    runs += row.runs;
    failed += row.failed;
  }
  std::printf("%llu runs, in %llu of them the call was reached\n",
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(failed));
  return failed;
}

}  // namespace

int SweepMain(int argc, char** argv, const Sweep& sweep) {
  uint64_t seed = 1, samples = sweep.samples, at = 0;
  uint32_t threads = 6;  // a run mostly waits
  bool all = false, go_on = false;
  std::string victim, call;
  FlagReader flags("the k-th call of a function fails, for every k");
  flags.Add("--seed", &seed);
  flags.Add("--samples", &samples);
  flags.Add("--jobs", &threads, "runs at once");
  flags.Switch("--all", &all);
  flags.Switch("--go-on", &go_on, "also behind a run that is wrong");
  flags.Text("--victim", &victim, "", {"memserver", "keeper", "trainer"});
  flags.Text("--call", &call, "", {kFailCallNames.begin(), kFailCallNames.end()});
  flags.Add("--at", &at);
  if (const auto code = flags.Read(argc, argv)) return *code;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const SteadyClock clock;
  const int64_t begin = clock.NowNs();
  Places places = FindPlaces(sweep);
  std::erase_if(places, [&](const auto& entry) {
    return (!victim.empty() && entry.first.first != kVictims.at(victim)) ||
           (!call.empty() && call != kFailCallNames[entry.first.second]);
  });
  SplitMix64 random(seed);
  std::vector<Failure> failures = InOrder(places, &random);
  if (at != 0) failures = {{places.begin()->first.first, places.begin()->first.second, at}};
  // Where every place is played, nothing is left to take the place of those that did not come.
  const uint64_t wanted = all ? failures.size() : std::min<uint64_t>(samples, failures.size());
  const bool whole = wanted == failures.size();
  Table table;
  const bool good = PlayUntil(wanted, failures, {sweep, threads, go_on}, &table);
  const uint64_t reached = Print(table, places);
  const bool enough = at != 0 || (whole ? reached * 10 >= wanted * 8 : reached >= wanted);
  std::printf("%s: seed %llu, %.1f s\n", good && enough ? sweep.verdict : "FAILED",
              static_cast<unsigned long long>(seed),
              static_cast<double>(clock.NowNs() - begin) / kNsPerSecond);
  return good && enough ? 0 : 1;
}

PageFile::PageFile(const Failure& failure) : path_(directory_.path() + "/page") {
  const UniqueFd fd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  TP_CHECK(ftruncate(fd.get(), sizeof(FailPage)) == 0, "room for the page");
  void* data = mmap(nullptr, sizeof(FailPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  TP_CHECK(data != MAP_FAILED, "the page is mapped");
  page_ = new (data) FailPage();
  page_->in_keeper = failure.victim == Victim::kKeeper ? 1 : 0;
  page_->call = failure.call;
  page_->at = failure.at;
}

PageFile::~PageFile() {
  munmap(page_, sizeof(FailPage));
}

std::vector<std::string> PageFile::Environment() const {
  return {std::string("LD_PRELOAD=") + TIDEPOOL_FAIL_SHIM,
          std::string(kFailPageVariable) + "=" + path_};
}

std::string WhyNotInOrder(ChildProcess* process, int64_t timeout_ns) {
  static const std::set<int> kDocumented{
      kExitOk,           kExitFailed,     kExitUsage,     kExitNoServer, kExitNotFound,
      kExitRefused,      kExitTimeout,    kExitCorrupt,   kExitVersion,  kExitHostUnfit,
      kExitDeviceMemory, kExitHostMemory, kExitNonFinite, kExitJobKept};
  const auto ended = process->Wait(timeout_ns);
  if (!ended) return "hangs";
  if (ended->signal != 0) return "was ended by signal " + std::to_string(ended->signal);
  if (kDocumented.count(ended->exit_code) == 0)
    return "ended with " + std::to_string(ended->exit_code);
  const bool told = process->Output().find("error[TP") != std::string::npos;
  return ended->exit_code != 0 && !told ? "did not say why it ended" : "";
}

}  // namespace tidepool::testing
