#include "shm/spec/spec_difference.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <utility>

namespace tidepool::shm {
namespace {

std::string Text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.7g", value);
  return text.data();
}
std::string Text(std::string_view name) {
  return std::string(name);
}
template <typename Whole>
std::string Text(Whole value) {
  return std::to_string(value);
}

std::string_view NameOr(const char* name) {
  return name == nullptr ? "unknown" : name;
}

// Collects the differences.
class Differences {
 public:
  template <typename Value>
  void Compare(std::string_view what, Value held, Value said) {
    if (held != said) Add(std::string(what) + " " + Text(held) + ", now " + Text(said));
  }
  void Add(const std::string& difference) { text_ += (text_.empty() ? "" : "; ") + difference; }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

void CompareOptimizers(const OptimizerSpec& held, const OptimizerSpec& said, Differences* found) {
  found->Compare("optimizer", NameOr(NameOf(held.rule)), NameOr(NameOf(said.rule)));
  found->Compare("states", NameOr(NameOf(held.states)), NameOr(NameOf(said.states)));
  found->Compare("beta1", held.beta1, said.beta1);
  found->Compare("beta2", held.beta2, said.beta2);
  found->Compare("eps", held.eps, said.eps);
  found->Compare("momentum", held.momentum, said.momentum);
  found->Compare("dampening", held.dampening, said.dampening);
  found->Compare("lr_decay", held.lr_decay, said.lr_decay);
  found->Compare("nesterov", held.nesterov, said.nesterov);
  found->Compare("seed of rounding", held.rounding_seed, said.rounding_seed);
}

// Compares the lengths of two lists, and names the first item that `differs`.
template <typename Item, typename Differs>
void CompareLists(const char* what, const std::vector<Item>& held, const std::vector<Item>& said,
                  const Differs& differs, Differences* found) {
  found->Compare(std::string("number of ") + what + "s", held.size(), said.size());
  for (size_t i = 0; i < std::min(held.size(), said.size()); ++i) {
    if (differs(held[i], said[i]))
      return found->Add(std::string(what) + " " + std::to_string(i) + " is another one");
  }
}

}  // namespace

std::string DifferenceOf(const JobSpec& held, const JobSpec& said) {
  Differences found;
  found.Compare("ranks", held.world, said.world);
  found.Compare("dtype", NameOr(NameOf(held.dtype)), NameOr(NameOf(said.dtype)));
  CompareOptimizers(held.optimizer, said.optimizer, &found);
  found.Compare("max_grad_norm", double{held.max_grad_norm}, double{said.max_grad_norm});
  found.Compare("micro_batches", held.micro_batches, said.micro_batches);
  found.Compare("sums of gradients", held.sums_gradients, said.sums_gradients);
  found.Compare("loss_scaling", held.loss_scaling, said.loss_scaling);
  found.Compare("rcache_bytes", held.rcache_bytes, said.rcache_bytes);

  for (size_t i = 0; i < std::min(held.parameter_groups.size(), said.parameter_groups.size());
       ++i) {
    const ParameterGroup &before = held.parameter_groups[i], &now = said.parameter_groups[i];
    const std::string of_group = " of parameter group " + std::to_string(i);
    found.Compare("lr_scale" + of_group, double{before.lr_scale}, double{now.lr_scale});
    found.Compare("weight_decay" + of_group, double{before.weight_decay}, double{now.weight_decay});
  }

  const auto group = [](const ParameterGroup&, const ParameterGroup&) { return false; };
  CompareLists("parameter group", held.parameter_groups, said.parameter_groups, group, &found);

  const auto ranks = [](const DataGroup& a, const DataGroup& b) {
    return a.rank_mask != b.rank_mask;
  };
  CompareLists("data group", held.data_groups, said.data_groups, ranks, &found);

  const auto chunk = [](const ChunkSpec& a, const ChunkSpec& b) { return !(a == b); };
  CompareLists("chunk", held.chunks, said.chunks, chunk, &found);

  const auto parameter = [](const ParameterSpec& a, const ParameterSpec& b) {
    return a.name != b.name || a.dims != b.dims || a.chunk != b.chunk || a.group != b.group ||
           a.element_begin != b.element_begin;
  };
  CompareLists("parameter", held.parameters, said.parameters, parameter, &found);

  const auto frozen = [](const FrozenChunkSpec& a, const FrozenChunkSpec& b) { return !(a == b); };
  found.Compare("fp32 chunks", held.f32_chunks, said.f32_chunks);
  CompareLists("frozen chunk", held.frozen, said.frozen, frozen, &found);
  found.Compare("chunks with states on GPUs", held.states_on_gpu, said.states_on_gpu);
  return found.Take();
}

}  // namespace tidepool::shm
