// `trainer sample DIR PROMPT` and `trainer version`: commands that use LibTorch without training.
#include <array>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <torch/types.h>
#include <torch/version.h>

#include "base/clock.h"
#include "base/text/error_text.h"
#include "base/text/plural.h"
#include "client/protocol.h"
#include "trainer/comm/nccl/nccl_version.h"
#include "trainer/threads/compute_threads.h"
#include "trainer/threads/cpu_watch.h"
#include "trainer/data/bpe_tokenizer.h"
#include "trainer/data/tokenizer_file.h"
#include "trainer/model/generate.h"
#include "trainer/inputs/model_config.h"
#include "trainer/launch/stop_flag.h"
#include "trainer/cli/run.h"
#include "trainer/inputs/saved_model.h"
#include "trainer/inputs/weights_file.h"

namespace tidepool::trainer {
namespace {

std::span<float> ValuesOf(at::Tensor* parameter) {
  return {parameter->mutable_data_ptr<float>(), static_cast<size_t>(parameter->numel())};
}

// Merged adapters compute the same function, but separate ones give the same bits as training.
Status LoadModel(Gpt* model, const ModelConfig& config, const RunOptions& options) {
  const std::string& place = options.sample.weights_dir;
  const std::string base = options.adapters.base.empty() ? config.base : options.adapters.base;
  if (config.lora.on()) TP_RETURN_IF_ERROR(CheckBaseIsThere(base, place));
  TP_ASSIGN_OR_RETURN(const SavedModel whole, SavedModel::Open(config.lora.on() ? base : place));
  std::optional<WeightsFile> adapters;
  if (config.lora.on()) {
    TP_ASSIGN_OR_RETURN(adapters, WeightsFile::Open(place + "/" + kAdapterFile));
    TP_ASSIGN_OR_RETURN(const WeightsFile of_base, WeightsFile::Open(WholeModelAt(base)));
    TP_RETURN_IF_ERROR(CheckTrainedOver(*adapters, of_base));
  }

  auto parameters = model->named_parameters();
  for (const ParameterNote& note : GptParameters(config.shape, config.lora)) {
    const std::span<float> values = ValuesOf(&parameters[note.name]);
    if (!config.lora.on() || note.frozen) {
      TP_RETURN_IF_ERROR(whole.Read(note.name, values));
      continue;
    }

    TP_ASSIGN_OR_RETURN(const SafetensorsEntry* tensor, adapters->Expect(note.name, note.dims));
    TP_RETURN_IF_ERROR(adapters->Read(*tensor, 0, values));
  }
  return {};
}

// The threads that were asked for, else those with which this model chooses a token fastest now. An
// exact repetition of a text needs the same number.
uint32_t PickThreads(Gpt* model, uint32_t wanted, const Clock* clock) {
  if (wanted > 0) return UseThreads(wanted, 1);
  const at::Tensor token = torch::zeros({1, 1}, torch::kInt64);
  const auto choose = [&] {
    KvCache cache;
    model->NextLogits(token, &cache);
  };
  return UseFastestThreads(choose, clock);
}

// Prints the speed only on a terminal: a pipe gets the text alone.
void ShowSpeed(uint64_t tokens, int64_t ns, uint32_t threads) {
  if (isatty(STDERR_FILENO) == 0 || ns <= 0) return;
  const double seconds = static_cast<double>(ns) / kNsPerSecond;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), " in %.1f s: %.0f a second, with ", seconds,
                static_cast<double>(tokens) / seconds);
  std::cerr << Counted(tokens, "token") << text.data() << Counted(threads, "thread") << "\n";
}

// Converts between text and a model's tokens.
class Speech {
 public:
  // Errors: kUsageError (no tokenizer known), those of ReadTokenizer.
  static Result<Speech> Of(const ModelConfig& config, const RunOptions& options) {
    Speech speech;
    if (config.bytes) return speech;

    std::string place = options.sample.weights_dir;
    if (TokenizerFilesIn(place).empty() && config.lora.on())
      place =
          DirectoryOfWeights(options.adapters.base.empty() ? config.base : options.adapters.base);

    if (TokenizerFilesIn(place).empty()) {
      return Status(ErrorId::kUsageError, "the model of " + options.sample.weights_dir +
                                              " was trained on token ids, and its tokenizer is not "
                                              "beside it")
          .Why("a prompt is text")
          .Fix("put its tokenizer.json, or vocab.json and merges.txt, into " + place);
    }

    TP_ASSIGN_OR_RETURN(const TokenizerFile file, ReadTokenizer(place));
    TP_ASSIGN_OR_RETURN(speech.tokenizer_, BpeTokenizer::Make(file));
    return speech;
  }

