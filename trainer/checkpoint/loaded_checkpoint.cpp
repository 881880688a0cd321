#include "trainer/checkpoint/loaded_checkpoint.h"

#include <filesystem>
#include <utility>

#include "base/checkpoint/checkpoint_files.h"
#include "base/checkpoint/read_whole.h"
#include "trainer/launch/child_process.h"

namespace tidepool::trainer {
namespace {

constexpr uint32_t kMomentum = 1, kVariance = 2;

const char* SuffixOf(uint32_t plane) {
  if (plane == 0) return "";
  return plane == kMomentum ? kFirstMoment : kSecondMoment;
}

Status Usage(const std::string& what) {
  return Status(ErrorId::kUsageError, what).Where("command line of trainer");
}

}  // namespace

std::vector<uint32_t> MomentPlanesOf(const client::JobSpec& spec) {
  std::vector<uint32_t> planes;
  if (NeedsMomentum(spec.optimizer)) planes.push_back(kMomentum);
  if (NeedsVariance(spec.optimizer)) planes.push_back(kVariance);
  return planes;
}

Result<LoadedCheckpoint> LoadedCheckpoint::Open(const std::string& path, bool verify) {
  if (verify) TP_RETURN_IF_ERROR(VerifyCheckpoint(path));
  TP_ASSIGN_OR_RETURN(const Manifest manifest, OpenCheckpoint(path));
  LoadedCheckpoint loaded;
  loaded.path_ = path;
  loaded.step_ = manifest.step;
  TP_ASSIGN_OR_RETURN(WeightsFile masters, WeightsFile::Open(path + "/" + kMasterFile));
  loaded.masters_ = std::make_unique<const WeightsFile>(std::move(masters));

  if (std::filesystem::exists(path + "/" + kNoteFile)) {
    TP_ASSIGN_OR_RETURN(loaded.note_, ReadWhole(path + "/" + kNoteFile));
  }
  if (!std::filesystem::exists(path + "/" + kMomentsFile)) return loaded;
  TP_ASSIGN_OR_RETURN(WeightsFile moments, WeightsFile::Open(path + "/" + kMomentsFile));
  loaded.moments_ = std::make_unique<const WeightsFile>(std::move(moments));
  return loaded;
}

client::BeginPoint LoadedCheckpoint::point() const {
  return {.version = step_.version,
          .optimizer_step = step_.optimizer_step,
          .data_cursor = step_.data_cursor,
          .loss_scale = step_.loss_scale,
          .scaler_steps = step_.scaler_steps,
          .random_state = step_.random_state};
}

Status LoadedCheckpoint::Read(const client::JobSpec& spec, ParameterId id, uint32_t plane,
                              std::span<float> values) const {
  const client::ParameterSpec& parameter = spec.parameters[id];
  const WeightsFile* file = plane == 0 ? masters_.get() : moments_.get();
  if (file == nullptr)
    return Status(ErrorId::kCheckpointBad, "the checkpoint holds no moments").Where(path_);
  TP_ASSIGN_OR_RETURN(const SafetensorsEntry* tensor,
                      file->Expect(parameter.name + SuffixOf(plane), parameter.dims));

  const bool narrow = plane != 0 && spec.StatesOf(parameter.chunk) == StateForm::kSplitBf16;
  if (narrow && tensor->dtype != "BF16") {
    return Status(ErrorId::kDataBad, "the moments of the checkpoint are " + tensor->dtype +
                                         ", and --states split-bf16 would round them")
        .Where(file->path() + ", " + tensor->name)
        .Fix("go on with the form of states that the checkpoint has");
  }

  return file->Read(*tensor, 0, values);
}

Result<std::string> CheckpointToResume(const RunOptions& options) {
  const std::string& resume = options.job.resume;
  const bool automatic = resume == "auto" && !options.checkpoint.dir.empty();
  if (resume.empty() || resume == "never" || (resume == "auto" && !automatic)) return std::string();
  if (resume != "auto" && resume != "latest") return resume;
  if (options.checkpoint.dir.empty()) {
    return Usage("--resume latest needs --checkpoint-dir")
        .Fix("give --checkpoint-dir DIR, or name the checkpoint itself: --resume DIR/step-...");
  }

  TP_ASSIGN_OR_RETURN(const auto found, FindCheckpoints(options.checkpoint.dir));
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    if (it->state.ok()) return it->path;
  }
  if (automatic) return std::string();
  return Status(ErrorId::kCheckpointBad, "there is no whole checkpoint")
      .Where(options.checkpoint.dir)
      .Fix("leave --resume out to begin at step 1");
}

Status CheckCheckpoints(const RunOptions& options) {
  const CheckpointOptions& checkpoint = options.checkpoint;
  const std::string& resume = options.job.resume;
  const bool from = !resume.empty() && resume != "auto" && resume != "never";
  if (options.adapters.rank > 0 && (checkpoint.every > 0 || from))
    return Usage("checkpoints of adapters are not written; --save DIR keeps them");
  // Reported before training, not when a step's checkpoint finds no writer.
  if (checkpoint.every > 0) TP_RETURN_IF_ERROR(FindProgramBeside(kCheckpointProgram).status());
  return {};
}

}  // namespace tidepool::trainer
