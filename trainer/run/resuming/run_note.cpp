#include "trainer/run/resuming/run_note.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

constexpr size_t kPathBytesMax = 108;
constexpr const char* kDataKey = "data";
constexpr const char* kSameForAll =
    "start all ranks with the same command line, and see that they read the same data";

struct Key {
  std::string_view name;
  const char* shown;  // for the user
  bool changes_order;
};
// In a note of another release only keys of this table count.
constexpr std::array<Key, 14> kKeys{{{"batch", "--batch", true},
                                     {"context", "--context", true},
                                     {"seed", "--seed", true},
                                     {"train", "--data: tokens to train on", true},
                                     {"held_out", "--data: held-out tokens", true},
                                     {"from", "--from: fingerprint of the weights", true},
                                     {"moe", "--moe", true},
                                     {"lora_alpha", "--lora-alpha", true},
                                     {"plan", "--plan", false},
                                     {"steps", "--steps", false},
                                     {"lr", "--lr", false},
                                     {"schedule", "--schedule", false},
                                     {"warmup", "--warmup", false},
                                     {"min_lr", "--min-lr", false}}};

std::string Text(float value) {
  std::array<char, 32> text{};
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general);
  return std::string(text.data(), error == std::errc() ? end : text.data());
}

std::string Text(const TokenFacts& facts) {
  std::array<char, 20> hash{};
  const auto [end, error] = std::to_chars(hash.data(), hash.data() + hash.size(), facts.hash, 16);
  return std::to_string(facts.tokens) + " (hash " + std::string(hash.data(), end) + ")";
}

// The end of a path, on one line.
std::string Shown(std::string path) {
  std::replace_if(
      path.begin(), path.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
  return path.size() <= kPathBytesMax ? path : "..." + path.substr(path.size() - kPathBytesMax + 3);
}

std::optional<std::string> ValueOf(const std::string& note, std::string_view key) {
  for (size_t begin = 0; begin < note.size();) {
    const size_t end = std::min(note.find('\n', begin), note.size());
    const std::string_view line = std::string_view(note).substr(begin, end - begin);
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ')
      return std::string(line.substr(key.size() + 1));
    begin = end + 1;
  }
  return std::nullopt;
}

// "--batch 8, now 4".
std::string Shown(const NoteDifference& difference) {
  return difference.what + " " + difference.before + ", now " + difference.now;
}

std::string Joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

// Error for ranks of one run that differ; `other` names the one that this rank is compared with.
Status RanksDiffer(const std::vector<NoteDifference>& differences, const std::string& other,
                   const NotedSlot& slot) {
  std::vector<std::string> shown;
  for (const NoteDifference& one : differences)
    shown.push_back(one.what + " " + one.before + " there, " + one.now + " here");
  return Status(ErrorId::kJobMismatch, "rank " + std::to_string(slot.rank) +
                                           " was started otherwise than " + other + ": " +
                                           Joined(shown))
      .Where("rank " + std::to_string(slot.rank) + " of job " + slot.job)
      .Why("the ranks of one run share batches and steps")
      .Fix(kSameForAll);
}

std::string Remedy(const std::vector<NoteDifference>& differences) {
  std::string flags;
  bool data = false, weights = false;
  for (const NoteDifference& difference : differences) {
    if (!difference.changes_order) continue;

    if (difference.what.starts_with("--data")) {
      data = true;
    } else if (difference.what.starts_with("--from")) {
      weights = true;
    } else {
      flags += " " + difference.what + " " + difference.before;
    }
  }

  std::string text;
  if (!flags.empty()) text = "give" + flags + " again";
  const auto also = [&text](bool wanted, const char* what) {
    if (wanted) text += std::string(text.empty() ? "" : ", and ") + what;
  };

  also(data, "bring back the data that the job began with");
  also(weights, "give --from with the weights that the job began with, or leave it out");
  return text +
         "; or begin a new job with another --job NAME (memctl job release ends the old one)";
}

}  // namespace

