// RunOptions: everything that `trainer run`, `trainer estimate` and `trainer sample` can be told on
// the command line, with its default.
//
// A value type. Sizes are in the text form that units.h reads, so that "25%" can mean a share of
// what is known only later.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"

namespace tidepool::trainer {

struct RunOptions {
  // model
  std::string preset = "quickstart";
  bool activation_checkpointing = false;
  bool offload_activations = false;  // with checkpointing: what it keeps goes to host memory
  uint64_t seed = 1;
  // adapters over a base File or directory of a saved model, whose shape is taken; empty: the model
  // itself is trained.
  std::string base;
  uint32_t lora_rank = 0;  // 0: no adapters
  float lora_alpha = 16;
  std::string lora_targets = "attn.c_attn,attn.c_proj";
  // data
  std::string data;            // file or directory; empty: the licence texts of Debian
  uint64_t context = 0;        // tokens of one sequence; 0: the preset's
  uint64_t batch = 8;          // sequences of one micro-batch, over all ranks
  uint32_t micro_batches = 1;  // gradient accumulation
  // training
  uint64_t steps = 200;
  std::string dtype = "fp32";
  std::string optimizer = "adamw";
  float learning_rate = 1e-3f;
  std::string schedule = "cosine";
  uint64_t warmup_steps = 20;
  float min_learning_rate = 1e-4f;
  float weight_decay = 0.1f;
  std::string states = "fp32";  // form of the optimizer states
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float momentum = 0.9f, dampening = 0, lr_decay = 0;
  bool nesterov = false;
  float clip = 1.0f;
  uint64_t eval_every = 50;
  uint64_t eval_batches = 4;
  // memory Share of the non-resident parameters, or a size; auto: SettleRcache decides.
  std::string rcache = "25%";
  std::string device_memory;  // with auto: what one rank may use; empty: what the GPU has
  std::string rates_file;     // with auto: how fast copies and updates are; empty: not known
  std::string chunk_size = "auto";
  std::string gpu_states = "off";  // off, auto, or bytes of each GPU for optimizer states
  bool prefetch = true;
  // place
  std::string device = "cpu";  // cpu, cuda, cuda:N, auto
  bool deterministic = false;  // on a GPU: only operators whose sums have a fixed order
  std::string job;             // empty: from the launcher, or made of preset and process id
  std::string socket_dir;      // empty: the default place
  // "auto" or "never"; empty: auto where torchrun has started the ranks again, else never.
  std::string resume;
  bool or_new = false;  // with resume: begin anew where the states of the job are gone
  std::string server_timeout = "120s";
  std::string queue_timeout = "0s";      // for room in the server's queue; empty: a day
  std::string rejoin_timeout = "10min";  // with resume: for ranks that died, without a sign of life
  bool standalone = false;
  std::string pool;      // of the private server; empty: as small as the job allows
  uint32_t threads = 0;  // compute threads of this rank; 0: cores / local ranks
  // output
  std::string out_dir;     // metrics.jsonl and TensorBoard events; empty: none
  std::string save_dir;    // weights after the last step; empty: none
  std::string trace_file;  // where the last step's time goes; empty: nowhere
  uint64_t log_every = 1;
  bool quiet = false, verbose = false;
  bool dry_run = false;
  bool json = false;  // `estimate` and `--dry-run`: JSON instead of a table
  // sample
  std::string weights_dir, prompt;
  uint64_t sample_tokens = 200;
  float temperature = 0.8f;
  uint32_t top_k = 0;
  uint32_t ranks = 0;  // estimate: as if for so many ranks; 0: from the launcher
};

}  // namespace tidepool::trainer
