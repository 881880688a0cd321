#include "client/memctl/views/top.h"

#include <algorithm>

#include "base/clock.h"
#include "base/text/json_writer.h"
#include "base/units.h"
#include "client/memctl/commands/admin_calls.h"
#include "client/memctl/views/table.h"

namespace tidepool::client {
namespace {

double Rate(uint64_t before, uint64_t after, double seconds) {
  return after < before || seconds <= 0 ? 0 : static_cast<double>(after - before) / seconds;
}

std::string BytesASecond(double rate) {
  return FormatBytes(static_cast<uint64_t>(rate)) + "/s";
}

const JobView* Find(const std::vector<JobView>& jobs, uint64_t id) {
  const auto found =
      std::find_if(jobs.begin(), jobs.end(), [id](const JobView& job) { return job.id == id; });
  return found == jobs.end() ? nullptr : &*found;
}

Result<TopLook> TakeLook(const Invocation& invocation) {
  TP_ASSIGN_OR_RETURN(const std::string status, GetBody(invocation, "/v1/status"));
  TP_ASSIGN_OR_RETURN(const std::string jobs, GetBody(invocation, "/v1/jobs"));
  TopLook look;
  TP_ASSIGN_OR_RETURN(look.status, ReadStatus(status));
  TP_ASSIGN_OR_RETURN(look.jobs, ReadJobs(jobs));
  return look;
}

std::string Rendered(const TopView& top, const Style& style) {
  std::string text;
  for (const std::string& line : RenderStatus(top.status, style)) text += line + "\n";
  text += "now       " + BytesASecond(top.bytes_to_ranks) + " to ranks, " +
          BytesASecond(top.bytes_from_ranks) + " from ranks, " +
          FormatCount(static_cast<uint64_t>(top.parameters)) + " parameters/s";
  if (top.status.nvme_bytes > 0)
    text += ", NVMe " + BytesASecond(top.nvme_read) + " read, " + BytesASecond(top.nvme_written) +
            " written";

  text += "\n\n";
  Table table({{"ID", true},
               {"NAME"},
               {"STATE"},
               {"RANKS", true},
               {"STEPS", true},
               {"STEPS/S", true},
               {"POOL", true},
               {"NVME", true},
               {"RCACHE", true},
               {"OPTIMIZER", true},
               {"SHARE", true}});

  for (const TopJob& row : top.jobs) {
    table.Add({std::to_string(row.job.id), row.job.name, StateText(row.job),
               std::to_string(row.job.ranks_attached) + "/" + std::to_string(row.job.world),
               std::to_string(row.job.version), FormatFixed(row.steps_a_second, 2),
               FormatBytes(row.job.pool_bytes), FormatBytes(row.job.nvme_bytes),
               FormatBytes(row.job.rcache_bytes), BytesASecond(row.optimizer_bytes_a_second),
               FormatFixed(row.optimizer_share * 100, 0) + " %"});
  }
  for (const std::string& line : table.Lines(style.header)) text += line + "\n";
  return text;
}

std::string JsonOf(const TopView& top) {
  JsonWriter json;
  json.BeginObject().Field("seconds", top.seconds).Field("state", top.status.state);
  json.Field("pool_bytes", top.status.pool_bytes).Field("pool_bytes_used", top.status.pool_used);
  json.Field("host_to_device_bytes_per_second", top.bytes_to_ranks)
      .Field("device_to_host_bytes_per_second", top.bytes_from_ranks);
  json.Field("parameters_per_second", top.parameters);
  json.Field("nvme_read_bytes_per_second", top.nvme_read)
      .Field("nvme_written_bytes_per_second", top.nvme_written);
  json.Key("jobs").BeginArray();

  for (const TopJob& row : top.jobs) {
    json.BeginObject()
        .Field("id", row.job.id)
        .Field("name", row.job.name)
        .Field("state", StateText(row.job))
        .Field("version", row.job.version);
    json.Field("steps_per_second", row.steps_a_second)
        .Field("optimizer_bytes_per_second", row.optimizer_bytes_a_second);
    json.Field("optimizer_share", row.optimizer_share).EndObject();
  }
  return json.EndArray().EndObject().Take() + "\n";
}

}  // namespace

TopView Compare(const TopLook& before, const TopLook& after) {
  TopView top;
  top.status = after.status;
  top.seconds = after.status.uptime_seconds - before.status.uptime_seconds;
  const auto rate = [&](uint64_t StatusView::*counter) {
    return Rate(before.status.*counter, after.status.*counter, top.seconds);
  };
  top.bytes_to_ranks = rate(&StatusView::bytes_h2d);
  top.bytes_from_ranks = rate(&StatusView::bytes_d2h);
  top.parameters = rate(&StatusView::parameters_updated);
  top.nvme_read = rate(&StatusView::nvme_read);
  top.nvme_written = rate(&StatusView::nvme_written);

  double all = 0;
  for (const JobView& job : after.jobs) {
    TopJob row{.job = job};
    if (const JobView* was = Find(before.jobs, job.id); was != nullptr) {
      row.steps_a_second = Rate(was->version, job.version, top.seconds);
      row.optimizer_bytes_a_second = Rate(was->optimizer_bytes, job.optimizer_bytes, top.seconds);
    }
    all += row.optimizer_bytes_a_second;
    top.jobs.push_back(row);
  }

  for (TopJob& row : top.jobs)
    row.optimizer_share = all > 0 ? row.optimizer_bytes_a_second / all : 0;
  const auto busier = [](const TopJob& one, const TopJob& other) {
    return one.optimizer_bytes_a_second > other.optimizer_bytes_a_second;
  };
  std::stable_sort(top.jobs.begin(), top.jobs.end(), busier);
  return top;
}

Result<Shown> RunTop(const Invocation& invocation, const Style& style) {
  TP_ASSIGN_OR_RETURN(const TopLook before, TakeLook(invocation));
  invocation.clock->SleepNs(invocation.watch_ns.value_or(kNsPerSecond));
  TP_ASSIGN_OR_RETURN(const TopLook after, TakeLook(invocation));
  const TopView top = Compare(before, after);
  return Shown{invocation.json ? JsonOf(top) : Rendered(top, style), ""};
}

}  // namespace tidepool::client
