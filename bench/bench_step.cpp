// bench_step: tokens/s of a training step through a memory server, compared with the same step in
// plain LibTorch with everything resident.
//
// One rank, GPT-2 124M, fp32, 4 x 256 tokens, rCache 25 % of the non-resident parameters,
// prefetching. Rounds of two steps of each kind alternate in one process on the same cores; the
// ratio is the median over the rounds. A served round ends when the server has updated every chunk,
// so that no work of one kind falls into the time of the other. The other rows show where the time
// goes. A third kind has all its states on a drive; it is compared with the one on the host, and
// with the bound given by its traffic. Other presets are for trying out the program.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "bench/drive/drive_peer.h"
#include "bench/harness/row.h"
#include "bench/harness/server_process.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/state_footprint.h"
#include "trainer/engine/engine.h"
#include "trainer/model/gpt.h"
#include "trainer/model/gpt_init.h"
#include "trainer/run/run_plan.h"
#include "trainer/run/run_session.h"

namespace tidepool::bench {
namespace {

constexpr int64_t kSequences = 4, kTokensMax = 256;
constexpr int kStepsPerRound = 2;
constexpr double kTarget = 0.95;
constexpr double kLearningRate = 1e-4, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kWeightDecay = 0.1;
constexpr const char* kHelp =
    "bench_step [--json FILE] [--preset NAME] [--rounds N] [--nvme DIR]\n"
    "Training steps of a model (default gpt2-124m) through a memory server against plain LibTorch, "
    "N times (default 5), and with all\n"
    "states in a directory of its own in DIR (default: the current one). Needs about 8 GiB of "
    "memory, and 5 GiB there.\n";

struct Tokens {
  at::Tensor inputs, targets;
};

Tokens MakeTokens(const trainer::GptShape& shape) {
  const int64_t tokens = std::min<int64_t>(shape.context, kTokensMax);
  torch::manual_seed(1);
  const at::Tensor all = torch::randint(shape.vocab, {kSequences, tokens + 1}, torch::kInt64);
  return {all.slice(1, 0, tokens).contiguous(), all.slice(1, 1).contiguous()};
}

// Everything resident; LibTorch's fused AdamW on the CPU.
class PlainStep {
 public:
  explicit PlainStep(const trainer::GptShape& shape)
      : model_(shape, torch::TensorOptions().dtype(torch::kFloat32)) {
    trainer::InitGpt(&model_, 1);
    for (const at::Tensor& parameter : model_.parameters()) {
      parameters_.push_back(parameter);
      momentum_.push_back(torch::zeros_like(parameter));
      variance_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}, torch::kFloat32));
    }
  }

  void Run(const Tokens& tokens) {
    model_.Loss(tokens.inputs, tokens.targets).backward();
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    for (at::Tensor& step : steps_) step += 1;
    at::_fused_adamw_(parameters_, gradients, momentum_, variance_, {}, steps_, kLearningRate,
                      kBeta1, kBeta2, kWeightDecay, kEps,
                      /*amsgrad=*/false, /*maximize=*/false);
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }

 private:
  trainer::Gpt model_;
  std::vector<at::Tensor> parameters_, momentum_, variance_, steps_;
};

// The same step with its states in a memserver process.
class ServedStep {
 public:
  ServedStep(const trainer::GptShape& shape, const std::string& socket_dir,
             const trainer::RunOptions& options) {
    plan_ = OrDie(trainer::MakeRunPlan(shape, options, 1, 0, "bench-step"));
    trainer::SessionTask task{.server = options.server,
                              .job = options.job,
                              .spec = plan_.spec,
                              .groups = plan_.layout.data_groups};
    task.clock = &clock_;
    task.server.socket_dir = socket_dir;
    session_ = OrDie(trainer::RunSession::Open({}, std::move(task)));

    model_ = std::make_unique<trainer::Gpt>(shape, torch::TensorOptions().dtype(torch::kFloat32));
    const auto named = model_->named_parameters();
    std::vector<at::Tensor> tensors;
    for (const trainer::ParameterPlace& place : plan_.layout.parameters)
      tensors.push_back(named[place.name]);

    trainer::EngineOptions engine;
    engine.cache.separate_while_recording = false;
    engine_ = OrDie(trainer::TrainingEngine::Create(
        plan_.layout, engine, {session_->service(), session_->groups(), tensors, &clock_}));
    OrDie(engine_->LoadWeights([&](ParameterId id, std::span<float> values) {
      trainer::InitGptParameter(plan_.layout.parameters[id].name, plan_.shape, 1, 0, values);
      return Status();
    }));
  }

