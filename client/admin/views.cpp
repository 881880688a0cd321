#include "client/admin/views.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <charconv>

#include "client/admin/view_fields.h"

namespace tidepool::client {
namespace {

namespace json = boost::json;

constexpr uint64_t kColumnsMax = 1u << 20;  // chunks of a job; bounds the size of run lengths

void ReadNumbers(Fields* fields, const char* key, std::vector<uint64_t>* numbers) {
  fields->Array(key, [numbers](const json::value& each) {
    if (each.is_int64()) numbers->push_back(static_cast<uint64_t>(each.get_int64()));
  });
}

void ReadChunk(const json::value& value, std::string* wrong, ChunkView* chunk) {
  Fields fields(value, wrong);
  fields.Read("job", &chunk->job)
      .Read("chunk", &chunk->chunk)
      .Read("state", &chunk->state)
      .Read("data_group", &chunk->data_group);

  fields.Read("elements", &chunk->elements)
      .Read("bytes", &chunk->bytes)
      .Read("version", &chunk->version)
      .Read("fetches", &chunk->fetches);
  fields.ReadIfThere("dtype", &chunk->dtype);
  fields.Read("states_on_nvme", &chunk->states_on_nvme)
      .ReadIfThere("states_on_gpu", &chunk->states_on_gpu)
      .ReadIfThere("node", &chunk->node);
  if (fields.Has("weights_on_nvme")) fields.Read("weights_on_nvme", &chunk->weights_on_nvme);
  ReadNumbers(&fields, "ranks_cached", &chunk->ranks_cached);
}

// [["C", 3], [".", 9]] to "CCC.........".
void ReadRun(const json::value& value, std::string* wrong, std::string* letters) {
  const json::array* pair = value.if_array();
  const bool sound =
      pair != nullptr && pair->size() == 2 && pair->at(0).is_string() &&
      pair->at(0).get_string().size() == 1 && pair->at(1).is_int64() &&
      pair->at(1).get_int64() >= 0 &&
      static_cast<uint64_t>(pair->at(1).get_int64()) <= kColumnsMax - letters->size();

  if (sound) {
    letters->append(static_cast<size_t>(pair->at(1).get_int64()), pair->at(0).get_string()[0]);
  } else if (wrong->empty()) {
    *wrong = "a run of the residency picture";
  }
}

void ReadResidencyRow(const json::value& value, std::string* wrong, ResidencyRow* row) {
  std::string kind;
  Fields fields(value, wrong);
  fields.Read("kind", &kind).Read("bytes_limit", &row->bytes_limit);
  row->place = kind == "host_pool" ? "host pool"
               : kind == "nvme"    ? "NVMe"
               : kind == "gpu"     ? "GPU"
                                   : "";

  if (!row->place.empty()) {
    fields.Read("bytes_used", &row->bytes_used);
  } else {
    fields.Read("rank", &row->rank).Read("chunks_held", &row->chunks_held);
  }
  fields.Array("runs", [&](const json::value& run) { ReadRun(run, wrong, &row->letters); });
  if (!fields.Has("chunks")) return;  // a recording of an earlier release
  fields.Object("chunks").Members([&](const std::string& letter, const json::value& count) {
    if (letter.size() == 1 && count.is_int64())
      row->chunks.emplace_back(letter[0], static_cast<uint64_t>(count.get_int64()));
  });
}

void ReadExperts(const json::value& value, std::string* wrong, ResidencyExperts* experts) {
  Fields fields(value, wrong);
  fields.Read("layer", &experts->layer)
      .Read("first_expert", &experts->first_expert)
      .Read("last_expert", &experts->last_expert);
  fields.Read("first_chunk", &experts->first_chunk)
      .Read("last_chunk", &experts->last_chunk)
      .Read("chunks_fetched", &experts->chunks_fetched);
}

void ReadResidencyJob(const json::value& value, std::string* wrong, ResidencyJob* job) {
  Fields fields(value, wrong);
  fields.Read("id", &job->id)
      .Read("name", &job->name)
      .Read("state", &job->state)
      .Read("version", &job->version);

  fields.Read("step_seconds", &job->step_seconds)
      .Read("chunks", &job->chunks)
      .Read("chunk_bytes_max", &job->chunk_bytes_max);
  fields.Object("step").Read("phase", &job->phase).Read("chunks_done", &job->chunks_done);
  fields.Object("step")
      .Read("micro_batch", &job->micro_batch)
      .Read("micro_batches", &job->micro_batches);
  fields.Object("last_step")
      .Read("fetches", &job->fetches)
      .Read("fetches_waited", &job->fetches_waited);

  fields.Object("last_step").Read("bytes_fetched", &job->bytes_fetched);
  // missing in a recording of an earlier release
  if (Fields last = fields.Object("last_step"); last.Has("fetch_wait_seconds"))
    last.Read("fetch_wait_seconds", &job->fetch_wait_seconds);
  if (fields.Has("columns")) {
    fields.Array("columns", [&](const json::value& each) {
      ResidencyColumn& column = job->columns.emplace_back();
      Fields of_column(each, wrong);
      of_column.Read("name", &column.name)
          .Read("chunks", &column.chunks)
          .Read("bytes", &column.bytes);

      if (of_column.Has("fetched_step")) of_column.Read("fetched_step", &column.fetched_step);
    });
  }

  if (fields.Has("experts")) {
    fields.Array("experts", [&](const json::value& each) {
      ReadExperts(each, wrong, &job->experts.emplace_back());
    });
  }

  const uint64_t length = fields.Has("columns") ? job->columns.size() : job->chunks;
  fields.Array("rows", [&](const json::value& row) {
    ReadResidencyRow(row, wrong, &job->rows.emplace_back());
  });
  for (const ResidencyRow& row : job->rows) {
    if (row.letters.size() != length && wrong->empty())
      *wrong = "a row of the residency picture has another length than its job";
  }
}

void ReadRoot(const json::value& value, std::string* wrong, TopologyRoot* root) {
  Fields fields(value, wrong);
  fields.Read("name", &root->name).Array("devices", [&](const json::value& each) {
    TopologyDevice& device = root->devices.emplace_back();
    Fields(each, wrong)
        .Read("kind", &device.kind)
        .Read("name", &device.name)
        .Read("address", &device.address);
  });

  uint64_t node = 0;
  if (fields.IsNull("node")) return;  // the machine does not tell what is near
  fields.Read("node", &node);
  root->node = node;
}

}  // namespace

Result<ChunksView> ReadChunks(std::string_view text) {
  return ReadDocument<ChunksView>(text, [](Fields& fields, ChunksView* view) {
    fields.Array("chunks", [&](const json::value& chunk) {
      ReadChunk(chunk, fields.wrong(), &view->chunks.emplace_back());
    });
    fields.Read("next_cursor", &view->next_cursor);
  });
}

Result<TensorsView> ReadTensors(std::string_view text) {
  return ReadDocument<TensorsView>(text, [](Fields& fields, TensorsView* view) {
    fields.Read("next_cursor", &view->next_cursor).Array("tensors", [&](const json::value& value) {
      TensorView& tensor = view->tensors.emplace_back();
      Fields row(value, fields.wrong());
      row.Read("job", &tensor.job)
          .Read("name", &tensor.name)
          .Read("elements", &tensor.elements)
          .Read("chunk", &tensor.chunk);

      row.Read("element_begin", &tensor.element_begin)
          .Read("state", &tensor.state)
          .Read("version", &tensor.version);
      row.Read("states_on_nvme", &tensor.states_on_nvme)
          .ReadIfThere("states_on_gpu", &tensor.states_on_gpu)
          .ReadIfThere("node", &tensor.node);
      ReadNumbers(&row, "dims", &tensor.dims);
      ReadNumbers(&row, "ranks_cached", &tensor.ranks_cached);
    });
  });
}

Result<ResidencyView> ReadResidency(std::string_view text) {
  return ReadDocument<ResidencyView>(text, [](Fields& fields, ResidencyView* view) {
    fields.ReadIfThere("by", &view->by);
    fields.Object("legend").Members([&](const std::string& letter, const json::value& name) {
      if (letter.size() == 1 && name.is_string())
        view->legend.emplace_back(letter[0], std::string(name.get_string()));
    });
    fields.Array("jobs", [&](const json::value& job) {
      ReadResidencyJob(job, fields.wrong(), &view->jobs.emplace_back());
    });
  });
}

Result<TopologyView> ReadTopology(std::string_view text) {
  return ReadDocument<TopologyView>(text, [](Fields& fields, TopologyView* view) {
    fields.Read("source", &view->source);
    fields.Array("nodes", [&](const json::value& each) {
      TopologyNode& node = view->nodes.emplace_back();
      Fields of(each, fields.wrong());
      of.Read("id", &node.id).Read("cpus", &node.cpus).Read("memory_bytes", &node.memory_bytes);
      of.Read("pool_bytes", &node.pool_bytes).Read("workers", &node.workers);
    });
    fields.Array("root_complexes", [&](const json::value& each) {
      ReadRoot(each, fields.wrong(), &view->roots.emplace_back());
    });

    Fields plan = fields.Object("plan");
    plan.Read("pool_spread", &view->pool_spread).Array("worker_cpus", [&](const json::value& cpu) {
      if (cpu.is_int64()) view->worker_cpus.push_back(static_cast<uint64_t>(cpu.get_int64()));
    });
    plan.Array("staging", [&](const json::value& each) {
      TopologyStaging& stage = view->staging.emplace_back();
      Fields(each, fields.wrong()).Read("gpu", &stage.gpu).Read("node", &stage.node);
    });
  });
}

Result<QuotasView> ReadQuotas(std::string_view text) {
  return ReadDocument<QuotasView>(text, [](Fields& fields, QuotasView* view) {
    fields.Array("accounts", [&](const json::value& value) {
      AccountView& account = view->accounts.emplace_back();
      Fields row(value, fields.wrong());
      row.Read("account", &account.account)
          .Read("priority", &account.priority)
          .Read("weight", &account.weight);

      row.Read("guarantee_bytes", &account.guarantee)
          .Read("bytes_used", &account.used)
          .Read("bytes_room", &account.room);
      row.Read("nvme_bytes_used", &account.nvme_used).ReadIfThere("node", &account.node);
      const auto read_limit = [&](const char* name, std::optional<uint64_t>* limit) {
        const json::value* found =
            value.is_object() ? value.get_object().if_contains(name) : nullptr;
        if (found != nullptr && !found->is_null()) row.Read(name, &limit->emplace());
      };
      read_limit("limit_bytes", &account.limit);
      read_limit("nvme_limit_bytes", &account.nvme_limit);
    });

    fields.Array("waiting", [&](const json::value& value) {
      WaitingView& waiting = view->waiting.emplace_back();
      Fields row(value, fields.wrong());
      row.Read("name", &waiting.name)
          .Read("account", &waiting.account)
          .Read("priority", &waiting.priority)
          .Read("why", &waiting.why);

      row.Read("rank", &waiting.rank)
          .Read("pid", &waiting.pid)
          .Read("pool_bytes", &waiting.pool_bytes);
      row.Read("rcache_bytes", &waiting.rcache_bytes)
          .Read("waited_seconds", &waiting.waited_seconds)
          .ReadIfThere("node", &waiting.node);
    });
  });
}

Result<HealthView> ReadHealth(std::string_view text) {
  return ReadDocument<HealthView>(text, [](Fields& fields, HealthView* view) {
    fields.Read("status", &view->status).Array("checks", [&](const json::value& value) {
      HealthCheckView& check = view->checks.emplace_back();
      Fields row(value, fields.wrong());
      row.Read("code", &check.code)
          .Read("severity", &check.severity)
          .Read("summary", &check.summary)
          .Read("remedy", &check.remedy);

      row.Read("muted_seconds", &check.muted_seconds).ReadIfThere("node", &check.node);
      row.Array("detail", [&](const json::value& each) {
        if (each.is_string()) check.detail.emplace_back(each.get_string());
      });
    });
  });
}

Result<std::vector<EventView>> ReadEvents(std::string_view text) {
  std::vector<EventView> events;
  for (size_t end = 0; !text.empty(); text.remove_prefix(std::min(end + 1, text.size()))) {
    end = std::min(text.find('\n'), text.size());
    auto event = ReadDocument<EventView>(text.substr(0, end), [](Fields& fields, EventView* view) {
      fields.Read("number", &view->number)
          .Read("time", &view->time)
          .Read("level", &view->level)
          .Read("message", &view->message);

      fields.Members([view](const std::string& key, const json::value& value) {
        if (key == "number" || key == "time" || key == "level" || key == "message" ||
            key == "program")
          return;
        view->fields +=
            (view->fields.empty() ? "" : "  ") + key + "=" +
            (value.is_string() ? std::string(value.get_string()) : json::serialize(value));
      });
    });
    if (!event.ok()) return event.status();
    events.push_back(std::move(event).value());
  }

  return events;
}

Result<ConfigView> ReadConfig(std::string_view text) {
  return ReadDocument<ConfigView>(text, [](Fields& fields, ConfigView* view) {
    fields.Read("file", &view->file).Array("settings", [&](const json::value& value) {
      SettingView& setting = view->settings.emplace_back();
      Fields row(value, fields.wrong());
      row.Read("key", &setting.key).Read("value", &setting.value).Read("origin", &setting.origin);
      row.Read("default", &setting.fallback)
          .Read("reloads", &setting.reloads)
          .ReadIfThere("node", &setting.node);
    });
    fields.Array("quotas", [&](const json::value& value) {
      ConfiguredQuotaView& quota = view->quotas.emplace_back();

      Fields row(value, fields.wrong());
      row.Read("match", &quota.match)
          .Read("origin", &quota.origin)
          .Read("weight", &quota.weight)
          .Read("priority", &quota.priority);
      row.ReadIfThere("guarantee", &quota.guarantee)
          .ReadIfThere("limit", &quota.limit)
          .ReadIfThere("nvme_limit", &quota.nvme_limit);
      row.ReadIfThere("node", &quota.node);
    });
  });
}

Result<std::vector<std::string>> ReadApplied(std::string_view text, const char* list) {
  return ReadDocument<std::vector<std::string>>(
      text, [list](Fields& fields, std::vector<std::string>* keys) {
        fields.Array(list, [&](const json::value& key) {
          if (key.is_string()) keys->emplace_back(key.get_string());
        });
      });
}

Status ReadProblem(std::string_view text) {
  struct ProblemView {
    std::string code, detail, where, why, remedy;
  };

  auto problem = ReadDocument<ProblemView>(text, [](Fields& fields, ProblemView* view) {
    fields.Read("code", &view->code)
        .Read("detail", &view->detail)
        .Read("remedy", &view->remedy)
        .ReadIfThere("why", &view->why);
    fields.ReadIfThere("where", &view->where);
  });
  if (!problem.ok()) return problem.status();
  uint16_t number = 0;
  if (problem->code.starts_with("TP"))
    std::from_chars(problem->code.data() + 2, problem->code.data() + problem->code.size(), number);
  // An unknown number (of a later release) maps to "a bug"; the text stays the server's.
  const ErrorId id = ErrorEntryOf(static_cast<ErrorId>(number)).id;
  return Status(id, problem->detail).Where(problem->where).Why(problem->why).Fix(problem->remedy);
}

}  // namespace tidepool::client
