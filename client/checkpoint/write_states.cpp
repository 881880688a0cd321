#include "client/checkpoint/write_states.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/checkpoint/read_whole.h"
#include "base/formats/optimizer.h"
#include "base/point.h"
#include "base/system/futex.h"
#include "base/system/whole_file.h"
#include "shm/messages.h"
#include "shm/segment.h"
#include "shm/state_stream.h"

namespace tidepool::client {
namespace {

constexpr const char* kFirstLine = "tidepool-plan 1";
// Types of 8-bit moments: the first moment, and the square root of the second.
constexpr const char* kCodes = "I8";
constexpr const char* kRootCodes = "U8";

Status BadPlan(const std::string& line) {
  return Status(ErrorId::kDataBad, "the plan of a checkpoint has a line that is not understood")
      .Where(line);
}

bool ReadDims(std::string_view text, std::vector<uint64_t>* dims) {
  if (text == "-") return true;
  while (!text.empty()) {
    uint64_t dim = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), dim);
    if (read.ec != std::errc()) return false;
    dims->push_back(dim);
    text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));

    if (!text.empty() && text[0] != ',') return false;
    if (!text.empty()) text.remove_prefix(1);
  }
  return !dims->empty();
}

std::string FileOf(const StatesPlan& plan, uint32_t plane) {
  return plane == shm::kPutMaster ? plan.weights : kMomentsFile;
}

