#include "trainer/output/hugging_face.h"

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "base/formats/safetensors.h"
#include "base/system/whole_file.h"
#include "optim/kernels/convert_scalar.h"
#include "trainer/data/tokenizer_file.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/model/moe/moe_layers.h"
#include "trainer/model/moe_text.h"

namespace tidepool::trainer {
namespace {

const char* SafetensorsName(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kBF16 ? "BF16" : "F16";
}

// Memory for one tensor while it is written.
struct Buffers {
  std::vector<float> values, turned;
  std::vector<std::byte> bytes;
};

// [out][in] -> [in][out]
void Turn(const std::vector<uint64_t>& dims, Buffers* buffers) {
  buffers->turned.resize(buffers->values.size());
  TransposeMatrix(buffers->values, dims[0], dims[1], buffers->turned);
  buffers->values.swap(buffers->turned);
}

std::span<const std::byte> Narrowed(DType dtype, Buffers* buffers) {
  if (dtype == DType::kF32) return std::as_bytes(std::span(buffers->values));
  buffers->bytes.resize(buffers->values.size() * BytesOf(dtype));
  for (uint64_t i = 0; i < buffers->values.size(); ++i)
    optim::NarrowElement(buffers->bytes.data(), dtype, i, buffers->values[i]);
  return buffers->bytes;
}

Status WriteWeights(const SavedModel& model, const std::string& path, DType dtype) {
  const std::vector<ParameterNote> notes = GptParameters(model.config().shape);
  const std::string prefix = model.config().shape.form == ModelForm::kGpt2 ? "transformer." : "";
  SafetensorsHeader header;
  header.metadata.emplace_back("format", "pt");
  for (const ParameterNote& note : notes) {
    std::vector<uint64_t> shape = note.dims;
    if (IsConv1D(note)) std::swap(shape[0], shape[1]);
    header.tensors.push_back(
        {.name = prefix + note.name, .dtype = SafetensorsName(dtype), .shape = std::move(shape)});
  }

  TP_ASSIGN_OR_RETURN(const std::string text, EncodeSafetensorsHeader(&header));
  TP_ASSIGN_OR_RETURN(WholeFile file, WholeFile::Begin(path));
  TP_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(text))));

  Buffers buffers;
  for (const ParameterNote& note : notes) {
    uint64_t elements = 1;
    for (const uint64_t dim : note.dims) elements *= dim;
    buffers.values.resize(elements);
    TP_RETURN_IF_ERROR(model.Read(note.name, buffers.values));
    if (IsConv1D(note)) Turn(note.dims, &buffers);
    TP_RETURN_IF_ERROR(file.Write(Narrowed(dtype, &buffers)));
  }
  return file.Commit();
}

}  // namespace

Status WriteHuggingFace(const SavedModel& model, const std::string& directory, DType dtype) {
  std::error_code error;
  if (std::filesystem::equivalent(directory, DirectoryOfWeights(model.path()), error)) {
    return Status(ErrorId::kUsageError, "a model cannot be exported into its own directory")
        .Where(directory)
        .Why("its files would be replaced by the exported ones while they are read")
        .Fix("give another directory");
  }

  const GptShape& shape = model.config().shape;
  if (HasExperts(shape) && !IsMixtral(shape)) {
    return Status(ErrorId::kUsageError, "transformers has no model with " + MoeText(shape))
        .Where(model.path())
        .Why("all blocks of a Mixtral have the same experts, and no MLP beside them")
        .Fix("use the weights as --save has them: their names are those of Llama and Mixtral");
  }

  std::filesystem::create_directories(directory, error);
  if (error) {
    return Status(ErrorId::kFileWriteFailed, "cannot make " + directory)
        .Where(directory)
        .Why(error.message())
        .Fix("give a place where you may write");
  }

  TP_RETURN_IF_ERROR(WriteWeights(model, directory + "/" + kWeightsFile, dtype));
  TP_RETURN_IF_ERROR(WriteHuggingFaceConfig(directory, model.config(), dtype));
  return CopyTokenizer(DirectoryOfWeights(model.path()), directory);
}

}  // namespace tidepool::trainer
