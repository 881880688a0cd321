// `trainer sample DIR PROMPT` and `trainer version`: what runs LibTorch without training.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <thread>

#include <torch/types.h>
#include <torch/version.h>

#include "base/safetensors.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "client/protocol.h"
#include "trainer/comm/nccl_version.h"
#include "trainer/model/generate.h"
#include "trainer/model_config.h"
#include "trainer/run.h"

namespace tidepool::trainer {
namespace {

// A file read by position; its size was taken once and is checked at every read.
class WeightsFile {
 public:
  static Result<WeightsFile> Open(const std::string& path) {
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat seen {};
    if (!fd.valid() || fstat(fd.get(), &seen) != 0 || !S_ISREG(seen.st_mode)) {
      return Status(ErrorId::kFileUnreadable, "cannot read " + path + ": " + std::strerror(errno))
          .Fix("give a directory that `trainer run --save DIR` wrote");
    }
    return WeightsFile(path, std::move(fd), static_cast<uint64_t>(seen.st_size));
  }

  Status Read(uint64_t offset, void* out, uint64_t bytes) const {
    for (uint64_t done = 0; done < bytes;) {
      const ssize_t n = pread(fd_.get(), static_cast<char*>(out) + done, bytes - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return Status(ErrorId::kSafetensorsBad, path_ + " ends or fails at byte " + std::to_string(offset + done));
      done += static_cast<uint64_t>(n);
    }
    return {};
  }
  uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  WeightsFile(std::string path, UniqueFd fd, uint64_t bytes) : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}
  std::string path_;
  UniqueFd fd_;
  uint64_t bytes_;
};

Status LoadInto(Gpt* model, const std::string& directory) {
  TP_ASSIGN_OR_RETURN(const WeightsFile file, WeightsFile::Open(directory + "/model.safetensors"));
  std::array<std::byte, kSafetensorsPrefixBytes> prefix{};
  TP_RETURN_IF_ERROR(file.Read(0, prefix.data(), prefix.size()));
  TP_ASSIGN_OR_RETURN(const uint64_t length, SafetensorsHeaderLength(prefix, file.bytes()));
  std::string text(length, '\0');
  TP_RETURN_IF_ERROR(file.Read(kSafetensorsPrefixBytes, text.data(), length));
  const uint64_t data_begin = kSafetensorsPrefixBytes + length;
  TP_ASSIGN_OR_RETURN(const SafetensorsHeader header, DecodeSafetensorsHeader(text, file.bytes() - data_begin));
  auto parameters = model->named_parameters();
  if (header.tensors.size() != parameters.size()) {
    return Status(ErrorId::kDataBad, file.path() + " has " + std::to_string(header.tensors.size()) + " tensors, the model of config.json " +
                                         std::to_string(parameters.size()));
  }
  for (const SafetensorsEntry& entry : header.tensors) {
    at::Tensor* parameter = parameters.find(entry.name);
    const std::vector<int64_t> dims(entry.shape.begin(), entry.shape.end());
    if (parameter == nullptr || entry.dtype != "F32" || parameter->sizes() != at::IntArrayRef(dims)) {
      return Status(ErrorId::kDataBad, file.path() + ": tensor " + entry.name + " does not fit the model of config.json");
    }
    TP_RETURN_IF_ERROR(file.Read(data_begin + entry.begin, parameter->mutable_data_ptr<float>(), entry.end - entry.begin));
  }
  return {};
}

Status Sample(const RunOptions& options) {
  at::set_num_threads(static_cast<int>(options.threads > 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency())));
  TP_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(options.weights_dir));
  if (!config.bytes) {
    return Status(ErrorId::kUsageError, "the model of " + options.weights_dir + " was trained on token ids, not on text")
        .Why("a prompt can be given as text only to models whose tokens are bytes")
        .Fix("train on text files, or use the weights with a tool that has the tokenizer");
  }
  Gpt model(config.shape, torch::TensorOptions().dtype(torch::kFloat32));
  TP_RETURN_IF_ERROR(LoadInto(&model, options.weights_dir));
  std::vector<int64_t> prompt;
  for (const char c : options.prompt) prompt.push_back(static_cast<uint8_t>(c));
  GenerateOptions generate;
  generate.tokens = options.sample_tokens;
  generate.temperature = options.temperature;
  generate.top_k = options.top_k;
  generate.seed = options.seed;
  TP_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens, Generate(&model, prompt, generate));
  std::string text = options.prompt;
  for (const int64_t token : tokens) text.push_back(static_cast<char>(token));
  std::cout << text << "\n";
  return {};
}

}  // namespace

int RunSample(const RunOptions& options) {
  const Status status = Sample(options);
  if (status.ok()) return kExitOk;
  std::cerr << status.Format() << "\n";
  return status.exit_code();
}

int RunVersion() {
  std::cout << "trainer " << TIDEPOOL_VERSION << ", protocol " << client::Protocol() << ", LibTorch " << TORCH_VERSION << ", NCCL "
            << NcclVersion() << "\n";
  return kExitOk;
}

}  // namespace tidepool::trainer
