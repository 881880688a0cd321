#include "client/memctl/commands/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/text/json_writer.h"
#include "base/text/plural.h"
#include "base/units.h"

namespace tidepool::client {
namespace {

// The trace's process for memserver; jobs have their own numbers, from 1.
constexpr uint64_t kServer = 0;
constexpr uint64_t kStepLane = 1, kPhaseLane = 2;  // threads of a job

class Trace {
 public:
  explicit Trace(double begin_seconds) : begin_(begin_seconds) {
    json_.BeginObject().Field("displayTimeUnit", "ms").Key("traceEvents").BeginArray();
  }
  std::string Take() { return json_.EndArray().EndObject().Take(); }

  void NameProcess(uint64_t process, const std::string& name) {
    Name("process_name", process, 0, name);
  }
  void NameLane(uint64_t process, uint64_t lane, const std::string& name) {
    Name("thread_name", process, lane, name);
  }

  // A state that lasts from one moment to another.
  struct Slice {
    uint64_t process, lane;
    std::string name;
    double from = 0, to = 0;  // seconds
    std::vector<std::pair<const char*, uint64_t>> args = {};
  };
  void Add(const Slice& slice) {
    Begin("X", slice.name, slice.process, slice.lane, slice.from)
        .Field("dur", Micros(slice.to) - Micros(slice.from));
    Args(slice.args);
  }
  void Mark(uint64_t process, uint64_t lane, const std::string& name, double at) {
    Begin("i", name, process, lane, at).Field("s", "t").EndObject();
  }
  void Count(const std::string& name, double at,
             const std::vector<std::pair<const char*, uint64_t>>& values) {
    Begin("C", name, kServer, 0, at);
    Args(values);
  }

 private:
  double Micros(double seconds) const { return std::round((seconds - begin_) * 1e6); }
  JsonWriter& Begin(const char* kind, const std::string& name, uint64_t process, uint64_t lane,
                    double at) {
    json_.BeginObject()
        .Field("ph", kind)
        .Field("name", name)
        .Field("pid", process)
        .Field("tid", lane);
    return json_.Field("ts", Micros(at));
  }
  void Args(const std::vector<std::pair<const char*, uint64_t>>& values) {
    json_.Key("args").BeginObject();
    for (const auto& [key, value] : values) json_.Field(key, value);
    json_.EndObject().EndObject();
  }
  void Name(const char* what, uint64_t process, uint64_t lane, const std::string& name) {
    json_.BeginObject()
        .Field("ph", "M")
        .Field("name", what)
        .Field("pid", process)
        .Field("tid", lane);
    json_.Key("args").BeginObject().Field("name", name).EndObject().EndObject();
  }

