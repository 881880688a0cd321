#include "trainer/cli/tool_flags.h"

#include <CLI/CLI.hpp>

namespace tidepool::trainer {

void AddExportFlags(CLI::App* app, ExportOptions* o) {
  app->add_option("dir", o->from,
                  "what `trainer run --save` wrote: a model, or adapters; or a Hugging Face "
                  "directory of a GPT-2 or a Llama")
      ->required()
      ->type_name("DIR|FILE");

  app->add_option("to", o->to, "directory for model.safetensors and config.json")
      ->required()
      ->type_name("DIR");

  app->add_option("--dtype", o->dtype, "of the weights that are written: fp32, bf16 or fp16")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();

  app->add_option("--base", o->base,
                  "of adapters, where their base is no longer where it was when they were trained")
      ->type_name("DIR|FILE");
}

void AddTokenizeFlags(CLI::App* app, TokenizeOptions* o) {
  app->add_option("--tokenizer", o->tokenizer,
                  "directory with tokenizer.json, or vocab.json and merges.txt, of GPT-2's kind")
      ->required()
      ->type_name("DIR");

  app->add_option("text", o->text, "what to tokenize")->required()->type_name("FILE");

  app->add_option("to", o->to,
                  "token file; beside a name with \"train\" in it, the same name with \"val\" is "
                  "what --data holds out")
      ->required()
      ->type_name("FILE");
}

void AddRatesFlags(CLI::App* app, RunOptions* o) {
  app->add_option("--socket-dir", o->server.socket_dir, "where memserver listens")
      ->envname("TIDEPOOL_SOCKET_DIR")
      ->type_name("DIR");
  app->add_flag("--json", o->output.json, "the file that memserver wrote");
}

void AddPipelineFlags(CLI::App* app, RunOptions* o) {
  const char* group = "pipeline";
  CLI::Option* pipeline =
      app->add_option("--pipeline", o->pipeline.stages,
                      "plan a pipeline over the GPUs (Mobius) of so many stages, or auto: as many "
                      "as make the shortest step; beside it the ZeRO-3 way")
          ->group(group)
          ->type_name("auto|STAGES")
          ->excludes("--plan")
          ->excludes("--dynamic-rcache");

  app->add_option("--topology", o->pipeline.topology_file,
                  "the GPUs: which share a root complex, rates, memory (docs/planning.md); "
                  "default: --ranks GPUs as the paper has them")
      ->group(group)
      ->type_name("FILE")
      ->needs(pipeline);

  app->add_option("--timeline", o->pipeline.timeline_file,
                  "a picture of the step: what computes and is copied when")
      ->group(group)
      ->type_name("FILE.svg")
      ->needs(pipeline);

  app->add_option("--lp", o->pipeline.lp_file,
                  "the paper's program for the stages, in the form that solvers read")
      ->group(group)
      ->type_name("FILE")
      ->needs(pipeline);

  app->add_flag("--verbose", o->output.verbose,
                "all ways that were compared, and how long the search took")
      ->group(group)
      ->needs(pipeline);
}

void AddStageFlags(CLI::App* app, PipelineOptions* o) {
  const char* group = "pipeline";
  CLI::Option* pipeline =
      app->add_option("--pipeline", o->stages,
                      "compute a step in so many stages of layers, each for all --accumulate "
                      "micro-batches at a time, or auto (docs/pipeline.md); on the host")
          ->group(group)
          ->type_name("auto|STAGES")
          ->excludes("--plan")
          ->excludes("--dynamic-rcache");

  app->add_option("--columns", o->columns,
                  "with --pipeline: pipelines side by side, which share the ranks and --batch "
                  "equally")
      ->group(group)
      ->type_name("N")
      ->capture_default_str();

  app->add_option("--topology", o->topology_file,
                  "with --pipeline: the machine that the stages are planned for (docs/planning.md)")
      ->group(group)
      ->type_name("FILE")
      ->needs(pipeline);
}

void AddSampleFlags(CLI::App* app, RunOptions* o) {
  app->add_option("dir", o->sample.weights_dir,
                  "directory that `trainer run --save` wrote: a model, or adapters")
      ->required()
      ->type_name("DIR");

  app->add_option("--base", o->adapters.base,
                  "of adapters, where their base is no longer where it was when they were trained")
      ->type_name("DIR|FILE");

  app->add_option("prompt", o->sample.prompt, "text to continue");

  app->add_flag("-i,--interactive", o->sample.interactive,
                "continue each line of standard input; an empty one goes on with the last text");

  app->add_option("--tokens", o->sample.tokens, "how many to generate")->capture_default_str();

  app->add_option("--temperature", o->sample.temperature, "0: always the likeliest token")
      ->capture_default_str();

  app->add_option("--top-k", o->sample.top_k, "choose among the k likeliest; 0: among all")
      ->capture_default_str();

  app->add_option("--seed", o->model.seed, "seed of the choice")->capture_default_str();

  app->add_option("--threads", o->device.threads,
                  "compute threads; 0: as many as are fastest for this model, by a short trial")
      ->capture_default_str();
}

}  // namespace tidepool::trainer
