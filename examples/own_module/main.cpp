// Trains your own module over a Tidepool memory server.
//
//   own_module [RCACHE]     RCACHE: a share, such as 25%, or a size, such as 4MiB
//
// The module removes noise from signals of 64 numbers. It contains no Tidepool code. Its weights,
// gradients and AdamW moments are held by a private memserver, which starts and ends with this
// program; use `socket_dir` and `job` instead of `standalone` for a running one, and a second start
// continues where this one stopped. Started as several processes (torchrun --standalone
// --nproc-per-node 2 --no-python ...), the ranks train one model, each on its own signals.
#include <cmath>
#include <cstdio>
#include <memory>

// <torch/torch.h> includes all of LibTorch and takes twice as long to compile.
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <tidepool/train.h>

namespace {

constexpr int64_t kLength = 64, kWidth = 256, kBlocks = 4, kSignals = 128;

// A residual block: adds a small network's output to its input.
struct Block : torch::nn::Module {
  Block() {
    up = register_module("up", torch::nn::Linear(kWidth, kWidth));
    down = register_module("down", torch::nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};

// [signals, 64] to [signals, 64].
struct Denoiser : torch::nn::Module {
  Denoiser() {
    // One tensor with two names: projects into the blocks and, transposed, out of them.
    const torch::Tensor shared = torch::randn({kWidth, kLength}) / std::sqrt(kWidth);
    into = register_parameter("into", shared);
    out_of = register_parameter("out_of", into);
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(std::make_shared<Block>());
    bias = register_parameter("bias", torch::zeros({kLength}));
    // Frozen: used like any other parameter, but never trained.
    window = register_parameter("window", torch::hann_window(kLength) + 0.5, false);
  }

  torch::Tensor forward(const torch::Tensor& signals) {
    torch::Tensor x = torch::matmul(signals * window, into.t());
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return torch::matmul(x, out_of) + bias;
  }

  torch::Tensor into, out_of, bias, window;
  torch::nn::ModuleList blocks{nullptr};
};

// Waves with random phases and a few wavelengths, [signals, 64].
torch::Tensor Waves() {
  const torch::Tensor time = torch::arange(kLength, torch::kFloat) * (2 * M_PI / kLength);
  const torch::Tensor phase = torch::rand({kSignals, 1}) * 2 * M_PI;
  const torch::Tensor turns = torch::randint(1, 4, {kSignals, 1}).to(torch::kFloat);
  return torch::sin(turns * time + phase);
}

// Mean squared error of the waves that the module reconstructs from noisy ones.
torch::Tensor Loss(Denoiser* model) {
  const torch::Tensor waves = Waves();
  return torch::mse_loss(model->forward(waves + 0.5 * torch::randn_like(waves)), waves);
}

void Run(const char* rcache) {
  torch::manual_seed(1);  // the same initial weights on all ranks
  Denoiser model;

  tidepool::TrainOptions options;
  options.standalone = true;
  options.rcache = rcache;
  options.weight_decay = 0.01;
  options.max_grad_norm = 1;
  options.groups = {{.names = {"bias"}, .learning_rate_factor = 2, .weight_decay = 0}};
  tidepool::Training training = tidepool::Train(model, options);
  torch::manual_seed(100 + training.rank());

  for (int step = 1; step <= 30; ++step) {
    const torch::Tensor loss = Loss(&model);
    loss.backward();
    const tidepool::StepResult sealed = training.Step(2e-3);
    std::printf("step %2d  loss %.4f  gradient %.3f\n", step, loss.item<double>(),
                sealed.grad_norm);

    if (step % 10 == 0) {
      const torch::NoGradGuard no_gradients;
      training.BeginForward(false);  // optional
      std::printf("held-out loss %.4f\n", Loss(&model).item<double>());
    }
  }

  const torch::Tensor bias = training.Weights("bias");
  std::printf("bias: %ld numbers, norm %.4f\n", static_cast<long>(bias.numel()),
              bias.norm().item<double>());
  training.Close();  // the weights end with the job
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Run(argc > 1 ? argv[1] : "25%");
  } catch (const tidepool::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());  // error.id(), error.fix(), ... return its parts
    return 1;
  }
  return 0;
}
