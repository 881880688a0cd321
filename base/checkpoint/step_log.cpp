#include "base/checkpoint/step_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/formats/crc32c.h"
#include "base/planted.h"

namespace tidepool {
namespace {

constexpr uint64_t kLogReadBytes = 4 << 20;

uint64_t AlignUp(uint64_t at) {
  return (at + kStepFrameAlign - 1) / kStepFrameAlign * kStepFrameAlign;
}

Status Unreadable(const std::string& path, int error) {
  return Status(ErrorId::kFileUnreadable,
                "cannot be read: " + std::string(error == 0 ? "it ended" : std::strerror(error)))
      .Where(path);
}

// Reads exactly these bytes; 0, or the error (EIO for a file that ends before).
int ReadAt(int fd, uint64_t at, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n == 0 ? EIO : errno;
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  return 0;
}

}  // namespace

// Walks through the frames of one segment.
class StepLog::Segment {
 public:
  static Result<Segment> Open(const StepSegment& name) {
    Segment segment(name);
    auto fd = std::make_shared<UniqueFd>(open(name.path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat is {};
    if (!fd->valid() || fstat(fd->get(), &is) != 0) return Unreadable(name.path, errno);
    segment.fd_ = std::move(fd);
    segment.bytes_ = static_cast<uint64_t>(is.st_size);
    return segment;
  }

  // The next whole frame of this run; nothing at the end, and where the bytes are none. Errors:
  // kFileUnreadable.
  Result<std::optional<StepFrame>> Next() {
    StepFrame frame;
    if (bytes_ - at_ < sizeof frame) return std::optional<StepFrame>();
    const int error =
        ReadAt(fd_->get(), at_, std::as_writable_bytes(std::span<StepFrame, 1>(&frame, 1)));
    if (error != 0) return Unreadable(name_.path, error);
    if (!IsWhole(frame) || frame.run != name_.run || frame.bytes > bytes_ - at_ - sizeof frame)
      return std::optional<StepFrame>();
    payload_at_ = at_ + sizeof frame;
    at_ = std::min(AlignUp(payload_at_ + frame.bytes), bytes_);
    return std::optional<StepFrame>(frame);
  }

  // True if the bytes behind the frame that Next gave have their check.
  Result<bool> HasCheck(const StepFrame& frame) {
    buffer_.resize(std::min(frame.bytes, kLogReadBytes));
    uint32_t crc = 0;
    for (uint64_t done = 0; done < frame.bytes; done += buffer_.size()) {
      const std::span part =
          std::span(buffer_).first(std::min<uint64_t>(buffer_.size(), frame.bytes - done));
      if (const int error = ReadAt(fd_->get(), payload_at_ + done, part); error != 0)
        return Unreadable(name_.path, error);
      crc = Crc32c(part, crc);
    }
    return crc == frame.payload_crc;
  }

  Result<LoggedStep> Step() const {
    LoggedStep step;
    const int error =
        ReadAt(fd_->get(), payload_at_, std::as_writable_bytes(std::span<LoggedStep, 1>(&step, 1)));
    if (error != 0) return Unreadable(name_.path, error);
    return step;
  }

  // True if a frame from byte `from` on says that the step of this version was synced.
  Result<bool> SaysSynced(uint64_t from, uint64_t version) {
    from = AlignUp(from);
    buffer_.resize(kLogReadBytes + sizeof(StepFrame));
    for (; bytes_ - std::min(from, bytes_) >= sizeof(StepFrame); from += kLogReadBytes) {
      const std::span part =
          std::span(buffer_).first(std::min<uint64_t>(buffer_.size(), bytes_ - from));
      if (const int error = ReadAt(fd_->get(), from, part); error != 0)
        return Unreadable(name_.path, error);

      for (uint64_t i = 0; i + sizeof(StepFrame) <= part.size(); i += kStepFrameAlign) {
        StepFrame frame;
        std::memcpy(&frame, part.data() + i, sizeof frame);
        const bool tells = frame.kind == StepFrame::kStep || frame.kind == StepFrame::kEnd;
        if (frame.magic == kStepFrameMagic && tells && IsWhole(frame) && frame.run == name_.run &&
            frame.extra >= version)
          return true;
      }
    }
    return false;
  }

  const StepSegment& name() const { return name_; }
  const std::shared_ptr<const UniqueFd>& file() const { return fd_; }
  uint64_t at() const { return at_; }
  uint64_t payload_at() const { return payload_at_; }
  uint64_t bytes() const { return bytes_; }

 private:
  explicit Segment(StepSegment name) : name_(std::move(name)) {}
  StepSegment name_;
  std::shared_ptr<const UniqueFd> fd_;
  uint64_t bytes_ = 0, at_ = 0, payload_at_ = 0;
  std::vector<std::byte> buffer_;
};

namespace {

Status Damaged(const std::string& path, uint64_t at, uint64_t version, const std::string& what) {
  return Status(ErrorId::kCheckpointBad,
                "step " + std::to_string(version) + " of the log of steps is damaged: " + what)
      .Where(path + ", byte " + std::to_string(at))
      .Why("the step was on the drive, and is not what was written")
      .Fix(
          "name the checkpoint itself, --resume DIR/step-..., to go on behind it without the "
          "logged steps");
}

}  // namespace

// True if this run has a segment for later steps, and none for those behind the present version.
bool StepLog::LacksSegment() const {
  const auto is_own = [this](const StepSegment& segment) { return segment.run == run_; };
  const auto next = std::find_if(segments_.begin(), segments_.end(), [&](const auto& segment) {
    return is_own(segment) && segment.base >= version() && segment.base > task_.base;
  });
  return next != segments_.end() && next->base != version();
}

std::vector<size_t> StepLog::BranchesAt(uint64_t version) const {
  std::vector<size_t> branches;
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (!tried_[i] && segments_[i].base == version && previous_[i] == run_) branches.push_back(i);
  }
  return branches;
}

// Splits runs into parts of one parameter each, by parameter.
std::vector<StepLog::Extent> StepLog::ExtentsOf(const std::vector<Run>& runs) const {
  std::vector<Extent> extents;
  for (const Run& run : runs) {
    uint64_t first = run.first, at = run.at, left = run.bytes;

    for (uint32_t p = run.parameter; left > 0 && p < task_.gradient_bytes.size(); ++p) {
      if (first > task_.gradient_bytes[p]) return {};
      const uint64_t some = std::min(left, task_.gradient_bytes[p] - first);
      if (some > 0) extents.push_back({p, first, some, at});
      at += some;
      left -= some;
      first = 0;
    }
    if (left > 0) return {};
  }

  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.parameter, a.first) < std::pair(b.parameter, b.first);
  });
  return extents;
}

