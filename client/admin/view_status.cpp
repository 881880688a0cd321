// ViewStatus: reads the data of one screen: memserver itself, and its jobs.
#include <boost/json/value.hpp>

#include "client/admin/view_fields.h"
#include "client/admin/views.h"

namespace tidepool::client {
namespace {

namespace json = boost::json;

void ReadLimit(Fields* fields, const char* key, std::optional<uint64_t>* limit) {
  if (!fields->IsNull(key)) fields->Read(key, &limit->emplace());
}

void ReadJob(Fields& fields, JobView* job) {
  fields.Read("id", &job->id)
      .Read("name", &job->name)
      .Read("state", &job->state)
      .Read("world", &job->world)
      .Read("ranks_attached", &job->ranks_attached)
      .Read("dtype", &job->dtype)
      .Read("version", &job->version)
      .Read("parameters", &job->parameters);

  fields.Read("pool_bytes", &job->pool_bytes)
      .Read("frozen_bytes", &job->frozen_bytes)
      .Read("nvme_bytes", &job->nvme_bytes)
      .Read("rcache_bytes", &job->rcache_bytes)
      .Read("suspended", &job->suspended)
      .Read("optimizer_bytes", &job->optimizer_bytes)
      .Read("step_seconds", &job->step_seconds)
      .Read("grad_norm", &job->grad_norm)
      .Read("steps_skipped", &job->steps_skipped);

  fields.ReadIfThere("node", &job->node);
  if (fields.Has("loss")) {  // missing in a recording of an earlier release
    fields.Read("step_seconds_p50", &job->step_seconds_p50)
        .Read("step_seconds_p99", &job->step_seconds_p99)
        .Read("tokens_per_second", &job->tokens_per_second)
        .Read("cpus_shared", &job->cpus_shared);
    if (!fields.IsNull("loss")) fields.Read("loss", &job->loss.emplace());
  }
  if (fields.Has("lease_seconds")) {  // missing in a recording of an earlier release
    fields.Read("lease_seconds", &job->lease_seconds);
    ReadLimit(&fields, "kept_until", &job->kept_until);
  }

  if (!fields.Has("quota")) return;  // a recording of an earlier release
  fields.Read("uid", &job->uid)
      .Read("account", &job->account)
      .Read("chunks", &job->chunks)
      .Read("chunks_spilled", &job->chunks_spilled);
  Fields quota = fields.Object("quota");
  quota.Read("guarantee_bytes", &job->quota.guarantee)
      .Read("weight", &job->quota.weight)
      .Read("priority", &job->quota.priority);
  ReadLimit(&quota, "limit_bytes", &job->quota.limit);
  ReadLimit(&quota, "nvme_limit_bytes", &job->quota.nvme_limit);
}

void ReadGpu(const json::value& value, std::string* wrong, GpuView* gpu) {
  Fields fields(value, wrong);
  fields.Read("name", &gpu->name)
      .Read("model", &gpu->model)
      .Read("uuid", &gpu->uuid)
      .Read("form", &gpu->form)
      .Read("note", &gpu->note)
      .Read("bytes", &gpu->bytes)
      .Read("bytes_taken", &gpu->taken);

  fields.Read("pool_bytes", &gpu->pool_bytes)
      .Read("pinned_bytes", &gpu->pinned_bytes)
      .Read("pin_seconds", &gpu->pin_seconds)
      .Read("pin_failure", &gpu->pin_failure)
      .Read("failure", &gpu->failure)
      .Read("sessions", &gpu->sessions)
      .Read("host_to_device_bytes", &gpu->bytes_h2d)
      .Read("device_to_host_bytes", &gpu->bytes_d2h)
      .Read("copies_unpinned", &gpu->copies_unpinned);
}

}  // namespace

Result<VersionView> ReadVersion(std::string_view text) {
  return ReadDocument<VersionView>(text, [](Fields& fields, VersionView* view) {
    fields.Read("version", &view->version)
        .Read("build", &view->build)
        .Read("abi", &view->abi)
        .Read("pid", &view->pid);
  });
}

Result<StatusView> ReadStatus(std::string_view text) {
  return ReadDocument<StatusView>(text, [](Fields& fields, StatusView* view) {
    fields.Read("state", &view->state)
        .Read("version", &view->version)
        .Read("socket_dir", &view->socket_dir)
        .Read("pid", &view->pid);

    fields.Read("uptime_seconds", &view->uptime_seconds)
        .Read("snapshot_age_seconds", &view->snapshot_age_seconds);
    fields.Object("serve_loop")
        .Read("turns", &view->turns)
        .Read("silent_seconds", &view->silent_seconds);
    fields.Object("pool").Read("bytes", &view->pool_bytes).Read("bytes_used", &view->pool_used);
    fields.Object("pool")
        .Read("frozen_bytes", &view->frozen_bytes)
        .Read("frozen_chunks", &view->frozen_chunks);

    fields.Object("pool")
        .Read("huge_page_bytes", &view->pool_huge_bytes)
        .Read("touch_seconds", &view->pool_touch_seconds);
    fields.Object("nvme")
        .Read("bytes", &view->nvme_bytes)
        .Read("bytes_used", &view->nvme_used)
        .Read("bytes_read", &view->nvme_read)
        .Read("bytes_written", &view->nvme_written)
        .Read("repetitions", &view->nvme_repetitions)
        .Read("blocks_stalled", &view->nvme_stalled)
        .Read("failed_directory", &view->nvme_failed);

    fields.Object("rcache")
        .Read("bytes_limit", &view->rcache_limit)
        .Read("bytes_used", &view->rcache_used);
    if (fields.Has("gpus")) {  // missing in a recording of an earlier release
      fields.Array("gpus", [&](const json::value& gpu) {
        ReadGpu(gpu, fields.wrong(), &view->gpus.emplace_back());
      });
    }

    fields.Object("transfers")
        .Read("host_to_device_bytes", &view->bytes_h2d)
        .Read("device_to_host_bytes", &view->bytes_d2h);
    fields.Object("optimizer")
        .Read("workers", &view->workers)
        .Read("parameters_updated", &view->parameters_updated);
    fields.Object("optimizer").Read("prefetch", &view->prefetch);
    fields.Read("jobs", &view->jobs)
        .Read("sessions", &view->sessions)
        .Read("sessions_ended_badly", &view->sessions_ended_badly);
  });
}

Result<std::vector<JobView>> ReadJobs(std::string_view text) {
  return ReadDocument<std::vector<JobView>>(text, [](Fields& fields, std::vector<JobView>* view) {
    fields.Array("jobs", [&](const json::value& job) {
      Fields row(job, fields.wrong());
      ReadJob(row, &view->emplace_back());
    });
  });
}

Result<std::vector<LostJobView>> ReadLostJobs(std::string_view text) {
  return ReadDocument<std::vector<LostJobView>>(
      text, [](Fields& fields, std::vector<LostJobView>* view) {
        if (!fields.Has("lost")) return;

        fields.Array("lost", [&](const json::value& job) {
          LostJobView& row = view->emplace_back();
          Fields(job, fields.wrong())
              .Read("name", &row.name)
              .Read("uid", &row.uid)
              .Read("version", &row.version);
          Fields(job, fields.wrong()).Read("at", &row.at).Read("why", &row.why);
        });
      });
}

Result<JobView> ReadOneJob(std::string_view text) {
  return ReadDocument<JobView>(text, [](Fields& fields, JobView* view) { ReadJob(fields, view); });
}

}  // namespace tidepool::client
