#include "trainer/launch/rank_place.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <limits>
#include <optional>

#include "trainer/launch/node_list.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kRanksMax = 65536;
constexpr size_t kJobNameMax = 63;  // limit of memserver
constexpr const char* kLauncherFix =
    "start the ranks with torchrun, srun, mpirun or `trainer launch`, which set it";

// One launcher's names of the same five numbers.
struct Dialect {
  const char* launcher;
  const char *rank, *world, *local_rank, *local_world, *node;
};
constexpr Dialect kTorchrun{"torchrun",         "RANK",      "WORLD_SIZE", "LOCAL_RANK",
                            "LOCAL_WORLD_SIZE", "GROUP_RANK"};
constexpr Dialect kSlurm{"Slurm",         "SLURM_PROCID", "SLURM_NTASKS",
                         "SLURM_LOCALID", nullptr,        "SLURM_NODEID"};
constexpr Dialect kOpenMpi{"Open MPI",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                           nullptr};
constexpr Dialect kPmi{"PMI",  "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
                       nullptr};

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  // Empty if the variable is not set (or is set to nothing, as launch scripts do).
  std::string_view Text(const char* name) const {
    const auto found =
        name == nullptr ? environment_.end() : environment_.find(std::string_view(name));
    return found == environment_.end() ? std::string_view() : std::string_view(found->second);
  }
  bool Has(const char* name) const { return !Text(name).empty(); }

  // Leaves `out` alone when the variable is not set.
  Status Number(const char* name, uint64_t max, uint64_t* out) const {
    const std::string_view text = Text(name);
    if (text.empty()) return {};
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value <= max) {
      *out = value;
      return {};
    }

    return Status(ErrorId::kUsageError, "the environment variable " + std::string(name) + " is '" +
                                            std::string(text) + "', not a number of 0 to " +
                                            std::to_string(max))
        .Where("environment of this rank")
        .Fix(kLauncherFix);
  }

 private:
  const Environment& environment_;
};

Status Missing(const char* launcher, const char* name) {
  return Status(ErrorId::kUsageError, std::string("the environment (") + launcher +
                                          ") names several ranks, but " + name + " is not set")
      .Where("environment of this rank")
      .Fix(kLauncherFix);
}

constexpr const char* kTrainerLaunch = "trainer launch";

std::optional<Dialect> FindDialect(const Reader& reader) {
  if (reader.Has(kTorchrun.rank) || reader.Has(kTorchrun.world)) return kTorchrun;
  // srun gives its tasks a step id; the batch script around it also has SLURM_PROCID=0 and
  // SLURM_NTASKS, but is a single process.
  const bool task_of_srun = reader.Has("SLURM_STEP_ID") || reader.Has("SLURM_STEP_NUM_TASKS");
  if (task_of_srun && reader.Has(kSlurm.rank)) return kSlurm;
  for (const Dialect& dialect : {kOpenMpi, kPmi}) {
    if (reader.Has(dialect.rank)) return dialect;
  }
  return std::nullopt;
}

std::string LauncherName(const Reader& reader, const Dialect& dialect) {
  if (dialect.launcher != kTorchrun.launcher) return dialect.launcher;
  if (reader.Has("TIDEPOOL_LAUNCH_ID")) return kTrainerLaunch;
  return reader.Has("TORCHELASTIC_RUN_ID") ? "torchrun" : "RANK and WORLD_SIZE";
}

Status ReadCounts(const Reader& reader, const Dialect& dialect, RankPlace* place) {
  if (!reader.Has(dialect.rank)) return Missing(dialect.launcher, dialect.rank);
  if (!reader.Has(dialect.world)) return Missing(dialect.launcher, dialect.world);

  uint64_t rank = 0, world = 1, node = 0, restarts = 0;
  TP_RETURN_IF_ERROR(reader.Number(dialect.rank, kRanksMax, &rank));
  TP_RETURN_IF_ERROR(reader.Number(dialect.world, kRanksMax, &world));
  if (dialect.node != nullptr) TP_RETURN_IF_ERROR(reader.Number(dialect.node, kRanksMax, &node));
  TP_RETURN_IF_ERROR(reader.Number("TORCHELASTIC_RESTART_COUNT", kRanksMax, &restarts));
  // A launcher that does not mention nodes runs on one.
  uint64_t local_rank = rank, local_world = world;
  if (dialect.launcher == kSlurm.launcher) {
    const char* tasks = reader.Has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE"
                                                                : "SLURM_TASKS_PER_NODE";
    if (const uint64_t count = TasksOnNode(reader.Text(tasks), node); count > 0)
      local_world = count;
  }

  TP_RETURN_IF_ERROR(reader.Number(dialect.local_rank, kRanksMax, &local_rank));
  if (dialect.local_world != nullptr)
    TP_RETURN_IF_ERROR(reader.Number(dialect.local_world, kRanksMax, &local_world));

  if (rank >= world || local_rank >= local_world || local_world > world) {
    return Status(ErrorId::kUsageError, "rank " + std::to_string(rank) + " of " +
                                            std::to_string(world) + " (on this node " +
                                            std::to_string(local_rank) + " of " +
                                            std::to_string(local_world) + ") is not possible")
        .Where(std::string(dialect.rank) + " and " + dialect.world +
               " in the environment of this rank")
        .Fix("ranks count from 0 to the number of ranks - 1; let the launcher set them");
  }

  place->rank = static_cast<uint32_t>(rank);
  place->world = static_cast<uint32_t>(world);
  place->local_rank = static_cast<uint32_t>(local_rank);
  place->local_world = static_cast<uint32_t>(local_world);
  place->node = static_cast<uint32_t>(node);
  place->restarts = static_cast<uint32_t>(restarts);
  return {};
}

