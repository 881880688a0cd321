// RunOptions: everything that `trainer run`, `trainer estimate` and `trainer sample` can be told on
// the command line, each setting once, with its default.
//
// Value types, one for each group of settings; a function takes the groups that it needs. Sizes and
// durations are in the text form that units.h reads, so that "25%" can mean a share of what is
// known only later.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"

namespace tidepool::trainer {

// What is trained, and what its weights begin with.
struct ModelOptions {
  // Directory or file of a saved model, whose shape is taken; empty: new weights of the preset.
  std::string from;
  std::string preset = "quickstart";  // the model that has words to show after two minutes
  std::string moe;                    // experts, as ReadMoe reads them; empty: those of the preset
  std::string dtype = "fp32";         // of parameters and gradients: fp32, bf16 or fp16
  uint64_t seed = 1;                  // of weights, batches and the first step's evictions
  bool activation_checkpointing = false;
  bool offload_activations = false;  // with checkpointing: what it keeps goes to host memory
};

// Adapters (LoRA) over a saved model, which stays as it is.
struct AdapterOptions {
  // File or directory of a saved model, whose shape is taken; empty: the model itself is trained.
  std::string base;
  uint32_t rank = 0;  // 0: no adapters
  float alpha = 16;   // adapters count alpha / rank times
  std::string targets = "attention";
};

// What is read.
struct DataOptions {
  std::string path;  // file or directory; empty: the licence texts of Debian
  // Directory of the tokenizer for text; empty: that beside --from or --base, else bytes.
  std::string tokenizer;
  uint64_t context = 0;  // tokens of one sequence; 0: the preset's
  uint64_t batch = 8;    // sequences of one micro-batch, over all ranks
};

// Steps, the rate of each, and how often progress is measured.
struct TrainingOptions {
  uint64_t steps = 200;
  uint32_t micro_batches = 1;  // of one step: gradient accumulation
  float learning_rate = 1e-3f;
  std::string schedule = "cosine";  // constant, linear or cosine
  uint64_t warmup_steps = 20;
  float min_learning_rate = 1e-4f;  // at the end of the schedule
  uint64_t eval_every = 50;         // steps between held-out losses; 0: never
  uint64_t eval_batches = 4;        // of one held-out loss
};

// The update rule; each rule reads the numbers that it has (optim/rules).
struct OptimizerOptions {
  std::string rule = "adamw";
  std::string states = "fp32";  // form of master and moments
  float weight_decay = 0.1f;    // of matrices; biases and norms have none
  float clip = 1.0f;            // largest global gradient norm; 0: no clipping
  // adamw, adam, lion: usual for transformers.
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  // sgd.
  float momentum = 0.9f, dampening = 0;
  bool nesterov = false;
  float lr_decay = 0;  // adagrad
};

// What a rank holds of the model while it computes, and where states are.
struct MemoryOptions {
  // Share of the non-resident parameters, or a size; auto: SettleRcache decides.
  std::string rcache = "25%";
  bool rcache_given = false;  // by whoever starts the run: with `plan`, it is a limit
  std::string plan;           // ddp, zero2, zero3, auto; empty: `rcache` alone says
  std::string device_memory;  // with auto: what one rank may use; empty: what the GPU has
  std::string rates_file;     // with auto: how fast copies and updates are; empty: not known
  std::string chunk_size = "auto";
  std::string gpu_states = "off";  // off, auto, or bytes of each GPU for optimizer states
  bool prefetch = true;
};

// Where this rank computes.
struct DeviceOptions {
  std::string name = "cpu";    // cpu, cuda, cuda:N, auto
  bool deterministic = false;  // on a GPU: only operators whose sums have a fixed order; slower
  uint32_t threads = 0;        // compute threads of this rank; 0: cores / local ranks
};

// The job's name, and how a run comes to it and goes on with it.
struct JobOptions {
  std::string name;  // empty: from the launcher, or made of preset and process id
  // "auto", "never", "latest" (of the folder of checkpoints) or a checkpoint; empty: auto where
  // torchrun has started the ranks again, else never.
  std::string resume;
  bool or_new = false;               // with resume: begin anew where the states of the job are gone
  std::string queue_timeout = "0s";  // for room in the server's queue; empty: a day
  std::string rejoin_timeout = "10min";  // with resume: for ranks that died, without a sign of life
};

// The memserver that holds the job's states.
struct ServerOptions {
  std::string socket_dir;        // empty: the default place
  std::string timeout = "120s";  // for one that ended and is started again
  bool standalone = false;       // a private one, which ends with the run
  std::string pool;              // of the private one; empty: as small as the job allows
  std::string program;           // of the private one; empty: memserver beside this one, or in PATH
};

// What a run writes and shows.
struct OutputOptions {
  std::string out_dir;     // metrics.jsonl and TensorBoard events; empty: none
  std::string save_dir;    // weights after the last step; empty: none
  std::string trace_file;  // where the last step's time goes; empty: nowhere
  uint64_t log_every = 1;  // steps between progress lines, off a terminal
  bool quiet = false, verbose = false;
  bool dry_run = false;
  bool json = false;  // `estimate` and --dry-run: JSON instead of a table
};

// Checkpoints while a run trains.
struct CheckpointOptions {
  uint64_t every = 0;  // steps; 0: none
  std::string dir;     // the folder that holds them
  uint64_t keep = 3;   // the newest so many; 0: all
};

// `trainer sample`; it also reads the seed, the base of adapters and the threads.
struct SampleOptions {
  std::string weights_dir, prompt;
  bool interactive = false;  // prompts come from standard input
  uint64_t tokens = 200;
  float temperature = 0.8f;  // 0: always the likeliest token
  uint32_t top_k = 0;        // 0: among all
};

// `trainer export`.
struct ExportOptions {
  std::string from, to;
  std::string base;  // of adapters, where their base is no longer where they say
  std::string dtype = "fp32";
};

// `trainer tokenize`.
struct TokenizeOptions {
  std::string tokenizer, text, to;
};

// `trainer run --pipeline` and `trainer estimate --pipeline`.
struct PipelineOptions {
  std::string stages;          // auto, or how many; empty: no pipeline
  std::vector<uint32_t> ends;  // run: of each stage the layer behind its last, by SettleStages
  std::vector<Rank> ranks;     // likewise: the rank that computes it
  std::string topology_file;   // the GPUs; empty: the paper's machine
  std::string lp_file;         // the program of the partition goes there; empty: nowhere
  std::string timeline_file;   // a picture of the schedule; empty: none
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
  uint32_t ranks = 0;  // estimate: as if for so many ranks; 0: from the launcher
};

}  // namespace tidepool::trainer
