#include "trainer/advice/pipeline_run.h"
#include "base/text/plural.h"

#include <charconv>
#include <utility>

namespace tidepool::trainer {
namespace {

Status Refused(const RunOptions& options, std::string what) {
  return Status(ErrorId::kUsageError, std::move(what))
      .Where("--pipeline " + options.pipeline.stages);
}

}  // namespace

Result<uint32_t> StagesOf(const std::string& text) {
  if (text == "auto") return 0U;
  uint32_t stages = 0;
  const auto [behind, error] = std::from_chars(text.data(), text.data() + text.size(), stages);
  if (error == std::errc() && behind == text.data() + text.size() && stages > 0) return stages;
  return Status(ErrorId::kUsageError, "\"" + text + "\" is no number of stages")
      .Where("--pipeline " + text)
      .Fix("give --pipeline auto, or a number like --pipeline 16");
}

Status CheckNoAdapters(const RunOptions& options) {
  if (options.adapters.rank == 0 && options.adapters.base.empty()) return {};
  const std::string flag = options.adapters.base.empty() ? "--lora-rank" : "--base";
  return Refused(options, flag + " has no meaning for a pipeline yet")
      .Why("stages are planned for models that are trained whole")
      .Fix("leave " + flag + " or --pipeline out");
}

uint32_t ColumnsOf(const RunOptions& options, uint32_t world) {
  return options.pipeline.stages.empty() ? world : options.pipeline.columns;
}

uint32_t ColumnOfRank(const RunOptions& options, uint32_t world, Rank rank) {
  return rank / (world / ColumnsOf(options, world));
}

Status CheckPipelineRun(const RunOptions& options, const GptShape& shape, uint32_t world) {
  if (options.pipeline.stages.empty()) {
    if (options.pipeline.columns != 1) {
      return Status(ErrorId::kUsageError, "--columns says nothing without --pipeline")
          .Where("--columns " + std::to_string(options.pipeline.columns))
          .Fix("add --pipeline auto, or leave --columns out: each rank trains its own sequences");
    }

    if (options.pipeline.topology_file.empty()) return {};
    return Status(ErrorId::kUsageError, "--topology says nothing without --pipeline")
        .Where("--topology " + options.pipeline.topology_file)
        .Fix("add --pipeline auto, or leave --topology out");
  }

  TP_ASSIGN_OR_RETURN(const uint32_t stages, StagesOf(options.pipeline.stages));
  TP_RETURN_IF_ERROR(CheckNoAdapters(options));
  const uint32_t columns = options.pipeline.columns;
  if (columns == 0 || world % columns != 0) {
    return Status(ErrorId::kUsageError, Counted(world, "rank") + " cannot be " +
                                            Counted(columns, "column") + " of as many ranks each")
        .Where("--columns " + std::to_string(columns))
        .Fix("give a number that divides the number of ranks, or leave --columns out");
  }

  const uint32_t width = world / columns;
  if (stages > shape.layers) {
    return Refused(options, Counted(stages, "stage") + ", and the model has " +
                                Counted(shape.layers, "layer"))
        .Why("a stage is a run of layers")
        .Fix("give at most --pipeline " + std::to_string(shape.layers));
  }

  if (stages > 0 && stages < width) {
    return Refused(options, Counted(stages, "stage") + " for " + std::to_string(width) +
                                " ranks: some would have nothing to do")
        .Fix("give at least --pipeline " + std::to_string(width) +
             ", or fewer ranks, or more --columns");
  }

  if (width > shape.layers) {
    return Refused(options, Counted(width, "rank") + ", and the model has " +
                                Counted(shape.layers, "layer") + ": some would have no stage")
        .Fix("start at most " + Counted(shape.layers, "rank") +
             ", or give --columns, or leave --pipeline out");
  }

  if (options.memory.rcache == "auto") {
    return Refused(options, "--rcache auto plans for a model that is not cut into stages")
        .Fix("leave --rcache out: what two stages need is taken; or give a size");
  }
  return {};
}

Status CheckPipelinePlace(const RunOptions& options, const RankPlace& place, bool is_gpu) {
  if (is_gpu) {
    return Refused(options, "a pipeline runs on the host so far, and not on a GPU")
        .Fix("give --device cpu, or leave --pipeline out");
  }

  if (place.local_world == place.world) return {};
  return Refused(options, "a pipeline runs on one machine so far")
      .Why(std::to_string(place.local_world) + " of " + std::to_string(place.world) +
           " ranks are on this one")
      .Fix("start all ranks on one machine, or leave --pipeline out");
}

}  // namespace tidepool::trainer