  std::vector<int64_t> Tokens(const std::string& text) {
    std::vector<int64_t> tokens;
    if (!tokenizer_) {
      for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
      return tokens;
    }

    std::vector<uint32_t> ids;
    if (tokenizer_->begin_of_text()) ids.push_back(*tokenizer_->begin_of_text());
    tokenizer_->Encode(text, &ids);
    tokens.assign(ids.begin(), ids.end());
    return tokens;
  }
  bool EndsText(int64_t token) const {
    return tokenizer_ && tokenizer_->end_of_text() == static_cast<uint32_t>(token);
  }
  std::string Text(int64_t token) const {
    return tokenizer_ ? std::string(tokenizer_->Bytes(static_cast<uint64_t>(token)))
                      : std::string(1, static_cast<char>(token));
  }

 private:
  Speech() = default;
  std::optional<BpeTokenizer> tokenizer_;  // none: tokens are bytes
};

// A loaded model that continues one text after another.
class Sampler {
 public:
  Sampler(Gpt* model, Speech speech, const RunOptions& options, const Clock* clock)
      : model_(model),
        speech_(std::move(speech)),
        clock_(clock),
        threads_(PickThreads(model, options.device.threads, clock)),
        cpus_(CpuWatch::Start(threads_, clock)) {
    generate_.tokens = options.sample.tokens;
    generate_.temperature = options.sample.temperature;
    generate_.top_k = options.sample.top_k;
    generate_.seed = options.model.seed;
  }

  // Prints each token as it is chosen; returns the text with its continuation. Each call uses a new
  // seed, even for the same text. A signal ends the text early where StopFlag is installed.
  Result<std::string> Continue(std::string text) {
    const int64_t begin_ns = clock_->NowNs();
    const std::vector<int64_t> prompt = speech_.Tokens(text);
    const auto show = [&](int64_t token) {
      if (speech_.EndsText(token) || StopFlag::Requested()) return false;
      text += speech_.Text(token);
      return static_cast<bool>(std::cout << speech_.Text(token) << std::flush);
    };
    TP_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens,
                        Generate(model_, prompt, generate_, show));

    std::cout << std::endl;
    ShowSpeed(tokens.size(), clock_->NowNs() - begin_ns, threads_);
    ++generate_.seed;
    return text;
  }

 private:
  Gpt* const model_;
  Speech speech_;
  const Clock* const clock_;
  const uint32_t threads_;
  const std::unique_ptr<CpuWatch> cpus_;
  GenerateOptions generate_;
};

// Each line is a text to continue; an empty line continues the last result. Ctrl-C ends a text, and
// the program where none is being written.
Status Converse(Sampler* sampler) {
  const bool to_people = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (to_people)
    std::cerr
        << "Each line is a text to continue, an empty one goes on with the last; Ctrl-C ends a "
           "text, Ctrl-D the program.\n";
  const auto ask = [to_people] {
    if (to_people) std::cout << "> " << std::flush;
  };

  std::string text, line;
  for (ask(); std::getline(std::cin, line); ask()) {
    if (!line.empty()) text = line;
    if (text.empty()) continue;
    StopFlag::Install();
    TP_ASSIGN_OR_RETURN(text, sampler->Continue(std::move(text)));
    if (StopFlag::Signal() == SIGTERM) break;
    StopFlag::Uninstall();
  }
  return {};
}

Status Sample(const RunOptions& options) {
  if (options.sample.interactive == !options.sample.prompt.empty()) {
    return Status(ErrorId::kUsageError,
                  options.sample.interactive
                      ? "-i reads prompts from standard input, and one is given"
                      : "there is no text to continue")
        .Where("command line of trainer")
        .Fix("give a prompt, or -i to type several");
  }

  const SteadyClock clock;
  UseThreads(options.device.threads, 1);
  TP_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(options.sample.weights_dir));
  TP_ASSIGN_OR_RETURN(Speech speech, Speech::Of(config, options));
  Gpt model(config.shape, torch::TensorOptions().dtype(torch::kFloat32), config.lora);
  TP_RETURN_IF_ERROR(LoadModel(&model, config, options));

  Sampler sampler(&model, std::move(speech), options, &clock);
  if (options.sample.interactive) return Converse(&sampler);
  StopFlag::Install();
  std::cout << options.sample.prompt << std::flush;
  return sampler.Continue(options.sample.prompt).status();
}

}  // namespace

int RunSample(const RunOptions& options) {
  const Status status = Sample(options);
  if (status.ok()) return StopFlag::Requested() ? 128 + StopFlag::Signal() : kExitOk;
  std::cerr << ErrorText(status) << "\n";
  return status.exit_code();
}

int RunVersion() {
  std::cout << "trainer " << TIDEPOOL_VERSION << ", protocol " << client::Protocol()
            << ", LibTorch " << TORCH_VERSION << ", NCCL " << NcclVersion() << "\n";
  return kExitOk;
}

}  // namespace tidepool::trainer
