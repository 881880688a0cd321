#include "trainer/cli/run_flags.h"

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/formats/optimizer.h"

namespace tidepool::trainer {
namespace {

template <typename Names>
CLI::IsMember OneOf(const Names& names) {
  return CLI::IsMember(std::vector<std::string>(names.begin(), names.end()));
}

}  // namespace

void AddModelFlags(CLI::App* app, ModelOptions* o) {
  app->add_option("--preset", o->preset,
                  "model shape: tiny, small, quickstart, gpt2-124m, llama-1b, ... (an unknown name "
                  "lists all)")
      ->group("model")
      ->capture_default_str();

  app->add_option(
         "--moe", o->moe,
         "experts in place of MLPs, in Llama's form: every=2,experts=8,top-k=2; also width=N, "
         "capacity=1.25, aux=0.01, z=0.001, residual=yes (the MLP stays beside them), and ep=N: "
         "ranks that share a block's experts; or a file with a line for each block that differs")
      ->group("model")
      ->type_name("KEY=N,...|FILE");

  app->add_option(
         "--from", o->from,
         "train a saved model on: what `trainer run --save` wrote (adapters are merged), or "
         "a Hugging Face directory of a GPT-2 or a Llama; the optimizer begins anew")
      ->group("model")
      ->type_name("DIR|FILE")
      ->excludes("--preset");

  app->add_flag("--checkpoint-activations", o->activation_checkpointing,
                "recompute each block's forward in backward, to save activations")
      ->group("model");

  app->add_flag("--offload-activations", o->offload_activations,
                "with --checkpoint-activations: keep each block's input in host memory")
      ->group("model")
      ->needs("--checkpoint-activations");

  app->add_option("--vocab-tiles", o->vocab_tiles,
                  "compute the loss in so many tiles of the vocabulary: the logits of one tile are "
                  "in memory, and are computed again in backward")
      ->group("model")
      ->capture_default_str();

  app->add_option("--tile-linear", o->tile_linear,
                  "cut linear layers of blocks that are larger than this along their outputs, into "
                  "parameters of at most so many bytes; a job keeps its tiles")
      ->group("model")
      ->type_name("SIZE");

  app->add_option("--seed", o->seed, "seed of weights, batches and the first step's evictions")
      ->group("model")
      ->capture_default_str();

  app->add_option("--dtype", o->dtype,
                  "parameters and gradients: fp32, bf16, or fp16 with dynamic loss scaling")
      ->group("model")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
}

void AddAdapterFlags(CLI::App* app, AdapterOptions* o) {
  const char* group = "adapters";
  app->add_option("--base", o->base,
                  "what `trainer run --save` wrote: its model stays as it is, in one copy for all "
                  "jobs of yours over it")
      ->group(group)
      ->type_name("DIR|FILE")
      ->excludes("--preset")
      ->excludes("--from");

  app->add_option(
         "--lora-rank", o->rank,
         "train adapters of this rank beside the model's linear layers (LoRA), and nothing else")
      ->group(group);

  app->add_option("--lora-alpha", o->alpha, "adapters count alpha / rank times")
      ->group(group)
      ->capture_default_str();

  app->add_option(
         "--lora-targets", o->targets,
         "which linear layers of each block: attention, all, or names (an unknown one lists them)")
      ->group(group)
      ->type_name("NAME,...")
      ->capture_default_str();
}

void AddDeviceFlag(CLI::App* app, DeviceOptions* o) {
  app->add_option("--device", o->name,
                  "where to compute: cpu, cuda (the local rank's GPU), cuda:N, or auto: cuda where "
                  "it can be used")
      ->group("server")
      ->type_name("DEVICE")
      ->capture_default_str();
}

void AddMemoryFlags(CLI::App* app, MemoryOptions* o, TrainingOptions* training) {
  app->add_option("--rcache", o->rcache,
                  "rCache of each rank: a share of the non-resident parameters (25%), a size "
                  "(64MiB), or auto: what the device has room for")
      ->group("memory")
      ->each([o](const std::string&) { o->rcache_given = true; })
      ->capture_default_str();

  app->add_option("--plan", o->plan,
                  "how ranks hold the model: ddp (whole chunks, all-reduce), zero2 (all chunks "
                  "resident, reduce-scatter), zero3 (few), or auto; --rcache is a limit then")
      ->group("memory")
      ->check(CLI::IsMember({"ddp", "zero2", "zero3", "auto"}));

  app->add_option("--device-memory", o->device_memory,
                  "with --rcache auto or --plan: memory that one rank may use; default: that of "
                  "the GPU here")
      ->group("memory")
      ->type_name("SIZE");

  app->add_flag("--dynamic-rcache", o->dynamic_rcache,
                "with --rcache auto and --device-memory, on the host: measure in the first step "
                "what operators need at each moment, and give the rCache the rest of that memory")
      ->group("memory");

  app->add_option("--rates", o->rates_file,
                  "with --rcache auto or --plan auto: measured rates of copies and updates "
                  "(docs/planning.md)")
      ->group("memory")
      ->type_name("FILE");

  app->add_option("--chunk-size", o->chunk_size,
                  "bytes of a chunk, or auto: least waste over a range of sizes, or traffic: "
                  "fewest bytes moved through this --rcache")
      ->group("memory")
      ->capture_default_str();

  app->add_option("--gpu-states", o->gpu_states,
                  "of each GPU for states of Adam, which are updated there: off, a size, or auto: "
                  "those of chunks that are always resident")
      ->group("memory")
      ->type_name("SIZE")
      ->capture_default_str();

  app->add_option("--accumulate", training->micro_batches,
                  "micro-batches of one step (gradient accumulation)")
      ->group("memory")
      ->capture_default_str();
}

void AddDataFlags(CLI::App* app, DataOptions* o) {
  app->add_option("--data", o->path,
                  "text FILE or DIR (bytes), or a token file of llm.c or nanoGPT; default: "
                  "Debian's licence texts")
      ->group("data")
      ->type_name("FILE");

  app->add_option("--tokenizer", o->tokenizer,
                  "how text becomes tokens: a directory with tokenizer.json, or vocab.json and "
                  "merges.txt, as GPT-2 and Llama have; default: what lies beside --from or "
                  "--base, else bytes")
      ->group("data")
      ->type_name("DIR");

  app->add_option("--context", o->context, "tokens of one sequence; 0: the preset's")
      ->group("data")
      ->capture_default_str();

  app->add_option("--batch", o->batch, "sequences of one micro-batch, over all ranks")
      ->group("data")
      ->capture_default_str();
}

void AddTrainingFlags(CLI::App* app, TrainingOptions* o, OptimizerOptions* optimizer) {
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

  app->add_option("--weight-decay", optimizer->weight_decay,
                  "for matrices; biases and norms have none")
      ->group(group)
      ->capture_default_str();

  app->add_option("--clip", optimizer->clip, "largest global gradient norm; 0: no clipping")
      ->group(group)
      ->capture_default_str();

  app->add_option("--eval-every", o->eval_every, "steps between held-out losses; 0: never")
      ->group(group)
      ->capture_default_str();

  app->add_option("--eval-batches", o->eval_batches, "batches of one held-out loss")
      ->group(group)
      ->capture_default_str();
}

void AddOptimizerFlags(CLI::App* app, OptimizerOptions* o) {
  const char* group = "optimizer";
  app->add_option("--optimizer", o->rule, "the update rule")
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
  app->add_option("--socket-dir", o->server.socket_dir, "where memserver listens")
      ->envname("TIDEPOOL_SOCKET_DIR")
      ->group(group)
      ->type_name("DIR");

  app->add_option("--job", o->job.name, "name of the job; default: from the launcher")
      ->group(group);

  app->add_flag("--standalone", o->server.standalone,
                "start a private memserver and end it with the run")
      ->group(group);

  app->add_option("--pool", o->server.pool,
                  "host pool of the private memserver; default: what the job needs")
      ->group(group);

  app->add_option("--resume", o->job.resume,
                  "auto: go on behind the job's last sealed step, and leave the job with memserver "
                  "when a signal ends this run, or, where memserver no longer has it, behind the "
                  "newest checkpoint of --checkpoint-dir; latest: behind that checkpoint; DIR: "
                  "behind this one; never; default: never, auto after torchrun's restart")
      ->group(group)
      ->type_name("auto|latest|DIR|never")
      ->check(CLI::IsMember({"auto", "latest", "never"}) | CLI::ExistingDirectory);

  app->add_flag("--or-new", o->job.or_new,
                "with --resume auto: begin at step 1 where the job was kept and is gone (else exit "
                "code 7)")
      ->group(group);

  app->add_option(
         "--server-timeout", o->server.timeout,
         "how long a memserver that ended is waited for (then exit code 75); 0s: not at all")
      ->group(group)
      ->capture_default_str();

  app->add_option("--wait", o->job.queue_timeout,
                  "wait in memserver's queue when there is no room for the job, for so long "
                  "(without TIME: a day)")
      ->group(group)
      ->expected(0, 1)
      ->type_name("TIME");

  app->add_option("--rejoin-timeout", o->job.rejoin_timeout,
                  "with --resume auto: how long a rank is waited for that gives no sign of life "
                  "(then exit code 75); one that trainer "
                  "launch knows to live is waited for as long as it does")
      ->group(group)
      ->capture_default_str();

  app->add_option("--threads", o->device.threads,
                  "compute threads of this rank; 0: cores / local ranks")
      ->group(group)
      ->capture_default_str();

  app->add_flag("--deterministic", o->device.deterministic,
                "on a GPU: only operators that give the same bits in every run (slower)")
      ->group(group);

  app->add_flag("!--no-prefetch", o->memory.prefetch, "fetch chunks only when they are needed")
      ->group("memory");
}

void AddCheckpointFlags(CLI::App* app, CheckpointOptions* o) {
  const char* group = "checkpoints";
  app->add_option("--checkpoint-every", o->every,
                  "steps between checkpoints: weights, moments, step and data cursor; 0: never")
      ->group(group)
      ->capture_default_str();

  app->add_option("--checkpoint-dir", o->dir, "the folder that holds them")
      ->group(group)
      ->type_name("DIR");

  app->add_option("--keep", o->keep, "the newest so many stay; 0: all")
      ->group(group)
      ->capture_default_str();

  app->add_option("--durable-steps", o->durable_steps,
                  "the folder of a log of every step behind the newest checkpoint; behind a power "
                  "cut, --resume latest makes these again")
      ->group(group)
      ->type_name("DIR");

  app->add_flag(
         "--sync-steps", o->sync_steps,
         "end no step before the log of the one before is on the drive: a power cut costs one "
         "step at most")
      ->group(group);
}

void AddOutputFlags(CLI::App* app, OutputOptions* o) {
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

}  // namespace tidepool::trainer
