#include "client/memctl/commands/recording.h"

#include <algorithm>
#include <array>
#include <fstream>

#include "base/clock.h"
#include "client/memctl/commands/admin_calls.h"

namespace tidepool::client {
namespace {

constexpr const char* kRecordingHead = R"({"tidepool_recording":1})";
constexpr std::array kTargets{"/v1/status", "/v1/jobs", "/v1/residency"};
using Bodies = std::array<std::string, kTargets.size()>;

Result<Bodies> Look(const Invocation& invocation) {
  Bodies bodies;
  for (size_t i = 0; i < kTargets.size(); ++i) {
    const bool is_picture = i + 1 == kTargets.size();
    TP_ASSIGN_OR_RETURN(
        bodies[i], GetBody(invocation, is_picture ? Target(kTargets[i], {{"by", invocation.by}})
                                                  : kTargets[i]));
  }
  return bodies;
}

Result<RunMoment> Read(const Bodies& bodies) {
  RunMoment moment;
  TP_ASSIGN_OR_RETURN(moment.status, ReadStatus(bodies[0]));
  TP_ASSIGN_OR_RETURN(moment.jobs, ReadJobs(bodies[1]));
  TP_ASSIGN_OR_RETURN(moment.residency, ReadResidency(bodies[2]));
  return moment;
}

Result<std::vector<RunMoment>> ReadRecording(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Status(ErrorId::kFileUnreadable, "the recording cannot be read").Where(path);
  std::string head;
  std::getline(file, head);
  if (head != kRecordingHead)
    return Status(ErrorId::kHandshakeBad, "the file is no recording")
        .Where(path)
        .Fix("make one: memctl record FILE");
  std::vector<RunMoment> moments;
  Bodies bodies;
  // A recording cut off within a look ends with its last complete one.
  while (std::getline(file, bodies[0]) && std::getline(file, bodies[1]) &&
         std::getline(file, bodies[2])) {
    auto moment = Read(bodies);
    if (!moment.ok() && file.peek() == std::ifstream::traits_type::eof() && !moments.empty()) break;
    if (!moment.ok()) return Status(moment.status().id(), moment.status().what()).Where(path);
    moments.push_back(std::move(moment).value());
  }
  if (moments.empty())
    return Status(ErrorId::kHandshakeBad, "the recording holds no look").Where(path);
  return moments;
}

// Calls `take` with each look, until the time is over or it returns true.
template <typename Take>
Status LookFor(const Invocation& invocation, Take take) {
  Clock* const clock = invocation.clock;
  const int64_t pause = invocation.watch_ns.value_or(kNsPerSecond / 4),
                end = clock->NowNs() + invocation.for_ns;
  for (;;) {
    TP_ASSIGN_OR_RETURN(const Bodies bodies, Look(invocation));
    TP_ASSIGN_OR_RETURN(const bool enough, take(bodies));
    if (enough || clock->NowNs() + pause > end) return Status();
    clock->SleepNs(pause);
  }
}

}  // namespace

double SecondsOf(const RunMoment& moment) {
  return moment.status.uptime_seconds;
}

const ResidencyJob* JobAt(const RunMoment& moment, uint64_t id) {
  const auto& jobs = moment.residency.jobs;
  const auto found = std::find_if(jobs.begin(), jobs.end(),
                                  [id](const ResidencyJob& job) { return job.id == id; });
  return found == jobs.end() ? nullptr : &*found;
}

Result<std::vector<RunMoment>> MomentsFor(const Invocation& invocation,
                                          const std::function<bool(const RunMoment&)>& enough) {
  if (!invocation.from.empty()) return ReadRecording(invocation.from);
  std::vector<RunMoment> moments;
  TP_RETURN_IF_ERROR(LookFor(invocation, [&](const Bodies& bodies) -> Result<bool> {
    TP_ASSIGN_OR_RETURN(RunMoment moment, Read(bodies));
    moments.push_back(std::move(moment));
    return enough(moments.back());
  }));
  return moments;
}

Result<Shown> RunRecord(const Invocation& invocation, const Style&) {
  std::ofstream file;
  const Status failed =
      Status(ErrorId::kFileWriteFailed, "the recording cannot be written").Where(invocation.target);
  uint64_t looks = 0;
  TP_RETURN_IF_ERROR(LookFor(invocation, [&](const Bodies& bodies) -> Result<bool> {
    if (looks == 0) {  // an existing recording stays if no server answers
      file.open(invocation.target, std::ios::trunc);
      file << kRecordingHead << "\n";
    }

    for (const std::string& body : bodies) file << body << "\n";
    ++looks;
    if (!file.flush()) return failed;
    return false;
  }));
  return Shown{invocation.target + ": " + std::to_string(looks) + " looks\n", ""};
}

Result<ResidencyView> ResidencyAt(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(std::vector<RunMoment> moments, MomentsFor(invocation));
  const double wanted = SecondsOf(moments.front()) + invocation.at_seconds;
  size_t last = 0;
  while (last + 1 < moments.size() && SecondsOf(moments[last + 1]) <= wanted) ++last;
  ResidencyView view = std::move(moments[last].residency);
  if (!invocation.by.empty() && invocation.by != view.by) {
    return Status(ErrorId::kUsageError,
                  "the recording was made by " + view.by + ", not by " + invocation.by)
        .Where(invocation.from)
        .Fix("make one that was: memctl record FILE --by " + invocation.by);
  }

  const auto other = [&](const ResidencyJob& job) {
    return job.name != invocation.job && std::to_string(job.id) != invocation.job;
  };
  if (!invocation.job.empty()) std::erase_if(view.jobs, other);
  return view;
}

Status WriteWhole(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  if (!(file << text) || !file.flush())
    return Status(ErrorId::kFileWriteFailed, "the file cannot be written").Where(path);
  return Status();
}

}  // namespace tidepool::client