std::vector<CheckpointTensor> TensorsOf(const StatesPlan& plan) {
  std::vector<CheckpointTensor> tensors;
  for (uint32_t id = 0; id < plan.parameters.size(); ++id) {
    const PlannedParameter& parameter = plan.parameters[id];
    const std::vector<uint64_t>& dims = parameter.dims;
    tensors.push_back({plan.weights, parameter.name, "F32", dims});
    for (uint32_t plane = shm::kPutMomentum; plane <= shm::kPutMax; ++plane) {
      if (!plan.Has(id, plane)) continue;
      CheckpointTensor tensor{kMomentsFile, parameter.name + SuffixOfPlane(plane),
                              parameter.moment_dtype, dims};
      if (plane == shm::kPutVariance && tensor.dtype == kCodes) tensor.dtype = kRootCodes;

      if (shm::IsScales(plane)) {
        const uint64_t elements =
            std::accumulate(dims.begin(), dims.end(), uint64_t{1}, std::multiplies<>());
        tensor.dtype = "F32";
        tensor.shape = {DivideUp(elements, kScaleBlockElements)};
      }
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

// Moves the states from the stream to the files.
class Drain {
 public:
  Drain(const WriteTask& task, std::byte* memory, const StatesPlan& plan, CheckpointWriter* writer)
      : task_(task), memory_(memory), head_(shm::HeadOf(memory)), plan_(plan), writer_(writer) {}

  Status All() {
    for (;;) {
      TP_ASSIGN_OR_RETURN(const bool more, Await());
      if (!more) return {};
      TP_RETURN_IF_ERROR(TakePiece());
      head_->taken.store(++taken_, std::memory_order_release);
      WakeWord(&head_->taken);
    }
  }

 private:
  // False at the end of the stream.
  Result<bool> Await() {
    const int64_t end = task_.clock->NowNs() + 6 * shm::kStreamStuckNs;
    for (;;) {
      const uint32_t given = head_->given.load(std::memory_order_acquire);
      const auto ended = static_cast<shm::StreamEnd>(head_->end.load(std::memory_order_acquire));
      if (ended == shm::StreamEnd::kFailed)
        return Status(ErrorId::kSaveFailed, "memserver has given the save up; its log says why");
      if (ended == shm::StreamEnd::kWhole) return taken_ != head_->pieces;

      if (given != taken_) return true;
      if (task_.look) TP_RETURN_IF_ERROR(task_.look());
      if (task_.clock->NowNs() > end)
        return Status(ErrorId::kSaveFailed, "no states come from memserver any more");
      WaitOnWord(&head_->given, given, kNsPerSecond);
    }
  }

  Status TakePiece() {
    const shm::StreamPiece piece = *shm::PieceOf(memory_, taken_);
    if (piece.parameter >= plan_.parameters.size() || !plan_.Has(piece.parameter, piece.plane) ||
        piece.bytes > shm::kStreamSlotBytes)
      return Status(ErrorId::kDataBad, "a piece came from memserver that fits no plan");
    return writer_->Write(FileOf(plan_, piece.plane),
                          plan_.parameters[piece.parameter].name + SuffixOfPlane(piece.plane),
                          {shm::SlotOf(memory_, taken_), piece.bytes});
  }

  const WriteTask& task_;
  std::byte* const memory_;
  shm::StreamHead* const head_;
  const StatesPlan& plan_;
  CheckpointWriter* const writer_;
  uint32_t taken_ = 0;
};

// Copies the trainer's staged files, except the plan, into the checkpoint.
Status TakeStaged(const WriteTask& task, const std::string& partial) {
  namespace fs = std::filesystem;
  for (const auto& [name, text] : task.files)
    TP_RETURN_IF_ERROR(WriteWholeFile(partial + "/" + name, text));
  if (task.plan) return {};

  std::error_code error;
  for (fs::directory_iterator entry(task.staged, error); !error && entry != fs::end(entry);
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name == kPlanFile) continue;
    TP_ASSIGN_OR_RETURN(const std::string text, ReadWhole(entry->path()));
    TP_RETURN_IF_ERROR(WriteWholeFile(partial + "/" + name, text));
  }

  if (!error) fs::remove_all(task.staged, error);
  return error ? Status(ErrorId::kSaveFailed, "cannot be taken: " + error.message())
                     .Where(task.staged)
               : Status();
}

Result<StatesPlan> PlanFor(const WriteTask& task) {
  if (task.plan) return *task.plan;
  TP_ASSIGN_OR_RETURN(const std::string text, ReadWhole(task.staged + "/" + kPlanFile));
  return ReadPlan(text);
}

Status WriteInto(const WriteTask& task, PartialCheckpoint* partial, std::byte* memory) {
  TP_ASSIGN_OR_RETURN(const StatesPlan plan, PlanFor(task));
  std::error_code error;
  std::filesystem::create_directories(task.folder, error);
  if (error)
    return Status(ErrorId::kSaveFailed, "cannot make the directory: " + error.message())
        .Where(task.folder);
  TP_RETURN_IF_ERROR(RemovePartials(task.folder));
  TP_ASSIGN_OR_RETURN(*partial, PartialCheckpoint::Make(task.folder, task.name));

  TP_RETURN_IF_ERROR(TakeStaged(task, partial->path()));
  TP_ASSIGN_OR_RETURN(
      CheckpointWriter writer,
      CheckpointWriter::Begin(partial->path(), TensorsOf(plan), task.fault, plan.metadata));
  TP_RETURN_IF_ERROR(Drain(task, memory, plan, &writer).All());

  const shm::StreamHead& head = *shm::HeadOf(memory);
  return writer.Commit({.version = head.version,
                        .optimizer_step = head.optimizer_step,
                        .data_cursor = head.data_cursor,
                        .random_state = head.random_state,
                        .scaler_steps = head.scaler_steps,
                        .loss_scale = head.loss_scale});
}

}  // namespace

bool StatesPlan::Has(uint32_t parameter, uint32_t plane) const {
  if (plane == shm::kPutMaster) return true;
  if (plane > shm::kPutMax || (moments & (shm::IsOfMomentum(plane) ? 1 : 2)) == 0) return false;
  return !shm::IsScales(plane) || parameters[parameter].moment_dtype == kCodes;
}

const char* MomentTypeOf(StateForm form) {
  return form == StateForm::kSplit8 ? kCodes : form == StateForm::kSplitBf16 ? "BF16" : "F32";
}

StatesPlan PlanOf(const shm::JobSpec& spec, const std::optional<std::string>& base) {
  StatesPlan plan;
  if (base) plan.weights = kAdaptersFile;
  if (base && !base->empty()) plan.metadata = {{kBaseHashKey, *base}};
  plan.moments =
      (NeedsMomentum(spec.optimizer) ? 1U : 0) | (NeedsVariance(spec.optimizer) ? 2U : 0);
  for (const shm::ParameterSpec& parameter : spec.parameters)
    plan.parameters.push_back(
        {parameter.name, MomentTypeOf(spec.StatesOf(parameter.chunk)), parameter.dims});
  return plan;
}

std::string TextOf(const StatesPlan& plan) {
  std::ostringstream text;
  text << kFirstLine << "\nweights " << plan.weights << "\nmoments " << plan.moments << "\n";
  for (const auto& [key, value] : plan.metadata) text << "metadata " << key << " " << value << "\n";

  for (const PlannedParameter& parameter : plan.parameters) {
    text << "parameter " << parameter.moment_dtype << " ";
    if (parameter.dims.empty()) text << "-";
    for (size_t i = 0; i < parameter.dims.size(); ++i)
      text << (i > 0 ? "," : "") << parameter.dims[i];
    text << " " << parameter.name << "\n";
  }
  return text.str();
}

Result<StatesPlan> ReadPlan(const std::string& text) {
  std::istringstream in(text);
  std::string line, key, dims;
  StatesPlan plan;
  if (!std::getline(in, line) || line.compare(kFirstLine) != 0) return BadPlan(line);
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    fields >> key;

    if (key == "moments") {
      fields >> plan.moments;
      if (!fields || plan.moments > 3) return BadPlan(line);
      continue;
    }
    if (key == "weights") {
      fields >> plan.weights;
      if (plan.weights != kMasterFile && plan.weights != kAdaptersFile) return BadPlan(line);
      continue;
    }

    if (key == "metadata") {
      auto& [name, value] = plan.metadata.emplace_back();
      fields >> name >> std::ws;
      if (!std::getline(fields, value)) return BadPlan(line);
      continue;
    }

    PlannedParameter parameter;
    fields >> parameter.moment_dtype >> dims;

    fields.get();
    std::getline(fields, parameter.name);
    if (key != "parameter" || parameter.name.empty() || !ReadDims(dims, &parameter.dims))
      return BadPlan(line);
    plan.parameters.push_back(std::move(parameter));
  }
  return plan;
}

Status WriteStates(WriteTask task) {
  TP_ASSIGN_OR_RETURN(
      const std::unique_ptr<shm::Segment> memory,
      shm::Segment::Map(std::move(task.memory), shm::kStreamBytes, shm::PeerAccess::kReadWrite));
  PartialCheckpoint partial;
  shm::StreamHead* const head = shm::HeadOf(memory->data());
  head->here.store(1, std::memory_order_release);
  Status written = WriteInto(task, &partial, memory->data());
  // Releases updates that wait for this reader.
  head->left.store(1, std::memory_order_release);
  WakeWord(&head->taken);

  if (!written.ok()) {
    std::error_code error;
    if (!task.staged.empty()) std::filesystem::remove_all(task.staged, error);
    partial.Remove();
    return written;
  }
  TP_POINT("writer.done");
  if (task.keep == 0) return {};
  return PruneCheckpoints(task.folder, task.keep).status();
}

}  // namespace tidepool::client
