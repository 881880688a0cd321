#include "trainer/module/module_tensors.h"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace tidepool::trainer {
namespace {

Status Wrong(const std::string& what, const std::string& where) {
  return Status(ErrorId::kUsageError, what).Where(where);
}

// A tensor like this one but without memory, which a job places in its rCache.
at::Tensor WithoutMemory(const at::Tensor& like, c10::ScalarType dtype, c10::Device device) {
  at::Tensor made = at::empty(like.sizes(), like.options().dtype(dtype).device(device));
  made.storage().unsafeGetStorageImpl()->set_nbytes(0);
  made.storage().set_data_ptr_noswap(at::DataPtr(nullptr, device));
  return made;
}

// Other types are quantised, or not numeric.
bool IsConverted(c10::ScalarType type) {
  return type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

// The memory range of a parameter.
struct Span {
  const std::byte* begin;
  const std::byte* end;
  const std::string* name;
};

}  // namespace

ModuleTensors::~ModuleTensors() {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    if (parameter.former.defined()) parameter.tensor.set_data(parameter.former);
  }
}

Status ModuleTensors::Collect(const torch::nn::Module& module,
                              const std::vector<std::string>& multi_use) {
  std::unordered_map<const c10::TensorImpl*, uint32_t> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    const bool is_dense = tensor.layout() == at::kStrided && tensor.is_contiguous();
    const bool is_frozen = !tensor.requires_grad() && is_dense && tensor.numel() > 0;
    if (!tensor.is_floating_point() && !is_frozen) continue;
    const auto [at, is_new] = seen.try_emplace(tensor.unsafeGetTensorImpl(), parameters_.size());
    index_[item.key()] = at->second;

    if (is_new) {
      parameters_.push_back({.name = item.key(), .tensor = tensor, .former = {}});
    } else {
      parameters_[at->second].multi_use = true;
    }
  }

  for (const std::string& name : multi_use) {
    TP_ASSIGN_OR_RETURN(const uint32_t index, IndexOf(name));
    parameters_[index].multi_use = true;
  }
  return CheckOwnMemory();
}

// The job moves each parameter separately.
Status ModuleTensors::CheckOwnMemory() const {
  std::vector<Span> spans;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.tensor.is_contiguous() || parameter.tensor.is_meta()) continue;
    const auto* begin = static_cast<const std::byte*>(parameter.tensor.const_data_ptr());
    spans.push_back({begin, begin + parameter.tensor.nbytes(), &parameter.name});
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });

  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].begin >= spans[i - 1].end) continue;
    return Wrong(*spans[i - 1].name + " and " + *spans[i].name +
                     " share memory, and are not the same parameter",
                 *spans[i].name)
        .Why("each is trained on its own, so that a change of one would not show in the other")
        .Fix("register the same tensor under both names, or give one its own memory: clone()");
  }
  return {};
}

std::string ModuleTensors::DTypeName() const {
  const auto found =
      std::find_if(parameters_.begin(), parameters_.end(), [](const Parameter& parameter) {
        return parameter.tensor.requires_grad() && !parameter.keep_f32 &&
               parameter.tensor.scalar_type() != at::kFloat;
      });
  if (found == parameters_.end()) return "fp32";

  switch (found->tensor.scalar_type()) {
    case at::kBFloat16: return "bf16";
    case at::kHalf: return "fp16";
    default: return c10::toString(found->tensor.scalar_type());
  }
}

Result<uint32_t> ModuleTensors::IndexOf(const std::string& name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return found->second;
  return Wrong("the job has no parameter " + name + " of the module", name)
      .Fix("give a name as named_parameters() has it, such as " +
           (parameters_.empty() ? "layer.weight" : parameters_[0].name));
}

Status ModuleTensors::KeepF32(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    bool fits = false;
    for (const auto& [name, index] : index_) {
      if (fnmatch(pattern.c_str(), name.c_str(), 0) != 0) continue;
      fits = parameters_[index].keep_f32 = true;
    }

    if (!fits)
      return Wrong("no parameter of the module has a name like " + pattern, "keep_fp32")
          .Fix("give names as named_parameters() has them, or patterns such as *norm*");
  }
  return {};
}

Status ModuleTensors::Place(std::optional<c10::ScalarType> dtype, c10::Device device) {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    at::Tensor& tensor = parameter.tensor;
    if (!tensor.device().is_cpu() && tensor.device() != device)
      return Wrong("the parameter " + parameter.name + " is on " + tensor.device().str() +
                       ", and the job computes on " + device.str(),
                   parameter.name)
          .Fix("make the module on the host; the server brings its weights to the device");

    const c10::ScalarType own = tensor.scalar_type();
    const c10::ScalarType wanted = !IsConverted(own)    ? own
                                   : parameter.keep_f32 ? at::kFloat
                                                        : dtype.value_or(own);
    tensor.mutable_grad().reset();
    if (own == wanted && tensor.device() == device) continue;
    at::Tensor former = tensor.detach();
    tensor.set_data(WithoutMemory(tensor, wanted, device));
    parameter.former = std::move(former);
  }
  return {};
}

at::Tensor ModuleTensors::InitialValues(uint32_t index) const {
  const at::NoGradGuard no_grad;
  const Parameter& parameter = parameters_[index];
  const at::Tensor& values = parameter.former.defined() ? parameter.former : parameter.tensor;
  return values.detach().to(at::kCPU).contiguous();
}

void ModuleTensors::Keep() {
  for (Parameter& parameter : parameters_) parameter.former.reset();
}

}  // namespace tidepool::trainer
