#include "trainer/hooks/operator_inputs.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <ATen/record_function.h>

namespace tidepool::trainer {
namespace {

// Operators that only make another view of a tensor: they read no element, so they need no chunk.
constexpr std::array<std::string_view, 14> kViews{"aten::t",
                                                  "aten::transpose",
                                                  "aten::as_strided",
                                                  "aten::expand",
                                                  "aten::view",
                                                  "aten::detach",
                                                  "aten::alias",
                                                  "aten::select",
                                                  "aten::slice",
                                                  "aten::permute",
                                                  "aten::squeeze",
                                                  "aten::unsqueeze",
                                                  "aten::_reshape_alias",
                                                  "aten::resolve_conj"};

bool IsView(std::string_view name) {
  return std::find(kViews.begin(), kViews.end(), name) != kViews.end();
}

// Parameters among an operator's tensor inputs, in order of appearance; lists and optional tensors
// are looked into.
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
    // Also a list of tensors: they lie in it as values, and are not copied out.
    for (const c10::IValue& item : value.toListRef()) Collect(find, item, parameters);
  }
}

template <typename Find>
void Read(const Find& find, const at::RecordFunction& function,
          std::vector<ParameterId>* parameters) {
  parameters->clear();
  for (const c10::IValue& value : function.inputs()) Collect(find, value, parameters);
  if (!parameters->empty() && IsView(function.name())) parameters->clear();
}

}  // namespace

void FindParametersRead(const StorageBinding& binding, const at::RecordFunction& function,
                        std::vector<ParameterId>* parameters) {
  Read([&binding](const at::Tensor& tensor) { return binding.ParameterOf(tensor); }, function,
       parameters);
}

std::vector<ParameterId> ParametersRead(const StorageBinding& binding,
                                        const at::RecordFunction& function) {
  std::vector<ParameterId> parameters;
  FindParametersRead(binding, function, &parameters);
  return parameters;
}

std::vector<ParameterId> ParametersRead(const FindParameter& find,
                                        const at::RecordFunction& function) {
  std::vector<ParameterId> parameters;
  Read(find, function, &parameters);
  return parameters;
}

}  // namespace tidepool::trainer
