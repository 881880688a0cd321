#include "client/memctl/commands/checkpoints.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <utility>

#include "base/checkpoint/checkpoint_files.h"
#include "base/text/json_writer.h"
#include "base/units.h"
#include "client/memctl/views/table.h"

namespace tidepool::client {
namespace {

namespace fs = std::filesystem;

// The checkpoints at a path: those of a folder, or the path itself.
Result<std::vector<FoundCheckpoint>> Named(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    return Status(ErrorId::kFileUnreadable, "there is no such directory").Where(path);
  if (const auto version = VersionOfName(fs::path(path).filename()); version.has_value())
    return std::vector<FoundCheckpoint>{{path, *version, OpenCheckpoint(path).status()}};
  if (fs::exists(path + "/" + kManifestFile)) {
    auto opened = OpenCheckpoint(path);
    const uint64_t version = opened.ok() ? opened->step.version : 0;
    return std::vector<FoundCheckpoint>{{path, version, opened.status()}};
  }

  TP_ASSIGN_OR_RETURN(std::vector<FoundCheckpoint> found, FindCheckpoints(path));
  if (!found.empty()) return found;
  return Status(ErrorId::kAdminNotFound, "it holds no checkpoint")
      .Where(path)
      .Fix("name a folder that trainer run --checkpoint-dir was given, or one checkpoint of it");
}

struct Size {
  uint64_t bytes = 0, tensors = 0;
};

Size SizeOf(const std::string& path) {
  Size size;
  auto manifest = OpenCheckpoint(path);
  if (!manifest.ok()) return size;
  for (const ManifestFile& file : manifest->files) size.bytes += file.bytes;
  size.tensors = manifest->tensors.size();
  return size;
}

// Every checkpoint with its state; `whole` is the word for one without errors.
Shown ShowAll(const Invocation& invocation, const Style& style,
              const std::vector<FoundCheckpoint>& found, const char* whole) {
  Table table({{"STEP", true}, {"STATE"}, {"TENSORS", true}, {"BYTES", true}, {"PATH"}});
  JsonWriter json;
  json.BeginObject().Key("checkpoints").BeginArray();
  Shown shown;
  for (const FoundCheckpoint& one : found) {
    const Size size = SizeOf(one.path);
    const std::string state = one.state.ok() ? whole : "damaged";
    table.Add({std::to_string(one.version), state, std::to_string(size.tensors),
               FormatBytes(size.bytes), one.path});

    json.BeginObject().Field("version", one.version).Field("state", state).Field("path", one.path);
    json.Field("tensors", size.tensors).Field("bytes", size.bytes);
    if (!one.state.ok()) {
      json.Field("why", one.state.what()).Field("where", one.state.where());
      shown.remark += Printable(one.state.where() + ": " + one.state.what()) + "\n";
    }
    json.EndObject();
  }

  if (invocation.json) {
    shown.result = json.EndArray().EndObject().Take() + "\n";
    return shown;
  }
  for (const std::string& line : table.Lines(style.header)) shown.result += line + "\n";
  return shown;
}

Result<Shown> List(const Invocation& invocation, const Style& style) {
  TP_ASSIGN_OR_RETURN(const std::vector<FoundCheckpoint> found, Named(invocation.target));
  return ShowAll(invocation, style, found, "whole");
}

Result<Shown> Verify(const Invocation& invocation, const Style& style) {
  TP_ASSIGN_OR_RETURN(std::vector<FoundCheckpoint> found, Named(invocation.target));
  bool damaged = false;
  for (FoundCheckpoint& one : found) {
    if (invocation.say) invocation.say("reading " + one.path);
    one.state = VerifyCheckpoint(one.path);
    damaged = damaged || !one.state.ok();
  }
  Shown shown = ShowAll(invocation, style, found, "verified");
  shown.exit_code = damaged ? kExitCorrupt : kExitOk;
  return shown;
}

// The checksum of each tensor, by file and name.
std::map<std::string, uint32_t> ChecksOf(const Manifest& manifest) {
  std::map<std::string, uint32_t> checks;
  for (const ManifestTensor& tensor : manifest.tensors)
    checks[tensor.file + ", " + tensor.name] = tensor.crc;
  return checks;
}

// Descriptions of the differences: of the step, then of each tensor.
std::vector<std::pair<std::string, std::string>> Differences(const Manifest& a, const Manifest& b) {
  std::vector<std::pair<std::string, std::string>> lines;
  const auto number = [&lines](const char* name, uint64_t left, uint64_t right) {
    if (left != right)
      lines.emplace_back(name, std::to_string(left) + " and " + std::to_string(right));
  };

  number("version", a.step.version, b.step.version);
  number("optimizer_step", a.step.optimizer_step, b.step.optimizer_step);
  number("data_cursor", a.step.data_cursor, b.step.data_cursor);
  number("random_state", a.step.random_state, b.step.random_state);
  number("scaler_steps", a.step.scaler_steps, b.step.scaler_steps);

  if (a.step.loss_scale != b.step.loss_scale)
    lines.emplace_back("loss_scale", std::to_string(a.step.loss_scale) + " and " +
                                         std::to_string(b.step.loss_scale));

  const std::map<std::string, uint32_t> left = ChecksOf(a), right = ChecksOf(b);
  for (const auto& [name, check] : left) {
    const auto other = right.find(name);
    if (other == right.end()) lines.emplace_back(name, "only in the first");
    if (other != right.end() && other->second != check) lines.emplace_back(name, "other bytes");
  }
  for (const auto& [name, check] : right) {
    if (!left.contains(name)) lines.emplace_back(name, "only in the second");
  }
  return lines;
}

Result<Shown> Diff(const Invocation& invocation, const Style&) {
  TP_ASSIGN_OR_RETURN(const Manifest first, OpenCheckpoint(invocation.target));
  TP_ASSIGN_OR_RETURN(const Manifest second, OpenCheckpoint(invocation.value));
  const auto lines = Differences(first, second);
  Shown shown;
  shown.exit_code = lines.empty() ? kExitOk : kExitFailed;
  if (!invocation.json) {
    for (const auto& [name, what] : lines) shown.result += Printable(name + ": " + what) + "\n";
    if (lines.empty()) shown.remark = "by their checks they hold the same\n";
    return shown;
  }

  JsonWriter json;
  json.BeginObject().Key("differences").BeginArray();
  for (const auto& [name, what] : lines)
    json.BeginObject().Field("of", name).Field("what", what).EndObject();
  shown.result = json.EndArray().EndObject().Take() + "\n";
  return shown;
}

Result<uint64_t> KeepOf(const Invocation& invocation) {
  const auto text = invocation.fields.find("keep");
  uint64_t keep = 0;
  if (text != invocation.fields.end()) {
    const std::string& digits = text->second;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), keep);

    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) keep = 0;
  }
  if (keep > 0) return keep;
  return Status(ErrorId::kUsageError, "--keep needs a number from 1 on")
      .Where("command line of memctl")
      .Fix("memctl checkpoint prune " + invocation.target + " --keep 3");
}

