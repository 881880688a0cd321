#include "trainer/hooks/use_order.h"

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include "base/check.h"
#include "trainer/hooks/operator_inputs.h"
#include "trainer/hooks/storage_binding.h"

namespace tidepool::trainer {
namespace {

struct Recording {
  const StorageBinding* binding;
  std::vector<bool> seen;
  std::vector<uint32_t> order;

  void Add(uint32_t parameter) {
    if (!seen[parameter]) order.push_back(parameter);
    seen[parameter] = true;
  }
};

thread_local Recording* recording = nullptr;

std::unique_ptr<at::ObserverContext> NoteOperator(const at::RecordFunction& function) {
  for (const ParameterId parameter : ParametersRead(*recording->binding, function))
    recording->Add(parameter);
  return nullptr;
}

// Makes every parameter a chunk of its own, all on the same zeros.
Result<std::unique_ptr<StorageBinding>> BindToZeros(const std::vector<at::Tensor>& parameters) {
  std::vector<uint64_t> bytes;
  std::vector<BoundParameter> places;
  for (const at::Tensor& parameter : parameters) {
    places.push_back({.chunk = static_cast<ChunkId>(bytes.size()), .byte_begin = 0});
    bytes.push_back(static_cast<uint64_t>(parameter.nbytes()));
  }
  TP_ASSIGN_OR_RETURN(std::unique_ptr<StorageBinding> binding,
                      StorageBinding::Bind(bytes, parameters, places));
  for (const BoundParameter& place : places) binding->PlaceSpare(place.chunk);
  return binding;
}

}  // namespace

Result<std::vector<uint32_t>> RecordUseOrder(const std::vector<at::Tensor>& parameters,
                                             const std::function<void()>& forward) {
  TP_ASSIGN_OR_RETURN(const std::unique_ptr<StorageBinding> binding, BindToZeros(parameters));
  Recording now{binding.get(), std::vector<bool>(parameters.size(), false), {}};
  TP_CHECK(std::exchange(recording, &now) == nullptr, "one recording per thread");

  const at::CallbackHandle watch =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&NoteOperator)
                                     .needsInputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));

  Status thrown;
  try {
    const at::NoGradGuard no_grad;
    forward();
  } catch (const std::exception& error) {
    thrown = Status(ErrorId::kLibraryFailed,
                    std::string("LibTorch, in the trace-only forward: ") + error.what());
  }

  at::removeCallback(watch);
  recording = nullptr;
  if (!thrown.ok()) return thrown;
  for (uint32_t parameter = 0; parameter < parameters.size(); ++parameter) now.Add(parameter);
  return std::move(now.order);
}

}  // namespace tidepool::trainer
