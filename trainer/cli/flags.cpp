#include "trainer/cli/flags.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <utility>

#include <CLI/CLI.hpp>

#include "base/text/completion.h"
#include "base/error_catalog.h"
#include "base/formats/optimizer.h"
#include "base/status.h"
#include "base/text/suggest.h"
#include "trainer/cli/number_flags.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kExamples = R"(examples:
  trainer run --standalone --steps 100                     train the quickstart model with a private memory server
  trainer launch -n 2 -- run --socket-dir /run/tidepool    two ranks on a memserver that is already running
  trainer run --job nightly --resume auto                  start the job, or continue it where it was interrupted
  torchrun --standalone --nproc-per-node 2 --no-python trainer run --preset quickstart
  trainer run --base OUT --lora-rank 8 --job r8 --save R8  train adapters over saved weights, which all such jobs share
  trainer estimate --preset gpt2-10b --ranks 4             memory by tier; no weights are made
  trainer estimate --preset gpt2-4b --dtype bf16 --checkpoint-activations --rcache auto --device-memory 24GiB
                                                           the rCache that such a device has room for, and why
  trainer sample OUT "Permission is hereby granted"        generate text from saved weights
)";

void AddModelFlags(CLI::App* app, RunOptions* o) {
  app->add_option(
         "--preset", o->preset,
         "model shape: tiny, small, quickstart, gpt2-124m, ... (an unknown name lists all)")
      ->group("model")
      ->capture_default_str();
  app->add_flag("--checkpoint-activations", o->activation_checkpointing,
                "recompute each block's forward in backward, to save activations")
      ->group("model");
  app->add_flag("--offload-activations", o->offload_activations,
                "with --checkpoint-activations: keep each block's input in host memory")
      ->group("model")
      ->needs("--checkpoint-activations");
  app->add_option("--seed", o->seed, "seed of weights, batches and the first step's evictions")
      ->group("model")
      ->capture_default_str();
  app->add_option("--dtype", o->dtype,
                  "parameters and gradients: fp32, bf16, or fp16 with dynamic loss scaling")
      ->group("model")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
}

void AddAdapterFlags(CLI::App* app, RunOptions* o) {
  const char* group = "adapters";
  app->add_option("--base", o->base,
                  "what `trainer run --save` wrote: its model stays as it is, in one copy for all "
                  "jobs of yours over it")
      ->group(group)
      ->type_name("DIR|FILE")
      ->excludes("--preset");
  app->add_option(
         "--lora-rank", o->lora_rank,
         "train adapters of this rank beside the model's linear layers (LoRA), and nothing else")
      ->group(group);
  app->add_option("--lora-alpha", o->lora_alpha, "adapters count alpha / rank times")
      ->group(group)
      ->capture_default_str();
  app->add_option(
         "--lora-targets", o->lora_targets,
         "which layers of each block: attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj; or all")
      ->group(group)
      ->type_name("NAME,...")
      ->capture_default_str();
}

void AddDeviceFlag(CLI::App* app, RunOptions* o) {
  app->add_option("--device", o->device,
                  "where to compute: cpu, cuda (the local rank's GPU), cuda:N, or auto: cuda where "
                  "it can be used")
      ->group("server")
      ->type_name("DEVICE")
      ->capture_default_str();
}

void AddMemoryFlags(CLI::App* app, RunOptions* o) {
  app->add_option("--rcache", o->rcache,
                  "rCache of each rank: a share of the non-resident parameters (25%), a size "
                  "(64MiB), or auto: what the device has room for")
      ->group("memory")
      ->capture_default_str();
  app->add_option("--device-memory", o->device_memory,
                  "with --rcache auto: memory that one rank may use; default: that of the GPU here")
      ->group("memory")
      ->type_name("SIZE");
  app->add_option("--rates", o->rates_file,
                  "with --rcache auto: measured rates of copies and updates (docs/planning.md)")
      ->group("memory")
      ->type_name("FILE");
  app->add_option("--chunk-size", o->chunk_size,
                  "bytes of a chunk, or auto: least waste over a range of sizes")
      ->group("memory")
      ->capture_default_str();
  app->add_option("--gpu-states", o->gpu_states,
                  "of each GPU for states of Adam, which are updated there: off, a size, or auto: "
                  "those of chunks that are always resident")
      ->group("memory")
      ->type_name("SIZE")
      ->capture_default_str();
  app->add_option("--accumulate", o->micro_batches,
                  "micro-batches of one step (gradient accumulation)")
      ->group("memory")
      ->capture_default_str();
}