Result<Shown> Prune(const Invocation& invocation, const Style&) {
  TP_ASSIGN_OR_RETURN(const uint64_t keep, KeepOf(invocation));
  TP_RETURN_IF_ERROR(Named(invocation.target).status());
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> removed,
                      PruneCheckpoints(invocation.target, keep));
  Shown shown;
  JsonWriter json;
  json.BeginObject().Key("removed").BeginArray();
  for (const std::string& path : removed) {
    json.String(path);
    shown.result += "removed " + Printable(path) + "\n";
  }

  if (invocation.json) shown.result = json.EndArray().EndObject().Take() + "\n";
  if (removed.empty() && !invocation.json) shown.remark = "there are no older ones\n";
  return shown;
}

}  // namespace

Result<Preview> PreviewOfPrune(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const uint64_t keep, KeepOf(invocation));
  TP_RETURN_IF_ERROR(Named(invocation.target).status());
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> goes,
                      CheckpointsBeyond(invocation.target, keep));
  Preview preview{"remove checkpoints of " + invocation.target, {}, {}};
  uint64_t bytes = 0;
  for (const std::string& path : goes) {
    const Size size = SizeOf(path);
    bytes += size.bytes;
    preview.effects.push_back(path + " is removed (" + FormatBytes(size.bytes) + ")");
  }

  if (goes.empty()) preview.effects.emplace_back("there are no older ones: nothing changes");
  preview.numbers = {{"checkpoints", goes.size()}, {"bytes", bytes}};
  return preview;
}

Result<Shown> RunCheckpoint(const Invocation& invocation, const Style& style) {
  if (invocation.action == "verify") return Verify(invocation, style);
  if (invocation.action == "diff") return Diff(invocation, style);
  if (invocation.action == "prune") return Prune(invocation, style);
  return List(invocation, style);
}

}  // namespace tidepool::client
