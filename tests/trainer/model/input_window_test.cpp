// InputWindow: however far the CPU would run ahead, the inputs on the GPU are as many as the
// prediction says.
#include "trainer/model/input_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tidepool::trainer {
namespace input_window_test {

// A GPU that copies an input out only when somebody waits for it. Memory of an input is taken when
// the piece before is put in, and is free when its copy has ended and its handle is gone.
struct LazyGpu {
  struct Input {
    bool copied = false, held = true;
  };
  std::vector<Input> inputs;
  size_t most = 0;

  void Make() {
    inputs.push_back({});
    const auto there = [](const Input& input) { return input.held || !input.copied; };
    most = std::max(most, static_cast<size_t>(std::count_if(inputs.begin(), inputs.end(), there)));
  }
};

struct CopyEnd {
  LazyGpu* gpu;
  size_t input;
  void synchronize() const {
    for (size_t i = 0; i <= input; ++i) gpu->inputs[i].copied = true;
  }
};

TEST(InputWindow, OnlyAsManyInputsAreThereAsThePredictionCounts) {
  LazyGpu gpu;
  InputWindow<CopyEnd> window;
  gpu.Make();
  for (size_t piece = 0; piece < 48; ++piece) {
    if (piece > 0) gpu.inputs[piece - 1].held = false;  // as ActivationStore::Put does
    window.Follow({&gpu, piece});
    gpu.Make();  // by the piece
  }
  EXPECT_EQ(gpu.most, kInputsOnDevice);
}

TEST(InputWindow, TheFirstInputWaitsForNothing) {
  LazyGpu gpu;
  gpu.Make();
  InputWindow<CopyEnd> window;
  window.Follow({&gpu, 0});
  EXPECT_FALSE(gpu.inputs[0].copied);
}

}  // namespace input_window_test
}  // namespace tidepool::trainer