void AddDataFlags(CLI::App* app, RunOptions* o) {
  app->add_option("--data", o->data,
                  "text FILE or DIR (bytes), or a token file of llm.c or nanoGPT; default: "
                  "Debian's licence texts")
      ->group("data")
      ->type_name("FILE");
  app->add_option("--context", o->context, "tokens of one sequence; 0: the preset's")
      ->group("data")
      ->capture_default_str();
  app->add_option("--batch", o->batch, "sequences of one micro-batch, over all ranks")
      ->group("data")
      ->capture_default_str();
}

void AddTrainingFlags(CLI::App* app, RunOptions* o) {
  const char* group = "training";
  app->add_option("--steps", o->steps, "optimizer steps")->group(group)->capture_default_str();
  app->add_option("--lr", o->learning_rate, "peak learning rate")
      ->group(group)
      ->capture_default_str();
  app->add_option("--schedule", o->schedule, "constant, linear or cosine")
      ->group(group)
      ->check(CLI::IsMember({"constant", "linear", "cosine"}))
      ->capture_default_str();
  app->add_option("--warmup", o->warmup_steps, "steps of linear warm-up")
      ->group(group)
      ->capture_default_str();
  app->add_option("--min-lr", o->min_learning_rate, "learning rate at the end of the schedule")
      ->group(group)
      ->capture_default_str();
  app->add_option("--weight-decay", o->weight_decay, "for matrices; biases and norms have none")
      ->group(group)
      ->capture_default_str();
  app->add_option("--clip", o->clip, "largest global gradient norm; 0: no clipping")
      ->group(group)
      ->capture_default_str();
  app->add_option("--eval-every", o->eval_every, "steps between held-out losses; 0: never")
      ->group(group)
      ->capture_default_str();
  app->add_option("--eval-batches", o->eval_batches, "batches of one held-out loss")
      ->group(group)
      ->capture_default_str();
}

template <typename Names>
CLI::IsMember OneOf(const Names& names) {
  return CLI::IsMember(std::vector<std::string>(names.begin(), names.end()));
}

void AddOptimizerFlags(CLI::App* app, RunOptions* o) {
  const char* group = "optimizer";
  app->add_option("--optimizer", o->optimizer, "the update rule")
      ->group(group)
      ->check(OneOf(RuleNames()))
      ->capture_default_str();
  app->add_option("--states", o->states,
                  "form of master and moments; all but fp32 need --dtype bf16 (docs/planning.md: "
                  "bytes, bounds)")
      ->group(group)
      ->check(OneOf(StateFormNames()))
      ->capture_default_str();
  app->add_option("--beta1", o->beta1, "adamw, adam, lion: decay of the first moment")
      ->group(group)
      ->capture_default_str();
  app->add_option("--beta2", o->beta2, "adamw, adam, lion: decay of the second moment")
      ->group(group)
      ->capture_default_str();
  app->add_option("--eps", o->eps, "adamw, adam, adagrad: added to the root of the second moment")
      ->group(group)
      ->capture_default_str();
  app->add_option("--momentum", o->momentum,
                  "sgd: decay of the momentum; 0: none, and no memory for it")
      ->group(group)
      ->capture_default_str();
  app->add_option("--dampening", o->dampening,
                  "sgd: share of a gradient that the momentum leaves out")
      ->group(group)
      ->capture_default_str();
  app->add_flag("--nesterov", o->nesterov, "sgd: Nesterov's momentum")->group(group);
  app->add_option("--lr-decay", o->lr_decay, "adagrad: the rate is divided by 1 + steps * this")
      ->group(group)
      ->capture_default_str();
}