  void Run(const Tokens& tokens) {
    OrDie(engine_
              ->TrainMicroBatch(
                  version_, 0, [&] { return model_->Loss(tokens.inputs, tokens.targets); }, 1.0)
              .status());
    client::StepEnd end;
    end.version = version_;
    end.learning_rate = static_cast<float>(kLearningRate);
    const int64_t start = clock_.NowNs();
    version_ = OrDie(engine_->EndStep(end)).version;
    seal_ns_ += clock_.NowNs() - start;
  }

  // Waits until the last step's update has reached every chunk: reads one element of each
  // parameter.
  void Settle() {
    OrDie(engine_
              ->Evaluate(version_,
                         [&] {
                           at::Tensor sum = torch::zeros({});
                           for (const at::Tensor& parameter : model_->parameters())
                             sum = sum + parameter.detach().view({-1}).slice(0, 0, 1).sum();
                           return sum;
                         })
              .status());
  }

  void Close() { OrDie(session_->Close()); }
  const trainer::RcachePlan& rcache() const { return plan_.rcache; }
  const trainer::ParameterCache& cache() const { return engine_->cache(); }
  int64_t seal_ns() const { return seal_ns_; }
  trainer::StepTraffic traffic() const {
    const trainer::GroupTraffic planned = trainer::SumOf(engine_->planned_traffic());
    return {planned.fetched, planned.handed_in};
  }

 private:
  SteadyClock clock_;
  trainer::RunPlan plan_;
  std::unique_ptr<trainer::RunSession> session_;
  std::unique_ptr<trainer::Gpt> model_;
  std::unique_ptr<trainer::TrainingEngine> engine_;
  Version version_ = 0;
  int64_t seal_ns_ = 0;
};

double Seconds(const Clock& clock, const std::function<void()>& body) {
  const int64_t start = clock.NowNs();
  body();
  return static_cast<double>(clock.NowNs() - start) * 1e-9;
}

Row RowOf(const char* name, double value, const char* unit) {
  Row row;
  row.bench = "step";
  row.row = name;
  row.value = value;
  row.unit = unit;
  return row;
}

struct Steps {
  PlainStep* plain;
  ServedStep *served, *on_drive;
};
struct Times {
  std::vector<double> plain, served, on_drive, ratios, drive_ratios;
};

// Seconds of one step.
double ServedSeconds(ServedStep* served, const Tokens& tokens) {
  return Seconds(SteadyClock(),
                 [&] {
                   for (int step = 0; step < kStepsPerRound; ++step) served->Run(tokens);
                   served->Settle();
                 }) /
         kStepsPerRound;
}

// Seconds of one step, by round.
Times Alternate(const Steps& steps, const Tokens& tokens, int rounds) {
  const SteadyClock clock;
  Times times;

  for (int round = 0; round < rounds; ++round) {
    const double plain_seconds = Seconds(clock, [&] {
      for (int step = 0; step < kStepsPerRound; ++step) steps.plain->Run(tokens);
    });
    times.plain.push_back(plain_seconds / kStepsPerRound);
    times.served.push_back(ServedSeconds(steps.served, tokens));
    times.on_drive.push_back(ServedSeconds(steps.on_drive, tokens));

    times.ratios.push_back(times.plain.back() / times.served.back());
    times.drive_ratios.push_back(times.served.back() / times.on_drive.back());
  }
  return times;
}

// The least time of a step with its states on the drive: the host's time plus its traffic at fio's
// speed.
std::optional<double> BoundSeconds(const std::string& directory, double gib_each_way,
                                   double host_seconds) {
  double bound = host_seconds;
  for (const char* direction : {"read", "write", "rw"}) {
    const auto peer = MeasureFio(directory, direction);
    if (!peer) return std::nullopt;
    bound = std::max(
        bound, (std::string(direction) == "rw" ? 2 : 1) * gib_each_way / peer->gib_per_second);
  }
  return bound;
}

