#include "client/checkpoint/snapshot.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/checkpoint/checkpoint_files.h"
#include "base/checkpoint/read_whole.h"
#include "base/checkpoint/step_log.h"
#include "base/formats/safetensors.h"
#include "client/checkpoint/given_states.h"
#include "client/checkpoint/write_states.h"

namespace tidepool::client {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kAnswerNs = 30 * kNsPerSecond;
// The file with the note of the run, as trainers name it.
constexpr const char* kNoteFile = "run-note";
constexpr const char* kConfigFile = "config.json";
// The files that describe a model, beside its weights.
constexpr const char* kDescribing[] = {
    kConfigFile,  "tokenizer.json",          "tokenizer_config.json", "vocab.json",
    "merges.txt", "special_tokens_map.json", "generation_config.json"};

bool Has(const std::string& directory, const char* file) {
  std::error_code error;
  return fs::is_regular_file(directory + "/" + file, error);
}

// A resumed run takes the newest checkpoint and the log behind it; this one has no log.
Status CheckFolder(const std::vector<FoundCheckpoint>& found, const std::string& folder) {
  const auto logs = [](const FoundCheckpoint& one) { return StepLogRunOf(one.path) != 0; };
  if (std::none_of(found.begin(), found.end(), logs)) return {};
  return Status(ErrorId::kUsageError, "a run that logs its steps has its checkpoints there")
      .Where(folder)
      .Why("it would go on behind the snapshot, without the steps that are logged behind its own")
      .Fix("name another folder with --to");
}

// The newest whole checkpoint of the run with this note that describes its model; empty: none.
std::string LikeIn(const std::vector<FoundCheckpoint>& found, const std::string& note) {
  for (auto it = found.rbegin(); !note.empty() && it != found.rend(); ++it) {
    if (!it->state.ok() || !Has(it->path, kConfigFile)) continue;
    auto other = ReadWhole(it->path + "/" + kNoteFile);
    if (other.ok() && *other == note) return it->path;
  }
  return {};
}

// The hash of the base that the adapters in `directory` were trained over; empty: it is not there.
Result<std::string> BaseOf(const std::string& directory) {
  if (!Has(directory, kAdaptersFile)) return std::string();
  TP_ASSIGN_OR_RETURN(const std::string file, ReadWhole(directory + "/" + kAdaptersFile));
  uint64_t data = 0;
  TP_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                      DecodeSafetensors(std::as_bytes(std::span(file)), &data));
  for (const auto& [key, value] : header.metadata) {
    if (key == kBaseHashKey) return value;
  }
  return std::string();
}

// Nothing for a whole model.
Result<std::optional<std::string>> BaseFor(const GivenStates& given, const std::string& like) {
  if (given.spec.frozen.empty()) return std::optional<std::string>();
  std::string base;
  if (!like.empty()) {
    TP_ASSIGN_OR_RETURN(base, BaseOf(like));
  }
  if (!base.empty()) return std::optional<std::string>(base);
  return Status(ErrorId::kSaveFailed, "the job trains adapters, and nothing names their base")
      .Where(like.empty() ? "job " + given.spec.name : like)
      .Why("memserver knows the base's chunks alone, not its file")
      .Fix("give --like DIR: a checkpoint of this run, or what its --save wrote");
}

Result<std::vector<std::pair<std::string, std::string>>> FilesOf(const GivenStates& given,
                                                                 const std::string& like) {
  std::vector<std::pair<std::string, std::string>> files;
  if (!given.note.empty()) files.emplace_back(kNoteFile, given.note);
  for (const char* name : kDescribing) {
    if (like.empty() || !Has(like, name)) continue;
    TP_ASSIGN_OR_RETURN(std::string text, ReadWhole(like + "/" + name));
    files.emplace_back(name, std::move(text));
  }
  return files;
}

}  // namespace

Result<Snapshot> WriteSnapshot(const SnapshotTask& task) {
  TP_ASSIGN_OR_RETURN(const std::vector<FoundCheckpoint> found, FindCheckpoints(task.folder));
  TP_RETURN_IF_ERROR(CheckFolder(found, task.folder));
  if (!task.like.empty() && !Has(task.like, kConfigFile))
    return Status(ErrorId::kFileUnreadable, "there is no config.json")
        .Where(task.like)
        .Fix("give --like a checkpoint of this run, or what its --save wrote");

  TP_ASSIGN_OR_RETURN(GivenStates given,
                      AskForStates(task.clock, task.socket_dir, task.job, kAnswerNs));
  const std::string like = task.like.empty() ? LikeIn(found, given.note) : task.like;
  TP_ASSIGN_OR_RETURN(const std::optional<std::string> base, BaseFor(given, like));
  WriteTask write{.memory = std::move(given.memory),
                  .folder = task.folder,
                  .name = CheckpointName(given.version),
                  .staged = {},
                  .keep = task.keep,
                  .clock = task.clock};

  write.plan = PlanOf(given.spec, base);
  TP_ASSIGN_OR_RETURN(write.files, FilesOf(given, like));
  write.look = [&given] { return LookAtGiven(&given.channel); };

  const Snapshot made{
      .path = task.folder + "/" + write.name, .version = given.version, .described = !like.empty()};
  TP_RETURN_IF_ERROR(WriteStates(std::move(write)));
  return made;
}

}  // namespace tidepool::client
