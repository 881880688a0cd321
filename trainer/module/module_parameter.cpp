#include "trainer/module/module_parameter.h"

#include "client/job_spec.h"

namespace tidepool::trainer {
namespace {

// The dtype of the parameter's chunk: raw bytes if a job cannot compute with its type.
DType DTypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return DType::kF32;
    case at::kBFloat16: return DType::kBF16;
    case at::kHalf: return DType::kF16;
    default: return DType::kRaw;
  }
}

}  // namespace

Status CheckParameter(const ModuleParameter& parameter, DType dtype) {
  const at::Tensor& tensor = parameter.tensor;
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_contiguous())
    return BadParameter(parameter.name, "is not a dense, contiguous tensor");
  if (!tensor.is_cpu() && !tensor.is_cuda())
    return BadParameter(parameter.name, "is on " + tensor.device().str() + ", not on cpu or cuda");

  const DType own = DTypeOf(tensor);
  if (tensor.requires_grad() && own != DType::kF32 && own != dtype) {
    return BadParameter(parameter.name, "is " + std::string(c10::toString(tensor.scalar_type())) +
                                            " in a job of " + NameOf(dtype));
  }

  if (parameter.name.empty() || parameter.name.size() > client::kNameMax)
    return BadParameter(parameter.name, "has no name, or one of more than " +
                                            std::to_string(client::kNameMax) + " bytes");
  if (tensor.dim() > static_cast<int64_t>(client::kDimsMax))
    return BadParameter(parameter.name,
                        "has more than " + std::to_string(client::kDimsMax) + " dimensions");
  if (tensor.numel() == 0) return BadParameter(parameter.name, "has no elements");
  if (!tensor.is_leaf()) return BadParameter(parameter.name, "is not a leaf");
  return {};
}

ParameterNote NoteOf(const ModuleParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  ParameterNote note{.name = parameter.name,
                     .dims = {},
                     .optimizer_group = parameter.group,
                     .multi_use = parameter.multi_use,
                     .frozen = !tensor.requires_grad(),
                     .unit = parameter.unit,
                     .dtype = DTypeOf(tensor)};

  for (const int64_t size : tensor.sizes()) note.dims.push_back(static_cast<uint64_t>(size));
  if (note.dtype == DType::kRaw) note.dims.push_back(tensor.element_size());
  return note;
}

Status BadParameter(const std::string& name, const std::string& what) {
  return Status(ErrorId::kUsageError, "the parameter " + name + " " + what).Where(name);
}

}  // namespace tidepool::trainer