// FNV-1a: all ranks derive the same port from the same name.
uint16_t PortFrom(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  // Registered ports below Linux's ephemeral range (from 32768 on).
  constexpr uint64_t kFirst = 20000, kCount = 12000;
  return static_cast<uint16_t>(kFirst + (hash ^ (hash >> 32)) % kCount);
}

// A name that every rank of an MPI run knows and no other run has; empty if there is none.
std::string_view MpiRunName(const Reader& reader) {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_KVS"}) {
    if (reader.Has(name)) return reader.Text(name);
  }
  return {};
}

// Derives the meeting point if the launcher gives none: Slurm and MPI.
Status DeriveMaster(const Reader& reader, const Dialect& dialect, RankPlace* place) {
  const bool one_node = place->local_world == place->world;
  if (dialect.launcher == kSlurm.launcher) {
    const char* list =
        reader.Has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    if (!one_node) place->master_host = FirstNode(reader.Text(list));
    place->master_port = PortFrom(std::string(reader.Text("SLURM_JOB_ID")) + "." +
                                  std::string(reader.Text("SLURM_STEP_ID")));
  } else {
    if (!one_node) place->master_host.clear();
    // torch's default port, if there is no name to derive one from.
    place->master_port = MpiRunName(reader).empty() ? 29500 : PortFrom(MpiRunName(reader));
  }
  if (reader.Has("MASTER_ADDR")) place->master_host = reader.Text("MASTER_ADDR");
  return place->master_host.empty() ? Missing(dialect.launcher, "MASTER_ADDR") : Status();
}

Status ReadMaster(const Reader& reader, const Dialect& dialect, RankPlace* place) {
  uint64_t port = 0;
  TP_RETURN_IF_ERROR(reader.Number("MASTER_PORT", std::numeric_limits<uint16_t>::max(), &port));
  const bool agent = dialect.launcher == kTorchrun.launcher &&
                     reader.Text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (place->world == 1 && !agent) return {};
  if (place->launcher == kTrainerLaunch && port == 0) {
    // Its ranks are on one machine and meet by name.
  } else if (dialect.launcher == kTorchrun.launcher) {
    if (!reader.Has("MASTER_ADDR")) return Missing(dialect.launcher, "MASTER_ADDR");
    if (port == 0) return Missing(dialect.launcher, "MASTER_PORT");
    place->master_host = reader.Text("MASTER_ADDR");
    place->agent_serves_store = agent;
  } else {
    TP_RETURN_IF_ERROR(DeriveMaster(reader, dialect, place));
  }
  if (port > 0) place->master_port = static_cast<uint16_t>(port);
  return {};
}

std::string DefaultJobName(const Reader& reader, const std::optional<Dialect>& dialect,
                           int64_t parent_pid) {
  if (reader.Has("TIDEPOOL_LAUNCH_ID")) return JobNameFrom(reader.Text("TIDEPOOL_LAUNCH_ID"));
  // torchrun names every run without --rdzv-id "none": two such runs must not share a job.
  const std::string_view run = reader.Text("TORCHELASTIC_RUN_ID");
  if (!run.empty() && run != "none") return JobNameFrom(run);
  if (!run.empty()) return "torchrun-" + std::to_string(parent_pid);
  if (reader.Has("SLURM_JOB_ID"))
    return JobNameFrom("slurm-" + std::string(reader.Text("SLURM_JOB_ID")));
  if (!dialect) return "";
  return "ranks-" + std::to_string(parent_pid);
}

}  // namespace

Environment ReadEnvironment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

Result<RankPlace> DetectRank(const Environment& environment, int64_t parent_pid) {
  const Reader reader(environment);
  const std::optional<Dialect> dialect = FindDialect(reader);

  RankPlace place;
  place.launcher = "none";
  if (dialect) {
    place.launcher = LauncherName(reader, *dialect);
    TP_RETURN_IF_ERROR(ReadCounts(reader, *dialect, &place));
    TP_RETURN_IF_ERROR(ReadMaster(reader, *dialect, &place));
  }

  place.run_id = reader.Text("TIDEPOOL_LAUNCH_ID");
  if (place.launcher == kTrainerLaunch) {
    place.done_mark = reader.Text("TIDEPOOL_LAUNCH_DONE");
    place.roll = reader.Text("TIDEPOOL_LAUNCH_ROLL");
  }
  place.job_name = DefaultJobName(reader, dialect, parent_pid);
  return place;
}

std::string JobNameFrom(std::string_view text) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  std::string name(text.substr(0, kJobNameMax));
  for (char& c : name) {
    if (kAllowed.find(c) == std::string_view::npos) c = '-';
  }
  return name;
}

}  // namespace tidepool::trainer
