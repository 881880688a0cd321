// RunOptions: all settings of `trainer run`, `trainer estimate` and `trainer sample` on the command
// line, each once, with its default.
//
// Value types, one per group of settings; functions take only the groups they need. Sizes and
// durations stay in the text form that units.h parses, so that "25%" can be a share of an amount
// known only later.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "trainer/output/planned_lanes.h"

namespace tidepool::trainer {

// The model to train, and its initial weights.
struct ModelOptions {
  // File or directory of a saved model, which also gives the shape; empty: a new model.
  std::string from;
  std::string preset = "quickstart";  // this preset generates words after two minutes
  // Experts, in the form of ReadMoe, or the file of ReadMoeFile; empty: the preset's.
  std::string moe;
  std::string dtype = "fp32";  // of parameters and gradients: fp32, bf16 or fp16
  uint64_t seed = 1;           // for weights, batches and the first step's evictions
  bool activation_checkpointing = false;
  bool offload_activations = false;  // with checkpointing: kept activations go to host memory
  uint32_t vocab_tiles = 1;          // of the loss; 1: all logits at once
  std::string tile_linear;           // the most bytes of a tile of a linear layer; empty: no tiles
};

// Adapters (LoRA) over a saved model, which stays unchanged.
struct AdapterOptions {
  // File or directory of a saved model, which also gives the shape; empty: trains the model itself.
  std::string base;
  uint32_t rank = 0;  // 0: no adapters
  float alpha = 16;   // adapters are scaled by alpha / rank
  std::string targets = "attention";
};

// Training data.
struct DataOptions {
  std::string path;  // file or directory; empty: Debian's licence texts
  // Directory of the text tokenizer; empty: the one beside --from or --base, else bytes.
  std::string tokenizer;
  uint64_t context = 0;  // tokens per sequence; 0: the preset's
  uint64_t batch = 8;    // sequences per micro-batch, over all ranks
};

// Steps, learning rate and evaluation.
struct TrainingOptions {
  uint64_t steps = 200;
  uint32_t micro_batches = 1;  // per step: gradient accumulation
  float learning_rate = 1e-3f;
  std::string schedule = "cosine";  // constant, linear or cosine
  uint64_t warmup_steps = 20;
  float min_learning_rate = 1e-4f;  // at the end of the schedule
  uint64_t eval_every = 50;         // steps between held-out losses; 0: never
  uint64_t eval_batches = 4;        // per held-out loss
};

// The update rule; each rule reads the numbers that it uses (optim/rules).
struct OptimizerOptions {
  std::string rule = "adamw";
  std::string states = "fp32";  // form of master and moments
  float weight_decay = 0.1f;    // for matrices; biases and norms have none
  float clip = 1.0f;            // largest global gradient norm; 0: no clipping
  // For adamw, adam, lion: usual for transformers.
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  // For sgd.
  float momentum = 0.9f, dampening = 0;
  bool nesterov = false;
  float lr_decay = 0;  // for adagrad
};

// How much of the model a rank holds while it computes, and where states are.
struct MemoryOptions {
  // Share of the non-resident parameters, or a size; auto: SettleRcache decides.
  std::string rcache = "25%";
  bool rcache_given = false;  // by the user; with `plan`, it is a limit
  std::string plan;           // ddp, zero2, zero3, auto; empty: only `rcache` decides
  std::string device_memory;  // with auto: limit per rank; empty: what the GPU has
  // The rCache takes at each moment what operators leave of `device_memory`, as measured.
  bool dynamic_rcache = false;
  std::string rates_file;  // with auto: measured copy and update rates; empty: none
  std::string chunk_size = "auto";
  std::string gpu_states = "off";  // off, auto, or bytes per GPU for optimizer states
  bool prefetch = true;
};

// Where this rank computes.
struct DeviceOptions {
  std::string name = "cpu";    // cpu, cuda, cuda:N, auto
  bool deterministic = false;  // on a GPU: only operators with a fixed order of summation; slower
  uint32_t threads = 0;        // compute threads per rank; 0: cores / local ranks
};

// The job's name, and how a run attaches to it and resumes it.
struct JobOptions {
  std::string name;  // empty: the launcher's, or preset and process id
  // "auto", "never", "latest" (in the checkpoint folder) or a checkpoint; empty: auto if torchrun
  // has restarted the ranks, else never.
  std::string resume;
  bool or_new = false;                   // with resume: start over if the job's states are gone
  std::string queue_timeout = "0s";      // wait for room in the server's queue; empty: a day
  std::string rejoin_timeout = "10min";  // with resume: wait for dead ranks, without signs of life
};

// The memserver that holds the job's states.
struct ServerOptions {
  std::string socket_dir;        // empty: the default directory
  std::string timeout = "120s";  // wait for a server that has ended and is restarted
  bool standalone = false;       // a private server, which ends with the run
  std::string pool;              // of the private server; empty: as small as the job allows
  std::string program;           // of the private server; empty: beside this program, or in PATH
};

// Output of a run.
struct OutputOptions {
  std::string out_dir;     // metrics.jsonl and TensorBoard events; empty: none
  std::string save_dir;    // weights after the last step; empty: none
  std::string trace_file;  // time breakdown of the last step; empty: none
  uint64_t log_every = 1;  // steps between progress lines, when not on a terminal
  bool quiet = false, verbose = false;
  bool dry_run = false;
  bool json = false;     // `estimate` and --dry-run: JSON instead of a table
  std::string svg_file;  // `estimate`: a picture of the rCache over a step; empty: none
};

// Checkpoints during training.
struct CheckpointOptions {
  uint64_t every = 0;  // steps; 0: none
  std::string dir;     // folder of the checkpoints
  uint64_t keep = 3;   // number of newest ones kept; 0: all
  // Folder of the log of steps; empty: steps are not logged.
  std::string durable_steps = {};
  bool sync_steps = false;  // no step ends before the log of the one before is synced
};

// `trainer sample`; it also reads the seed, the adapters' base and the threads.
struct SampleOptions {
  std::string weights_dir, prompt;
  bool interactive = false;  // reads prompts from standard input
  uint64_t tokens = 200;
  float temperature = 0.8f;  // 0: always the most likely token
  uint32_t top_k = 0;        // 0: all tokens
};

// `trainer export`.
struct ExportOptions {
  std::string from, to;
  std::string base;  // the adapters' base, if it has moved
  std::string dtype = "fp32";
};

// `trainer tokenize`.
struct TokenizeOptions {
  std::string tokenizer, text, to;
};

// `trainer run --pipeline` and `trainer estimate --pipeline`.
struct PipelineOptions {
  std::string stages;          // auto, or a number; empty: no pipeline
  uint32_t columns = 1;        // parallel pipelines; each trains other sequences
  std::vector<uint32_t> ends;  // run: by stage, one past its last layer; set by SettleStages
  std::vector<Rank> ranks;     // likewise: the rank that computes the stage
  PlannedStep planned;         // likewise: the schedule that they were chosen by
  std::string topology_file;   // the GPUs; empty: the paper's machine
  std::string lp_file;         // output of the partition's linear program; empty: none
  std::string timeline_file;   // output of the schedule's picture; empty: none
};

struct RunOptions {
  ModelOptions model;
  AdapterOptions adapters;
  DataOptions data;
  TrainingOptions training;
  OptimizerOptions optimizer;
  MemoryOptions memory;
  DeviceOptions device;
  JobOptions job;
  ServerOptions server;
  OutputOptions output;
  CheckpointOptions checkpoint;
  SampleOptions sample;
  ExportOptions exported;
  TokenizeOptions tokenize;
  PipelineOptions pipeline;
  uint32_t ranks = 0;  // estimate: number of ranks to assume; 0: from the launcher
};

}  // namespace tidepool::trainer