void AddPlaceFlags(CLI::App* app, RunOptions* o) {
  const char* group = "server";
  app->add_option("--socket-dir", o->socket_dir, "where memserver listens")
      ->envname("TIDEPOOL_SOCKET_DIR")
      ->group(group)
      ->type_name("DIR");
  app->add_option("--job", o->job, "name of the job; default: from the launcher")->group(group);
  app->add_flag("--standalone", o->standalone, "start a private memserver and end it with the run")
      ->group(group);
  app->add_option("--pool", o->pool,
                  "host pool of the private memserver; default: what the job needs")
      ->group(group);
  app->add_option("--resume", o->resume,
                  "auto: go on behind the job's last sealed step, and leave the job with memserver "
                  "when a signal ends this run; never; default: "
                  "never, auto after torchrun's restart")
      ->group(group)
      ->check(CLI::IsMember({"auto", "never"}));
  app->add_flag("--or-new", o->or_new,
                "with --resume auto: begin at step 1 where the job was kept and is gone (else exit "
                "code 7)")
      ->group(group);
  app->add_option(
         "--server-timeout", o->server_timeout,
         "how long a memserver that ended is waited for (then exit code 75); 0s: not at all")
      ->group(group)
      ->capture_default_str();
  app->add_option("--wait", o->queue_timeout,
                  "wait in memserver's queue when there is no room for the job, for so long "
                  "(without TIME: a day)")
      ->group(group)
      ->expected(0, 1)
      ->type_name("TIME");
  app->add_option("--rejoin-timeout", o->rejoin_timeout,
                  "with --resume auto: how long a rank is waited for that gives no sign of life "
                  "(then exit code 75); one that trainer "
                  "launch knows to live is waited for as long as it does")
      ->group(group)
      ->capture_default_str();
  app->add_option("--threads", o->threads, "compute threads of this rank; 0: cores / local ranks")
      ->group(group)
      ->capture_default_str();
  app->add_flag("--deterministic", o->deterministic,
                "on a GPU: only operators that give the same bits in every run (slower)")
      ->group(group);
  app->add_flag("!--no-prefetch", o->prefetch, "fetch chunks only when they are needed")
      ->group("memory");
}

void AddOutputFlags(CLI::App* app, RunOptions* o) {
  const char* group = "output";
  app->add_option("--out", o->out_dir, "directory for metrics.jsonl and TensorBoard events")
      ->group(group)
      ->type_name("DIR");
  app->add_option("--save", o->save_dir,
                  "directory for the fp32 weights, or adapters, after the last step (safetensors)")
      ->group(group)
      ->type_name("DIR");
  app->add_option(
         "--trace", o->trace_file,
         "where the time of the last step goes, as a Chrome trace (ui.perfetto.dev opens it)")
      ->group(group)
      ->type_name("FILE");
  app->add_option("--log-every", o->log_every, "steps between progress lines off a terminal")
      ->group(group)
      ->capture_default_str();
  CLI::Option* quiet =
      app->add_flag("--quiet", o->quiet, "say nothing but warnings and errors")->group(group);
  app->add_flag("--verbose", o->verbose,
                "begin with the whole plan: chunks, rCache, memory by tier, device, server")
      ->group(group)
      ->excludes(quiet);
  app->add_flag("--dry-run", o->dry_run, "check everything and show the plan; train nothing")
      ->group(group);
}

void AddSampleFlags(CLI::App* app, RunOptions* o) {
  app->add_option("dir", o->weights_dir,
                  "directory that `trainer run --save` wrote: a model, or adapters")
      ->required()
      ->type_name("DIR");
  app->add_option("--base", o->base,
                  "of adapters, where their base is no longer where it was when they were trained")
      ->type_name("DIR|FILE");
  app->add_option("prompt", o->prompt, "text to continue")->required();
  app->add_option("--tokens", o->sample_tokens, "how many to generate")->capture_default_str();
  app->add_option("--temperature", o->temperature, "0: always the likeliest token")
      ->capture_default_str();
  app->add_option("--top-k", o->top_k, "choose among the k likeliest; 0: among all")
      ->capture_default_str();
  app->add_option("--seed", o->seed, "seed of the choice")->capture_default_str();
  app->add_option("--threads", o->threads, "compute threads; 0: all cores")->capture_default_str();
}

// Every flag that is a number has its range.
void CheckNumbers(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    const NumberFlag* flag = FindNumberFlag(app->get_name(), option->get_name());
    if (flag == nullptr) continue;
    option->transform(CLI::Validator(
        [flag](std::string& text) { return CheckNumber(*flag, &text); }, std::string()));
  }
}

// The command that `launch` shall start, read as a rank will read it.
bool ParseLaunched(CommandLine* line, int* exit_code) {
  if (line->launch_arguments.front() != "run") return true;
  std::vector<std::string> words = line->launch_arguments;
  words.insert(words.begin(), "trainer");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  CommandLine launched;
  const bool goes_on =
      ParseCommandLine(static_cast<int>(argv.size()), argv.data(), &launched, exit_code);
  line->options = std::move(launched.options);
  return goes_on;
}

// `; did you mean "--steps"?` for the first word of the command line that looks like a flag and is
// none of the command's.
std::string NearestFlag(const CLI::App& app, int argc, char** argv) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (chosen.empty()) return {};
  std::vector<std::string> names;
  for (const CLI::Option* option : chosen.front()->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  for (int i = 1; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (word.starts_with("--") && std::find(known.begin(), known.end(), word) == known.end())
      return DidYouMean(word, known);
  }
  return {};
}