void AddDriveRows(const Times& times, const std::string& directory, uint64_t drive_bytes,
                  RowPrinter* printer) {
  Row row = RowOf("step through memserver, all states on the drive", Median(times.on_drive), "s");
  row.against = "the same, all states on the host";
  row.ratio = Median(times.drive_ratios);
  printer->Add(row, SpreadOf(times.drive_ratios));

  const double gib_each_way = static_cast<double>(drive_bytes) / 2 / static_cast<double>(kGiB);
  if (const auto bound = BoundSeconds(directory, gib_each_way, Median(times.served))) {
    Row of_bound =
        RowOf("the bound of that step: the one on the host, its bytes at fio's speed", *bound, "s");
    of_bound.against = "that step";
    of_bound.ratio = Median(times.on_drive) / *bound;
    printer->Add(of_bound);
  }
}

ServerProcess StartServer(uint64_t pool, uint64_t rcache, const std::vector<std::string>& where) {
  std::vector<std::string> flags{"--pool",         std::to_string(RoundUp(pool, kMiB)),
                                 "--rcache-limit", std::to_string(RoundUp(rcache, kMiB)),
                                 "--log-level",    "warn"};
  flags.insert(flags.end(), where.begin(), where.end());
  return OrDie(ServerProcess::Start(flags));
}

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  InitLog("bench_step", LogLevel::kWarn, LogFormat::kText);
  const int rounds = static_cast<int>(printer.Number("--rounds", 5));
  const std::string preset = printer.Word("--preset", "gpt2-124m"),
                    base = printer.Word("--nvme", ".");
  printer.NoMoreArguments();

  at::set_num_threads(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  const trainer::GptShape shape = OrDie(trainer::FindGptPreset(preset));
  trainer::RunOptions options;
  options.memory.rcache = "25%";
  options.optimizer.clip = 0;
  const trainer::RunPlan plan = OrDie(trainer::MakeRunPlan(shape, options, 1, 0, "bench-step"));
  const uint64_t drive_bytes = shm::NvmeBytesOf(plan.spec, 0);

  const std::string directory = ScratchIn(base);
  ServerProcess server =
      StartServer(client::StateBytesOf(plan.spec).total(), plan.rcache.bytes, {});
  ServerProcess drive_server =
      StartServer(shm::HostStateBytesOf(plan.spec, 0).total(), plan.rcache.bytes,
                  {"--nvme", directory + ":" + std::to_string(RoundUp(drive_bytes, kMiB)),
                   "--states-on", "nvme"});

  const Tokens tokens = MakeTokens(shape);
  PlainStep plain(shape);
  ServedStep served(shape, server.socket_dir(), options),
      on_drive(shape, drive_server.socket_dir(), options);
  const Steps steps{&plain, &served, &on_drive};
  Alternate(steps, tokens, 1);  // records the order, warms up allocators

  const trainer::CacheCounters before = served.cache().counters();
  const int64_t seal_before = served.seal_ns();
  const Times times = Alternate(steps, tokens, rounds);
  const trainer::CacheCounters after = served.cache().counters();

  const double tokens_per_step = static_cast<double>(tokens.inputs.numel());
  Row main_row =
      RowOf("tokens/s through memserver", tokens_per_step / Median(times.served), "tokens/s");
  main_row.against = "plain LibTorch, all resident, fused AdamW";
  main_row.ratio = Median(times.ratios);
  main_row.target = kTarget;
  printer.Add(main_row);
  printer.Add(
      RowOf("tokens/s in plain LibTorch", tokens_per_step / Median(times.plain), "tokens/s"));

  const double per_step = 1.0 / (rounds * kStepsPerRound);
  printer.Add(RowOf("step through memserver", Median(times.served), "s"));
  printer.Add(RowOf("waits for chunks and answers in a step",
                    static_cast<double>(after.wait_ns - before.wait_ns) * 1e-9 * per_step, "s"));
  printer.Add(RowOf("sealing (last gradients, norm) in a step",
                    static_cast<double>(served.seal_ns() - seal_before) * 1e-9 * per_step, "s"));

  printer.Add(RowOf("bytes host to device in a step",
                    static_cast<double>(served.traffic().bytes_h2d), "bytes"));
  printer.Add(RowOf("bytes device to host in a step",
                    static_cast<double>(served.traffic().bytes_d2h), "bytes"));
  printer.Add(
      RowOf("rCache share of the non-resident parameters", served.rcache().fraction(), "share"));

  served.Close();
  on_drive.Close();
  AddDriveRows(times, directory, drive_bytes, &printer);
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
