#include "client/checkpoint/write_states.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>

#include "base/checkpoint/read_whole.h"
#include "base/point.h"
#include "base/system/futex.h"
#include "shm/messages.h"
#include "shm/segment.h"
#include "shm/state_stream.h"

namespace tidepool::client {
namespace {

constexpr const char* kFirstLine = "tidepool-plan 1";

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

const char* SuffixOf(uint32_t plane) {
  if (plane == shm::kPutMaster) return "";
  return plane == shm::kPutMomentum ? kFirstMoment : kSecondMoment;
}

const char* FileOf(uint32_t plane) {
  return plane == shm::kPutMaster ? kMasterFile : kMomentsFile;
}

std::vector<CheckpointTensor> TensorsOf(const StatesPlan& plan) {
  std::vector<CheckpointTensor> tensors;
  for (const PlannedParameter& parameter : plan.parameters) {
    tensors.push_back({kMasterFile, parameter.name, "F32", parameter.dims});
    for (const uint32_t plane : {shm::kPutMomentum, shm::kPutVariance}) {
      if (!plan.Has(plane)) continue;
      tensors.push_back(
          {kMomentsFile, parameter.name + SuffixOf(plane), parameter.moment_dtype, parameter.dims});
    }
  }
  return tensors;
}

// Moves the states from the stream to the files.
class Drain {
 public:
  Drain(Clock* clock, std::byte* memory, const StatesPlan& plan, CheckpointWriter* writer)
      : clock_(clock), memory_(memory), head_(shm::HeadOf(memory)), plan_(plan), writer_(writer) {}

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
    const int64_t end = clock_->NowNs() + 6 * shm::kStreamStuckNs;
    for (;;) {
      const uint32_t given = head_->given.load(std::memory_order_acquire);
      const auto ended = static_cast<shm::StreamEnd>(head_->end.load(std::memory_order_acquire));
      if (ended == shm::StreamEnd::kFailed)
        return Status(ErrorId::kSaveFailed, "memserver has given the save up; its log says why");
      if (ended == shm::StreamEnd::kWhole) return taken_ != head_->pieces;

      if (given != taken_) return true;
      if (clock_->NowNs() > end)
        return Status(ErrorId::kSaveFailed, "no states come from memserver any more");
      WaitOnWord(&head_->given, given, kNsPerSecond);
    }
  }

  Status TakePiece() {
    const shm::StreamPiece piece = *shm::PieceOf(memory_, taken_);
    if (piece.parameter >= plan_.parameters.size() || !plan_.Has(piece.plane) ||
        piece.bytes > shm::kStreamSlotBytes)
      return Status(ErrorId::kDataBad, "a piece came from memserver that fits no plan");
    return writer_->Write(FileOf(piece.plane),
                          plan_.parameters[piece.parameter].name + SuffixOf(piece.plane),
                          {shm::SlotOf(memory_, taken_), piece.bytes});
  }

  Clock* const clock_;
  std::byte* const memory_;
  shm::StreamHead* const head_;
  const StatesPlan& plan_;
  CheckpointWriter* const writer_;
  uint32_t taken_ = 0;
};

Status WriteInto(const WriteTask& task, std::byte* memory) {
  const std::string plan_path = task.partial + "/" + kPlanFile;
  TP_ASSIGN_OR_RETURN(const std::string text, ReadWhole(plan_path));
  TP_ASSIGN_OR_RETURN(const StatesPlan plan, ReadPlan(text));
  std::error_code error;
  std::filesystem::remove(plan_path, error);
  TP_ASSIGN_OR_RETURN(CheckpointWriter writer,
                      CheckpointWriter::Begin(task.partial, TensorsOf(plan), task.fault));
  TP_RETURN_IF_ERROR(Drain(task.clock, memory, plan, &writer).All());

  const shm::StreamHead& head = *shm::HeadOf(memory);
  return writer.Commit({.version = head.version,
                        .optimizer_step = head.optimizer_step,
                        .data_cursor = head.data_cursor,
                        .random_state = head.random_state,
                        .scaler_steps = head.scaler_steps,
                        .loss_scale = head.loss_scale});
}

}  // namespace

std::string TextOf(const StatesPlan& plan) {
  std::ostringstream text;
  text << kFirstLine << "\nmoments " << plan.moments << "\n";
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
  Status written = WriteInto(task, memory->data());
  // Releases updates that wait for this reader.
  shm::StreamHead* const head = shm::HeadOf(memory->data());
  head->left.store(1, std::memory_order_release);
  WakeWord(&head->taken);

  if (!written.ok()) {
    std::error_code error;
    std::filesystem::remove_all(task.partial, error);
    return written;
  }
  TP_POINT("writer.done");
  if (task.keep == 0) return {};
  return PruneCheckpoints(std::filesystem::path(task.partial).parent_path(), task.keep).status();
}

}  // namespace tidepool::client
