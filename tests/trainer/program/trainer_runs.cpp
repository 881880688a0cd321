#include "tests/trainer/program/trainer_runs.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/random.h"

namespace tidepool::testing {
namespace {

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

uint64_t Lines(const std::string& text) {
  return static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TrainerRuns::TrainerRuns() {
  SplitMix64 random(5);
  std::ofstream text(Out("words.txt"));
  for (int i = 0; i < 60000; ++i)
    text.put(random.Below(6) == 0 ? ' ' : static_cast<char>('a' + random.Below(12)));
}

std::vector<std::string> TrainerRuns::Words(const std::string& name, const Flags& more) const {
  Flags flags = more;
  // Those of `more` stay.
  flags.insert({{"--preset", "tiny"},
                {"--context", "32"},
                {"--batch", "4"},
                {"--rcache", "50%"},
                {"--steps", std::to_string(kSteps)},
                {"--threads", "1"},
                {"--eval-every", "10"},
                {"--data", Out("words.txt")},
                {"--out", Out(name)},
                {"--save", Out(name) + "/weights"}});
  std::vector<std::string> words{"run"};
  for (const auto& [flag, value] : flags) {
    words.push_back(flag);
    if (!value.empty()) words.push_back(value);
  }
  return words;
}

std::unique_ptr<ChildProcess> TrainerRuns::Start(std::vector<std::string> words,
                                                 const std::vector<std::string>& environment) {
  words.insert(words.begin(), TIDEPOOL_TRAINER);
  return std::make_unique<ChildProcess>(words, environment);
}

void TrainerRuns::ExpectDone(ChildProcess* trainer) {
  const auto end = trainer->Wait(kRunNs);
  ASSERT_TRUE(end) << trainer->Output();
  EXPECT_EQ(end->exit_code, 0) << trainer->Output();
}

bool TrainerRuns::WaitForLines(const std::string& name, uint64_t lines,
                               ChildProcess* trainer) const {
  SteadyClock clock;
  while (Lines(ReadText(Out(name) + "/metrics.jsonl")) < lines) {
    if (trainer->Wait(0)) return false;
    clock.SleepNs(kNsPerMs);
  }
  return true;
}

pid_t TrainerRuns::PidOfRank(const std::string& socket_dir, const std::string& job, uint64_t rank) {
  SteadyClock clock;
  for (const int64_t end = clock.NowNs() + kRunNs; clock.NowNs() < end; clock.SleepNs(kNsPerMs)) {
    const std::string text = AskAdmin(socket_dir, "/v1/jobs/" + job);
    const size_t at = text.find("\"rank\":" + std::to_string(rank) + ",");
    if (at != std::string::npos) return static_cast<pid_t>(NumberIn(text.substr(at), "pid"));
  }
  return -1;
}

std::string TrainerRuns::Weights(const std::string& name) const {
  return ReadText(Out(name) + "/weights/model.safetensors");
}

std::vector<std::string> TrainerRuns::Losses(const std::string& name) const {
  std::vector<std::string> losses;
  std::istringstream lines(ReadText(Out(name) + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    losses.push_back(line.substr(0, line.find(",\"grad_norm\"")));
  return losses;
}

void TrainerRuns::ExpectSame(const std::string& name, const std::string& reference) const {
  EXPECT_GT(Weights(reference).size(), 400'000U);
  EXPECT_TRUE(Weights(name) == Weights(reference)) << "the weights differ";
  EXPECT_EQ(Losses(reference).size(), kSteps + 1);
  EXPECT_EQ(Losses(name), Losses(reference));
}

}  // namespace tidepool::testing