// True if the runs have each byte of each gradient, once.
bool StepLog::HasAll(const std::vector<Run>& runs) const {
  const std::vector<Extent> extents = ExtentsOf(runs);
  size_t next = 0;

  for (uint32_t p = 0; p < task_.gradient_bytes.size(); ++p) {
    uint64_t have = 0;
    for (; next < extents.size() && extents[next].parameter == p; ++next) {
      if (extents[next].first != have) return false;
      have += extents[next].bytes;
    }
    if (have != task_.gradient_bytes[p]) return false;
  }
  return next == extents.size();
}

// Takes the next frame of the open step; false: it is none of it, and `what` may say more.
Result<bool> StepLog::Take(Segment* segment, const StepFrame& frame, Place* place,
                           std::string* what) {
  if (frame.version != version() + 1) return false;
  if (frame.kind == StepFrame::kGradients) {
    place->runs.push_back({frame.parameter, frame.first, frame.bytes, segment->payload_at()});
    if (!task_.checks_gradients || TP_PLANTED("checkpoint.gradients_unchecked")) return true;
    TP_ASSIGN_OR_RETURN(const bool has_check, segment->HasCheck(frame));
    if (!has_check) *what = "gradients from parameter " + std::to_string(frame.parameter) + " on";
    return has_check;
  }

  if (frame.kind != StepFrame::kStep || frame.bytes != sizeof(LoggedStep)) return false;
  TP_ASSIGN_OR_RETURN(const bool has_check, segment->HasCheck(frame));
  if (!has_check) return false;
  TP_ASSIGN_OR_RETURN(const LoggedStep step, segment->Step());
  const bool whole = step.skipped != 0 ? place->runs.empty() : HasAll(place->runs);
  if (step.version != frame.version || !whole) return false;

  for (const Run& run : place->runs) bytes_ += run.bytes;
  steps_.push_back(step);
  places_.push_back(std::exchange(*place, {segment->file(), {}}));
  return true;
}

