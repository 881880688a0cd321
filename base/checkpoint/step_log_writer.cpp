#include "base/checkpoint/step_log_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/formats/crc32c.h"
#include "base/planted.h"
#include "base/point.h"

namespace tidepool {
namespace {

constexpr mode_t kLogFileMode = 0600;

}  // namespace

int StepLogWriter::Fault(const char* operation, const std::string& path) const {
  return parts_.fault ? parts_.fault(operation, path) : 0;
}

Status StepLogWriter::Failed(const std::string& path, int error) const {
  return Status(ErrorId::kSaveFailed,
                "the log of steps cannot be written: " + std::string(std::strerror(error)))
      .Where(path)
      .Why("steps up to " + std::to_string(synced()) + " are safe, later ones only by checkpoints");
}

std::shared_ptr<const StepLogWriter::File> StepLogWriter::current() {
  const std::scoped_lock lock(mutex_);
  return file_;
}

Result<std::unique_ptr<StepLogWriter>> StepLogWriter::Begin(Parts parts) {
  std::unique_ptr<StepLogWriter> writer(new StepLogWriter(std::move(parts)));
  std::error_code error;
  std::filesystem::create_directories(writer->parts_.folder, error);
  if (error) return writer->Failed(writer->parts_.folder, error.value());
  writer->previous_ = writer->parts_.previous;
  TP_RETURN_IF_ERROR(writer->NewSegment());
  return writer;
}

// Its head and its name are on the drive before a step is.
Status StepLogWriter::NewSegment() {
  const uint64_t base = appended();
  auto file = std::make_shared<File>();
  file->path = parts_.folder + "/" + SegmentName(base, parts_.run);
  int error = Fault("create", file->path);
  if (error == 0) {
    file->fd = UniqueFd(
        open(file->path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kLogFileMode));

    error = file->fd.valid() ? 0 : errno;
  }
  if (error != 0) return Failed(file->path, error);
  {
    const std::scoped_lock lock(mutex_);
    file_ = file;
  }

  at_ = 0;
  segment_base_.store(base, std::memory_order_release);
  StepFrame head{.kind = StepFrame::kBegin, .version = base, .parameter = parts_.model};
  // Only a run's first segment follows another run.
  head.extra = std::exchange(previous_, 0);
  TP_RETURN_IF_ERROR(Append(head, {}));
  TP_RETURN_IF_ERROR(Sync());
  TP_RETURN_IF_ERROR(SyncDirectory(parts_.folder));
  TP_POINT("writer.log_begun");
  return {};
}

Status StepLogWriter::SyncDirectory(const std::string& path) {
  int error = Fault("syncdir", path);
  if (error == 0) {
    const UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    error = directory.valid() && fsync(directory.get()) == 0 ? 0 : errno;
  }
  return error == 0 ? Status() : Failed(path, error);
}

Status StepLogWriter::Write(std::span<const std::byte> bytes, uint64_t at) {
  while (!bytes.empty()) {
    const int error = Fault("write", file_->path);
    const ssize_t n =
        error == 0 ? pwrite(file_->fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(at))
                   : -1;

    if (error == 0 && n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed(file_->path, error != 0 ? error : n == 0 ? EIO : errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  return {};
}

Status StepLogWriter::Append(StepFrame frame, std::span<const std::byte> payload) {
  frame.run = parts_.run;
  frame.bytes = payload.size();
  frame.payload_crc = Crc32c(payload);
  Close(&frame);
  TP_RETURN_IF_ERROR(Write(std::as_bytes(std::span<const StepFrame, 1>(&frame, 1)), at_));
  TP_RETURN_IF_ERROR(Write(payload, at_ + sizeof frame));
  const uint64_t end = at_ + sizeof frame + payload.size();
  bytes_ += end - at_;
  at_ = (end + kStepFrameAlign - 1) / kStepFrameAlign * kStepFrameAlign;
  return {};
}

Status StepLogWriter::Gradients(uint32_t parameter, uint64_t first,
                                std::span<const std::byte> bytes) {
  step_bytes_ += bytes.size();
  TP_RETURN_IF_ERROR(Append({.kind = StepFrame::kGradients,
                             .version = appended() + 1,
                             .first = first,
                             .parameter = parameter},
                            bytes));
  TP_POINT("writer.gradients_logged");
  return {};
}

Status StepLogWriter::EndStep(const LoggedStep& step) {
  if (step.version != appended() + 1)
    return Status(ErrorId::kDataBad, "step " + std::to_string(step.version) + " came after step " +
                                         std::to_string(appended()));

  TP_RETURN_IF_ERROR(Append({.kind = StepFrame::kStep,
                             .version = step.version,
                             .first = std::exchange(step_bytes_, 0),
                             .extra = synced()},
                            std::as_bytes(std::span<const LoggedStep, 1>(&step, 1))));
  appended_.store(step.version, std::memory_order_release);
  TP_POINT("writer.step_logged");
  return {};
}

Status StepLogWriter::Sync() {
  // Steps of a segment before the current one were synced before it was made.
  const uint64_t version = appended();
  const std::shared_ptr<const File> file = current();
  const bool syncs = !TP_PLANTED("checkpoint.log_not_synced");
  int error = syncs ? Fault("sync", file->path) : 0;
  if (error == 0 && syncs) error = fdatasync(file->fd.get()) == 0 ? 0 : errno;
  if (error != 0) return Failed(file->path, error);
  // The other thread may have synced later steps meanwhile.
  uint64_t before = synced();
  while (before < version && !synced_.compare_exchange_weak(before, version)) {
  }
  TP_POINT("writer.log_synced");
  return {};
}

Status StepLogWriter::Roll() {
  TP_RETURN_IF_ERROR(Sync());
  return NewSegment();
}

Status StepLogWriter::End() {
  TP_RETURN_IF_ERROR(Sync());
  TP_RETURN_IF_ERROR(
      Append({.kind = StepFrame::kEnd, .version = appended(), .extra = synced()}, {}));
  return Sync();
}

Status StepLogWriter::Trim(uint64_t whole) {
  TP_ASSIGN_OR_RETURN(const std::vector<StepSegment> segments, FindSegments(parts_.folder));
  for (size_t i = 0; i < segments.size(); ++i) {
    const StepSegment& segment = segments[i];
    // The steps of an own segment end where the next one begins.
    const bool followed = std::any_of(segments.begin(), segments.end(), [&](const auto& next) {
      return next.run == parts_.run && next.base > segment.base && next.base <= whole;
    });
    if (segment.run == parts_.run && !followed) continue;
    int error = Fault("remove", segment.path);
    if (error == 0) error = unlink(segment.path.c_str()) == 0 || errno == ENOENT ? 0 : errno;
    if (error != 0) return Failed(segment.path, error);
    TP_POINT("writer.log_trimmed");
  }
  return {};
}

}  // namespace tidepool