  const double begin_;
  JsonWriter json_;
};

// Bytes per second between two looks; counters of a restarted memserver begin at 0.
uint64_t RateBetween(uint64_t before, uint64_t now, double seconds) {
  return seconds <= 0 || now < before
             ? 0
             : static_cast<uint64_t>(static_cast<double>(now - before) / seconds);
}

void AddCounters(const std::vector<RunMoment>& moments, Trace* trace) {
  trace->NameProcess(kServer, "memserver");
  for (size_t i = 0; i < moments.size(); ++i) {
    const StatusView& now = moments[i].status;
    const double at = now.uptime_seconds;
    trace->Count("host pool", at, {{"bytes", now.pool_used}});
    trace->Count("rCaches", at, {{"bytes", now.rcache_used}});
    if (now.nvme_bytes > 0) trace->Count("NVMe", at, {{"bytes", now.nvme_used}});
    if (i == 0) continue;
    const StatusView& before = moments[i - 1].status;
    const double length = at - before.uptime_seconds;

    trace->Count("copies, bytes/s", at,
                 {{"to ranks", RateBetween(before.bytes_h2d, now.bytes_h2d, length)},
                  {"from ranks", RateBetween(before.bytes_d2h, now.bytes_d2h, length)}});
    trace->Count(
        "updates, parameters/s", at,
        {{"parameters", RateBetween(before.parameters_updated, now.parameters_updated, length)}});
    if (now.nvme_bytes == 0) continue;
    trace->Count("NVMe, bytes/s", at,
                 {{"read", RateBetween(before.nvme_read, now.nvme_read, length)},
                  {"written", RateBetween(before.nvme_written, now.nvme_written, length)}});
  }
}

std::string StepName(uint64_t first, uint64_t end) {
  return end - first <= 1 ? "step " + std::to_string(first)
                          : "steps " + std::to_string(first) + " to " + std::to_string(end - 1);
}

std::string WaitsOf(const ResidencyJob& job) {
  return Counted(job.fetches_waited, "fetch") + " waited" +
         (job.fetch_wait_seconds > 0 ? ", " + FormatDuration(job.fetch_wait_seconds) + " together"
                                     : "");
}

// A step lasts from the look that saw its starting version to the one that saw the next.
void AddSteps(const std::vector<RunMoment>& moments, uint64_t id, Trace* trace) {
  const ResidencyJob* open = nullptr;
  double from = 0;

  for (const RunMoment& moment : moments) {
    const ResidencyJob* job = JobAt(moment, id);
    const double at = SecondsOf(moment);
    if (open != nullptr && (job == nullptr || job->version != open->version)) {
      const bool sealed = job != nullptr && job->version > open->version;
      Trace::Slice slice{
          .process = id,
          .lane = kStepLane,
          .name = StepName(open->version, sealed ? job->version : open->version + 1)};
      slice.from = from;
      slice.to = at;
      // A step's numbers come with the next version.
      if (sealed)
        slice.args = {{"fetches", job->fetches},
                      {"fetches_waited", job->fetches_waited},
                      {"fetch_wait_ms", static_cast<uint64_t>(1000 * job->fetch_wait_seconds)},
                      {"bytes_fetched", job->bytes_fetched}};
      trace->Add(slice);
      if (sealed && job->fetches_waited > 0) trace->Mark(id, kStepLane, WaitsOf(*job), at);
      open = nullptr;
    }

    if (open == nullptr && job != nullptr) from = at;
    if (job != nullptr) open = job;
  }
  if (open == nullptr || (moments.size() > 1 && from == SecondsOf(moments.back()))) return;
  trace->Add({.process = id,
              .lane = kStepLane,
              .name = StepName(open->version, open->version + 1),
              .from = from,
              .to = SecondsOf(moments.back())});
}

void AddPhases(const std::vector<RunMoment>& moments, uint64_t id, Trace* trace) {
  const auto name_of = [](const ResidencyJob& job) {
    return job.phase.empty() ? job.state : job.phase;
  };
  const auto same = [&](const ResidencyJob* one, const ResidencyJob* other) {
    return one != nullptr && other != nullptr && name_of(*one) == name_of(*other) &&
           one->version == other->version && one->micro_batch == other->micro_batch;
  };
  for (size_t i = 0; i < moments.size();) {
    const ResidencyJob* job = JobAt(moments[i], id);
    size_t end = i + 1;
    while (end < moments.size() && same(job, JobAt(moments[end], id))) ++end;

    if (job != nullptr) {
      const double to = SecondsOf(moments[std::min(end, moments.size() - 1)]);
      trace->Add({.process = id,
                  .lane = kPhaseLane,
                  .name = name_of(*job),
                  .from = SecondsOf(moments[i]),
                  .to = to,
                  .args = {{"version", job->version}, {"micro_batch", job->micro_batch}}});
    }
    i = end;
  }
}

std::map<uint64_t, std::string> JobsOf(const std::vector<RunMoment>& moments) {
  std::map<uint64_t, std::string> jobs;
  for (const RunMoment& moment : moments) {
    for (const ResidencyJob& job : moment.residency.jobs) jobs.emplace(job.id, job.name);
  }
  return jobs;
}

}  // namespace

std::string RenderTimeline(const std::vector<RunMoment>& moments) {
  Trace trace(SecondsOf(moments.front()));
  AddCounters(moments, &trace);
  for (const auto& [id, name] : JobsOf(moments)) {
    trace.NameProcess(id, "job " + name);
    trace.NameLane(id, kStepLane, "steps");
    trace.NameLane(id, kPhaseLane, "phases");
    AddSteps(moments, id, &trace);
    AddPhases(moments, id, &trace);
  }
  return trace.Take();
}

namespace {

// A job's looks during one step: in `moments`, the last of them past its end if that was seen.
struct Stretch {
  uint64_t step = 0;
  size_t first = 0, last = 0;
  bool found = false, began = false, ended = false;
};

Stretch FindStep(const std::vector<RunMoment>& moments, uint64_t id, uint64_t step) {
  Stretch stretch{.step = step};
  for (size_t i = 0; i < moments.size(); ++i) {
    const ResidencyJob* job = JobAt(moments[i], id);
    if (job != nullptr && job->version == step) {
      if (!stretch.found) {
        const ResidencyJob* before = i > 0 ? JobAt(moments[i - 1], id) : nullptr;
        stretch.first = i;
        stretch.began = i > 0 && (before == nullptr || before->version < step);
      }

      stretch.found = true;
      stretch.last = i;
    } else if (stretch.found) {
      stretch.ended = job != nullptr && job->version > step;
      stretch.last = stretch.ended ? i : stretch.last;
      break;
    }
  }
  return stretch;
}

// The last step of a job whose end was seen.
std::optional<uint64_t> LastEnded(const std::vector<RunMoment>& moments, uint64_t id) {
  std::optional<uint64_t> last;
  const ResidencyJob* before = nullptr;
  for (const RunMoment& moment : moments) {
    const ResidencyJob* job = JobAt(moment, id);
    if (job != nullptr && before != nullptr && job->version > before->version)
      last = before->version;
    if (job != nullptr) before = job;
  }
  return last;
}

// "job gpt: steps 3 to 7".
std::string StepsOf(const std::vector<RunMoment>& moments, uint64_t id, const std::string& name) {
  uint64_t first = UINT64_MAX, last = 0;
  for (const RunMoment& moment : moments) {
    const ResidencyJob* job = JobAt(moment, id);
    if (job == nullptr) continue;
    first = std::min(first, job->version);
    last = std::max(last, job->version);
  }
  return "job " + name + ": " + StepName(first, last + 1);
}

}  // namespace

Result<StepLooks> LooksOfStep(std::vector<RunMoment> moments, const std::string& step) {
  std::map<uint64_t, Stretch> found;
  std::string seen, remark;
  size_t first = moments.size(), last = 0;
  for (const auto& [id, name] : JobsOf(moments)) {
    seen += (seen.empty() ? "" : "; ") + StepsOf(moments, id, name);
    const std::optional<uint64_t> wanted =
        step == "last" ? LastEnded(moments, id) : std::optional<uint64_t>(std::stoull(step));
    if (!wanted) continue;

    const Stretch stretch = FindStep(moments, id, *wanted);
    if (!stretch.found) continue;
    found.emplace(id, stretch);
    first = std::min(first, stretch.first);
    last = std::max(last, stretch.last);
    if (stretch.began && stretch.ended) continue;
    remark += "job " + name + ": the " +
              (stretch.began   ? "end"
               : stretch.ended ? "beginning"
                               : "beginning and the end") +
              " of step " + std::to_string(stretch.step) + " was not seen\n";
  }

  if (found.empty()) {
    const std::string what = step == "last" ? "no step ended while memctl looked"
                                            : "no job was at step " + step + " while memctl looked";
    return Status(ErrorId::kAdminNotFound, what)
        .Why(seen.empty() ? "there was no job" : seen)
        .Fix(
            "look for longer (--for), or begin earlier and keep it: memctl record FILE, then "
            "timeline --from FILE");
  }

  StepLooks looks{{moments.begin() + static_cast<ptrdiff_t>(first),
                   moments.begin() + static_cast<ptrdiff_t>(last) + 1},
                  remark};
  for (RunMoment& moment : looks.moments) {
    std::erase_if(moment.residency.jobs,
                  [&](const ResidencyJob& job) { return !found.contains(job.id); });
  }
  return looks;
}

Result<Shown> RunTimeline(const Invocation& invocation, const Style&) {
  Invocation often = invocation;
  if (!often.watch_ns) often.watch_ns = kNsPerSecond / 20;
  const bool waits = !invocation.step.empty() && invocation.step != "last";
  TP_ASSIGN_OR_RETURN(std::vector<RunMoment> moments,
                      MomentsFor(often, [&](const RunMoment& moment) {
                        if (!waits) return false;
                        const auto is_past = [&](const ResidencyJob& job) {
                          return job.version > std::stoull(invocation.step);
                        };

                        const auto& jobs = moment.residency.jobs;
                        return !jobs.empty() && std::all_of(jobs.begin(), jobs.end(), is_past);
                      }));

  std::string remark;
  if (!invocation.step.empty()) {
    TP_ASSIGN_OR_RETURN(StepLooks looks, LooksOfStep(std::move(moments), invocation.step));
    moments = std::move(looks.moments);
    remark = std::move(looks.remark);
  }
  TP_RETURN_IF_ERROR(WriteWhole(invocation.target, RenderTimeline(moments) + "\n"));
  return Shown{invocation.target + ": " + std::to_string(moments.size()) +
                   " looks; ui.perfetto.dev opens it\n",
               remark};
}

}  // namespace tidepool::client
