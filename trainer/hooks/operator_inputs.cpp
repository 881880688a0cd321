#include "trainer/hooks/operator_inputs.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <typeindex>
#include <unordered_map>

#include <ATen/record_function.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace tidepool::trainer {
namespace {

// The argument uses in an operator's schema; bit i is argument i.
struct ArgumentUses {
  uint64_t viewed = 0;   // only used to make another view of it
  uint64_t written = 0;  // in place, or as an output
};

ArgumentUses UsesOf(const c10::FunctionSchema& schema) {
  ArgumentUses uses;
  const std::vector<c10::Argument>& arguments = schema.arguments();
  for (size_t i = 0; i < std::min<size_t>(arguments.size(), 64); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias == nullptr) continue;
    (alias->isWrite() ? uses.written : uses.viewed) |= uint64_t{1} << i;
  }
  return uses;
}

// Known operators of this thread. LibTorch copies a schema for each caller, so each is requested
// once. Overloads of one name that view or write differ in their number of arguments.
struct KnownOperator {
  const char* name;  // the registered schema's own text, which outlives it
  size_t arguments;
  friend bool operator==(const KnownOperator&, const KnownOperator&) = default;
};
struct HashOfKnown {
  size_t operator()(const KnownOperator& known) const {
    return std::hash<const void*>()(known.name) * 31 + known.arguments;
  }
};

ArgumentUses UsesOf(const at::RecordFunction& function) {
  thread_local std::unordered_map<KnownOperator, ArgumentUses, HashOfKnown> known;
  const KnownOperator key{function.name(), function.inputs().size()};
  const auto found = known.find(key);
  if (found != known.end()) return found->second;

  const std::optional<c10::FunctionSchema> schema = function.operator_schema();
  // LibTorch records Tensor::detach a second time, by name only.
  if (!schema && key.name == std::string_view("detach")) return {.viewed = 1};
  if (!schema) return {};  // its name may be a temporary text
  const ArgumentUses uses = UsesOf(*schema);
  known.emplace(key, uses);
  return uses;
}

// Collects the parameters among an operator's tensor inputs in order of appearance, looking into
// lists and optional tensors.
template <typename Find>
void Collect(const Find& find, const at::Tensor& tensor, std::vector<ParameterId>* parameters) {
  const uint32_t parameter = find(tensor);
  if (parameter == StorageBinding::kNoParameter) return;
  if (std::find(parameters->begin(), parameters->end(), parameter) == parameters->end())
    parameters->push_back(parameter);
}

template <typename Find>
void Collect(const Find& find, const c10::IValue& value, std::vector<ParameterId>* parameters) {
  if (value.isTensor()) {
    Collect(find, value.toTensor(), parameters);
  } else if (value.isList()) {
    // Also a list of tensors: its elements are values and are not copied.
    for (const c10::IValue& item : value.toListRef()) Collect(find, item, parameters);
  }
}

bool Has(uint64_t arguments, size_t index) {
  return index < 64 && (arguments >> index & 1) != 0;
}

template <typename Find>
uint32_t Used(const Find& find, const at::RecordFunction& function,
              std::vector<ParameterId>* reads) {
  reads->clear();
  for (const c10::IValue& value : function.inputs()) Collect(find, value, reads);
  if (reads->empty()) return StorageBinding::kNoParameter;
  const ArgumentUses uses = UsesOf(function);
  if (uses.viewed == 0 && uses.written == 0) return StorageBinding::kNoParameter;

  // A second pass, now that the use of each argument matters.
  uint32_t written = StorageBinding::kNoParameter;
  const auto& inputs = function.inputs();
  reads->clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!Has(uses.written, i)) continue;
    Collect(find, inputs[i], reads);
    if (!reads->empty()) written = reads->front();
  }

  reads->clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!Has(uses.written | uses.viewed, i)) Collect(find, inputs[i], reads);
  }
  return written;
}

// True for a backward node whose code is not LibTorch's. Each type is checked once.
bool IsUsersOwn(const torch::autograd::Node& node) {
  thread_local std::unordered_map<std::type_index, bool> known;
  const auto [entry, is_new] = known.try_emplace(typeid(node), false);
  if (is_new) {
    const std::string type = c10::demangle(typeid(node).name());
    entry->second = type.starts_with("torch::autograd::PyNode") ||
                    type.starts_with("torch::autograd::CppNode") ||
                    !type.starts_with("torch::autograd::");
  }
  return entry->second;
}

}  // namespace

uint32_t FindParametersUsed(const StorageBinding& binding, const at::RecordFunction& function,
                            std::vector<ParameterId>* reads) {
  return Used([&binding](const at::Tensor& tensor) { return binding.ParameterOf(tensor); },
              function, reads);
}

std::vector<ParameterId> ParametersRead(const StorageBinding& binding,
                                        const at::RecordFunction& function) {
  std::vector<ParameterId> reads;
  FindParametersUsed(binding, function, &reads);
  return reads;
}

std::vector<ParameterId> ParametersRead(const FindParameter& find,
                                        const at::RecordFunction& function) {
  std::vector<ParameterId> reads;
  Used(find, function, &reads);
  return reads;
}

// The node's outgoing edges tell the function's inputs: a parameter's gradient goes to its
// AccumulateGrad.
void FindParametersOfNode(const FindParameter& find, std::vector<ParameterId>* reads) {
  reads->clear();
  const auto node = torch::autograd::get_current_node();
  if (!node || !IsUsersOwn(*node)) return;
  for (const torch::autograd::Edge& edge : node->next_edges()) {
    const auto* sink = dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get());
    if (sink != nullptr) Collect(find, sink->variable, reads);
  }
}

}  // namespace tidepool::trainer
