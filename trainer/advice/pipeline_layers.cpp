#include "trainer/advice/pipeline_layers.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tidepool::trainer {
namespace {

constexpr uint64_t kSumBytes = 4;  // per element of a gradient sum

// The profile does not see scratch memory inside operators (Elixir v2, appendix A.1).
uint64_t WithScratch(uint64_t bytes) {
  return bytes + bytes / 4;
}

uint64_t ElementsOf(const ParameterNote& note) {
  uint64_t elements = 1;
  for (const uint64_t dim : note.dims) elements *= dim;
  return elements;
}

int64_t TimeOf(double flops, double flops_per_ns) {
  return static_cast<int64_t>(std::ceil(flops / flops_per_ns));
}

void AddParameters(const PipelineModel& model, std::vector<PipelineLayer>* layers) {
  const auto add = [&](size_t layer, uint64_t elements) {
    (*layers)[layer].weight_bytes += elements * BytesOf(model.dtype);
    (*layers)[layer].gradient_bytes += elements * kSumBytes;
  };
  for (const ParameterNote& note : GptParameters(model.shape)) {
    const auto [first, last] = GptBlocksOf(note.name, model.shape);
    add(first, ElementsOf(note));
    // Token embedding and output head are one parameter: both ends hold it.
    if (last != first) add(last, ElementsOf(note));
  }
}

}  // namespace

std::vector<PipelineLayer> LayersOf(const PipelineModel& model) {
  GptShape none = model.shape;
  none.layers = 0;
  GptShape one = model.shape;
  one.layers = 1;

  // Forward is a third of forward plus backward.
  const double tokens = static_cast<double>(model.sequences * model.tokens);
  const double head = GptFlopsPerToken(none, model.tokens) * tokens / 3;
  const double block = GptFlopsPerToken(one, model.tokens) * tokens / 3 - head;
  const double again = model.checkpointing ? 4 : 3;

  PipelineLayer layer;
  layer.forward_ns = TimeOf(block, model.flops_per_ns);
  layer.backward_ns = TimeOf(again * block, model.flops_per_ns);
  layer.kept_bytes = WithScratch(model.checkpointing ? model.profile.boundary : model.profile.kept);
  layer.output_bytes = model.profile.boundary;
  layer.forward_work_bytes = layer.backward_work_bytes = WithScratch(model.profile.work);

  std::vector<PipelineLayer> layers(model.shape.layers, layer);
  AddParameters(model, &layers);
  PipelineLayer& last = layers.back();
  last.output_bytes = 0;
  // Backward recomputes the loss, like the rest of its stage.
  last.forward_ns += TimeOf(head, model.flops_per_ns);
  last.backward_ns += TimeOf((model.vocab_tiles > 1 ? 4 : 3) * head, model.flops_per_ns);
  const uint64_t head_work = WithScratch(model.profile.head_work);
  last.forward_work_bytes = std::max(last.forward_work_bytes, head_work);
  last.backward_work_bytes = std::max(last.backward_work_bytes, head_work);
  return layers;
}

}  // namespace tidepool::trainer