std::string MakeRunNote(const RunOptions& options, const NotedInputs& inputs) {
  std::string note;
  const auto line = [&note](std::string_view key, const std::string& value) {
    note += std::string(key) + " " + value + "\n";
  };

  line("batch", std::to_string(options.data.batch));
  line("context", std::to_string(inputs.context));
  line("seed", std::to_string(options.model.seed));
  line("train", Text(inputs.facts.train));
  line("held_out", Text(inputs.facts.held_out));
  if (!inputs.from.empty()) line("from", inputs.from);
  if (!inputs.moe.empty()) line("moe", inputs.moe);
  if (options.adapters.rank > 0) line("lora_alpha", Text(options.adapters.alpha));

  // Ranks that exchange blocks differently would wait for each other.
  line("plan", options.memory.plan.empty() ? "none" : options.memory.plan);
  line("steps", std::to_string(options.training.steps));
  line("lr", Text(options.training.learning_rate));
  line("schedule", options.training.schedule);
  line("warmup", std::to_string(options.training.warmup_steps));
  line("min_lr", Text(options.training.min_learning_rate));

  const std::string with_data = note + kDataKey + " " + Shown(options.data.path) + "\n";
  return options.data.path.empty() || with_data.size() > kRunNoteBytesMax ? note : with_data;
}

std::vector<NoteDifference> CompareRunNotes(const std::string& kept, const std::string& own) {
  std::vector<NoteDifference> differences;
  for (const Key& key : kKeys) {
    const std::optional<std::string> before = ValueOf(kept, key.name), now = ValueOf(own, key.name);
    if (before && now && *before != *now)
      differences.push_back({key.shown, *before, *now, key.changes_order});
  }
  return differences;
}

Status CheckRunNote(const std::string& kept, const std::string& own, const NotedSlot& slot) {
  std::vector<NoteDifference> differences = CompareRunNotes(kept, own);
  std::erase_if(differences, [](const NoteDifference& one) { return !one.changes_order; });
  if (differences.empty() || TP_PLANTED("trainer.note_not_compared")) return {};
  // Nothing is sealed: the note is from another rank of this run, or from a refused start.
  if (slot.version == 0) {
    return RanksDiffer(differences, "the rank that came to job \"" + slot.job + "\" first", slot)
        .Fix(std::string(kSameForAll) +
             "; if an earlier start left the job like this, end it first: memctl job release " +
             slot.job);
  }

  std::vector<std::string> changed;
  for (const NoteDifference& difference : differences) changed.push_back(Shown(difference));
  const std::string data = ValueOf(kept, kDataKey).value_or("");
  return Status(ErrorId::kJobMismatch,
                "job \"" + slot.job + "\" was begun otherwise: " + Joined(changed))
      .Where("rank " + std::to_string(slot.rank) + " of job " + slot.job + " at step " +
             std::to_string(slot.version) + (data.empty() ? "" : ", begun with --data " + data))
      .Why(
          "the run would skip some of its data and repeat others, or train other weights, without "
          "a word")
      .Fix(Remedy(differences));
}

Status CheckRankNote(const std::string& first, const std::string& own, const NotedSlot& slot) {
  const std::vector<NoteDifference> differences = CompareRunNotes(first, own);
  return differences.empty() ? Status() : RanksDiffer(differences, "rank 0", slot);
}

Status CheckOtherRanks(std::span<const double> refused, const std::string& job) {
  std::string ranks;
  for (size_t rank = 0; rank < refused.size(); ++rank) {
    if (refused[rank] > 0) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (ranks.empty()) return {};
  return Status(ErrorId::kJobMismatch, "not all ranks were started with the same data and options")
      .Where("rank " + ranks + " of job " + job)
      .Why("it differs from rank 0; its own error says in what")
      .Fix(kSameForAll);
}

std::vector<std::string> DescribeChanges(const std::string& kept, const std::string& own) {
  std::vector<std::string> lines;
  for (const NoteDifference& difference : CompareRunNotes(kept, own)) {
    if (difference.changes_order) continue;
    lines.push_back(difference.what + " " + difference.before + " -> " + difference.now +
                    ": goes on with the new one");
  }
  return lines;
}

Result<uint64_t> CursorInSequences(uint64_t kept, Version version, const RunOptions& options) {
  uint64_t batches = 0, sequences = 0;
  const bool counts =
      !__builtin_mul_overflow(version, uint64_t{options.training.micro_batches}, &batches) &&
      !__builtin_mul_overflow(batches, options.data.batch, &sequences);
  if (counts && (kept == sequences || kept == batches)) return sequences;

  const bool whole = batches > 0 && kept % batches == 0;
  const std::string before =
      whole ? "--batch " + std::to_string(kept / batches) : "another --batch";
  return Status(ErrorId::kJobMismatch, "the job was trained with " + before + ", now --batch " +
                                           std::to_string(options.data.batch))
      .Where("step " + std::to_string(version) + ", behind " + std::to_string(kept) + " sequences")
      .Why("the run would skip some of its data, or repeat others, without a word")
      .Fix("give the former --batch again, or begin a new job with another --job NAME");
}

}  // namespace tidepool::trainer