// Reads the steps of a segment that follow the present version, to its end, or up to where another
// run goes on. False: the segment has none. A branch is looked at, and read if it has a whole step.
Result<bool> StepLog::ReadSegment(size_t index, bool is_branch) {
  const StepSegment& name = segments_[index];
  if (tried_[index]) return false;
  tried_[index] = true;
  TP_ASSIGN_OR_RETURN(Segment segment, Segment::Open(name));
  TP_ASSIGN_OR_RETURN(const std::optional<StepFrame> begin, segment.Next());
  if (!begin || begin->kind != StepFrame::kBegin || begin->version != name.base) {
    // A power cut between the making of a segment and its first sync leaves no more than a head.
    if (segment.bytes() <= sizeof(StepFrame)) return false;
    return Damaged(name.path, 0, name.base + 1, "the segment's beginning");
  }
  if (begin->parameter != task_.model)
    return Status(ErrorId::kCheckpointBad, "the log of steps is that of another model")
        .Where(name.path)
        .Fix("give the folder of this run's steps to --durable-steps");

  const uint64_t run_before = std::exchange(run_, name.run);
  const size_t steps_before = steps_.size();
  Place place{segment.file(), {}};
  bool ended = false, broken = false;
  uint64_t step_at = segment.at();
  std::string what = "bytes that are no step";
  while (version() < task_.last) {
    if (place.runs.empty()) {
      // Who went on from here has found nothing more here.
      TP_ASSIGN_OR_RETURN(const bool branched, FollowBranch());
      if (branched) return true;
      step_at = segment.at();
    }

    ended = segment.at() >= segment.bytes();
    if (ended) break;
    TP_ASSIGN_OR_RETURN(const std::optional<StepFrame> frame, segment.Next());
    broken = !frame;
    if (broken) break;

    if (frame->kind == StepFrame::kEnd) {
      ended = true;
      break;
    }

    TP_ASSIGN_OR_RETURN(const bool fits, Take(&segment, *frame, &place, &what));
    broken = !fits;
    if (broken) break;
  }

  const bool has_some = steps_.size() > steps_before;
  // A writer begins the next segment when all of this one is synced.
  bool was_there = LacksSegment();
  if (is_branch && !has_some) run_ = run_before;
  if (!broken && !ended) return has_some;

  if (!was_there && broken) {
    TP_ASSIGN_OR_RETURN(was_there, segment.SaysSynced(step_at, version() + 1));
  }
  if (was_there && !TP_PLANTED("checkpoint.damage_cut_off"))
    return Damaged(name.path, step_at, version() + 1, broken ? what : "it is missing");
  return has_some;
}

// Reads the steps of a run that went on from here; false: there is none, or it has no step.
Result<bool> StepLog::FollowBranch() {
  for (const size_t branch : BranchesAt(version())) {
    TP_ASSIGN_OR_RETURN(const bool went_on, ReadSegment(branch, true));
    if (went_on) return true;
  }
  return false;
}

Status StepLog::Follow() {
  while (version() < task_.last) {
    TP_ASSIGN_OR_RETURN(bool went_on, FollowBranch());
    if (went_on) continue;
    const auto own = std::find_if(segments_.begin(), segments_.end(), [this](const auto& segment) {
      return segment.run == run_ && segment.base == version();
    });

    if (own == segments_.end()) return {};
    const auto index = static_cast<size_t>(own - segments_.begin());
    TP_ASSIGN_OR_RETURN(went_on, ReadSegment(index, false));
    if (!went_on) return {};
  }
  return {};
}

Result<StepLog> StepLog::Open(StepLogTask task) {
  StepLog log(std::move(task));
  TP_ASSIGN_OR_RETURN(log.segments_, FindSegments(log.task_.folder));

  for (const StepSegment& name : log.segments_) {
    TP_ASSIGN_OR_RETURN(Segment segment, Segment::Open(name));
    TP_ASSIGN_OR_RETURN(const std::optional<StepFrame> begin, segment.Next());
    const bool names = begin && begin->kind == StepFrame::kBegin;
    log.previous_.push_back(names ? begin->extra : 0);
  }
  log.tried_.resize(log.segments_.size());
  TP_RETURN_IF_ERROR(log.Follow());
  return log;
}

Status StepLog::Read(size_t index, uint32_t parameter, uint64_t first, std::span<std::byte> bytes) {
  const Place& place = places_[index];
  if (indexed_ != index) {
    extents_ = ExtentsOf(place.runs);
    indexed_ = index;
  }
  auto at = std::upper_bound(extents_.begin(), extents_.end(), std::pair(parameter, first),
                             [](const auto& key, const Extent& extent) {
                               return key < std::pair(extent.parameter, extent.first);
                             });

  if (at != extents_.begin()) --at;
  for (; at != extents_.end() && !bytes.empty(); ++at) {
    if (at->parameter != parameter || first - at->first >= at->bytes) break;
    const uint64_t skip = first - at->first;
    const uint64_t some = std::min<uint64_t>(bytes.size(), at->bytes - skip);
    const int error = ReadAt(place.file->get(), at->at + skip, bytes.first(some));
    if (error != 0) return Unreadable(task_.folder, error);
    first += some;
    bytes = bytes.subspan(some);
  }
  return bytes.empty() ? Status() : Unreadable(task_.folder, 0);
}

}  // namespace tidepool
