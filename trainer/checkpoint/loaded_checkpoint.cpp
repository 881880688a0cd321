#include "trainer/checkpoint/loaded_checkpoint.h"

#include <bit>
#include <cstddef>
#include <filesystem>
#include <utility>

#include "base/checkpoint/checkpoint_files.h"
#include "base/checkpoint/read_whole.h"
#include "base/formats/optimizer.h"
#include "base/units.h"
#include "client/checkpoint/write_states.h"
#include "trainer/launch/child_process.h"

namespace tidepool::trainer {
namespace {

// Planes are numbered as in client::Range.
constexpr uint32_t kMomentum = 1, kVariance = 2, kMomentumScales = 3, kVarianceScales = 4;

const char* TypeOfPlane(StateForm form, uint32_t plane) {
  if (plane == kMomentumScales || plane == kVarianceScales) return "F32";
  return form == StateForm::kSplit8 && plane == kVariance ? "U8" : client::MomentTypeOf(form);
}

Status Usage(const std::string& what) {
  return Status(ErrorId::kUsageError, what).Where("command line of trainer");
}

}  // namespace

std::vector<uint32_t> MomentPlanesOf(const client::JobSpec& spec) {
  const bool scaled = spec.optimizer.states == StateForm::kSplit8;
  std::vector<uint32_t> planes;
  if (NeedsMomentum(spec.optimizer)) planes.push_back(kMomentum);
  if (NeedsVariance(spec.optimizer)) planes.push_back(kVariance);
  if (NeedsMomentum(spec.optimizer) && scaled) planes.push_back(kMomentumScales);
  if (NeedsVariance(spec.optimizer) && scaled) planes.push_back(kVarianceScales);
  return planes;
}

Result<LoadedCheckpoint> LoadedCheckpoint::Open(const std::string& path, bool verify) {
  if (verify) TP_RETURN_IF_ERROR(VerifyCheckpoint(path));
  TP_ASSIGN_OR_RETURN(const Manifest manifest, OpenCheckpoint(path));
  LoadedCheckpoint loaded;
  loaded.path_ = path;
  loaded.step_ = manifest.step;
  const bool adapters = std::filesystem::exists(path + "/" + kAdaptersFile);
  TP_ASSIGN_OR_RETURN(WeightsFile masters,
                      WeightsFile::Open(path + "/" + (adapters ? kAdaptersFile : kMasterFile)));
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

  const StateForm form = spec.StatesOf(parameter.chunk);
  const SafetensorsEntry* const found = file->Find(parameter.name + SuffixOfPlane(plane));
  const bool rounds = found != nullptr && plane != 0 && form != StateForm::kF32 &&
                      form != StateForm::kSplit && found->dtype != TypeOfPlane(form, plane);

  const bool codes = found != nullptr && (found->dtype == "I8" || found->dtype == "U8");
  if (rounds || (codes && form != StateForm::kSplit8)) {
    return Status(ErrorId::kDataBad, "the moments of the checkpoint are " + found->dtype +
                                         ", and those of --states " + NameOf(form) + " are " +
                                         TypeOfPlane(form, plane))
        .Where(file->path() + ", " + found->name)
        .Why("they would be rounded")
        .Fix("go on with the form of states that the checkpoint has");
  }

  if (plane != 0 && form == StateForm::kSplit8) return ReadCodes(parameter, plane, values);
  TP_ASSIGN_OR_RETURN(const SafetensorsEntry* tensor,
                      file->Expect(parameter.name + SuffixOfPlane(plane), parameter.dims));
  return file->Read(*tensor, 0, values);
}

// Reads one code per word; a scale is repeated for each element of its block.
Status LoadedCheckpoint::ReadCodes(const client::ParameterSpec& parameter, uint32_t plane,
                                   std::span<float> values) const {
  const std::string name = parameter.name + SuffixOfPlane(plane);
  if (plane == kMomentumScales || plane == kVarianceScales) {
    std::vector<float> scales(DivideUp(values.size(), kScaleBlockElements));
    TP_ASSIGN_OR_RETURN(const SafetensorsEntry* tensor, moments_->Expect(name, {scales.size()}));
    TP_RETURN_IF_ERROR(moments_->Read(*tensor, 0, scales));
    for (size_t i = 0; i < values.size(); ++i) values[i] = scales[i / kScaleBlockElements];
    return {};
  }

  const SafetensorsEntry* const tensor = moments_->Find(name);
  if (tensor == nullptr) return moments_->Expect(name, parameter.dims).status();
  if (tensor->shape != parameter.dims)
    return Status(ErrorId::kDataBad, "tensor " + name + " has another shape than the parameter")
        .Where(moments_->path());
  std::vector<std::byte> codes(values.size());
  TP_RETURN_IF_ERROR(moments_->ReadRaw(*tensor, codes));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::bit_cast<float>(std::to_integer<uint32_t>(codes[i]));
  return {};
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
  // Reported before training, not when a step's checkpoint finds no writer.
  if (checkpoint.every > 0) TP_RETURN_IF_ERROR(FindProgramBeside(kCheckpointProgram).status());
  return {};
}

}  // namespace tidepool::trainer