// CLI11's exit codes become the house's: 0 for help and version, 2 for every usage error.
int ExitOf(const CLI::App& app, const CLI::ParseError& error, const std::string& hint) {
  if (error.get_exit_code() == 0) {
    app.exit(error);
    return kExitOk;
  }
  Status status =
      Status(ErrorId::kUsageError, error.what() + hint).Where("command line of trainer");
  std::cerr << status.Format() << "\n";
  return kExitUsage;
}

constexpr std::array<std::string_view, 7> kCommands{"run",    "estimate", "sample",    "launch",
                                                    "doctor", "version",  "completion"};

std::string CompletionText(const CLI::App& app, const std::string& shell) {
  std::vector<CompletedCommand> commands;
  AppendCommands(
      app, "", [](CompletedValues*, const std::string&) {}, &commands);
  return shell == "bash" ? BashCompletion("trainer", commands) : ZshCompletion("trainer", commands);
}

bool UnknownCommand(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return false;
  return std::find(kCommands.begin(), kCommands.end(), argv[1]) == kCommands.end();
}

}  // namespace

bool ParseCommandLine(int argc, char** argv, CommandLine* line, int* exit_code) {
  CLI::App app("trainer trains models whose states are in a memory server (memserver)");
  app.set_version_flag("--version", "trainer " TIDEPOOL_VERSION);
  app.footer(kExamples);
  app.require_subcommand(1);
  CLI::App* run = app.add_subcommand("run", "train; one process a rank");
  CLI::App* estimate =
      app.add_subcommand("estimate", "memory by tier for a model; nothing is started");
  CLI::App* sample = app.add_subcommand("sample", "generate text from saved weights");
  CLI::App* launch =
      app.add_subcommand("launch", "start N ranks on this machine: launch -n 2 -- run ...");
  CLI::App* doctor = app.add_subcommand(
      "doctor", "what this machine has for --device (default here: auto), and why not more");
  app.add_subcommand("version", "versions of trainer, protocol and LibTorch");
  std::string shell;
  CLI::App* completion = app.add_subcommand(
      "completion",
      "print what a shell completes this command line with: source <(trainer completion bash)");
  completion->add_option("shell", shell)->required()->check(CLI::IsMember({"bash", "zsh"}));
  RunOptions* o = &line->options;
  for (CLI::App* command : {run, estimate}) {
    AddModelFlags(command, o);
    AddAdapterFlags(command, o);
    AddMemoryFlags(command, o);
    AddDataFlags(command, o);
    AddOptimizerFlags(command, o);
    AddDeviceFlag(command, o);
  }
  AddTrainingFlags(run, o);
  AddPlaceFlags(run, o);
  AddOutputFlags(run, o);
  run->footer(kExamples);
  estimate->add_option("--ranks", o->ranks, "for so many ranks")->capture_default_str();
  for (CLI::App* command : {run, estimate})
    command->add_flag("--json", o->json, "the plan as JSON on stdout");
  AddDeviceFlag(doctor, o);
  doctor->get_option("--device")->default_str("auto");
  AddSampleFlags(sample, o);
  launch->add_option("-n,--ranks", line->launch_ranks, "ranks to start")->required();
  launch
      ->add_option("--max-restarts", line->launch_restarts,
                   "with --resume auto in the command: how often a rank that died is started again")
      ->capture_default_str();
  launch->add_option("command", line->launch_arguments, "after `--`: run and its flags")
      ->required();
  launch->footer(kExamples);
  for (CLI::App* command : {run, estimate, sample, launch}) CheckNumbers(command);
  if (UnknownCommand(argc, argv)) {
    const Status unknown =
        Status(ErrorId::kUsageError,
               "unknown command \"" + std::string(argv[1]) + "\"" + DidYouMean(argv[1], kCommands))
            .Where("command line of trainer");
    std::cerr << unknown.Format() << "\n";
    *exit_code = kExitUsage;
    return false;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_code = ExitOf(app, error, NearestFlag(app, argc, argv));
    return false;
  }
  if (completion->parsed()) {
    std::cout << CompletionText(app, shell);
    *exit_code = kExitOk;
    return false;
  }
  if (doctor->parsed() && doctor->count("--device") == 0) o->device = "auto";
  line->command = run->parsed()        ? Command::kRun
                  : doctor->parsed()   ? Command::kDoctor
                  : estimate->parsed() ? Command::kEstimate
                  : sample->parsed()   ? Command::kSample
                  : launch->parsed()   ? Command::kLaunch
                                       : Command::kVersion;
  return line->command != Command::kLaunch || ParseLaunched(line, exit_code);
}

}  // namespace tidepool::trainer
