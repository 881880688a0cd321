// Adam takes its turn among the copies of a stream, on every form of Device, and has the bits of
// the scalar reference: the way of an update whose states lie in memory of a GPU (old states
// copied, gradient in, update in place, 16-bit copy out).
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/units.h"
#include "optim/adam_stream.h"
#include "optim/kernels/float_mode.h"
#include "optim/kernels/kernels.h"
#include "optim/update_rule.h"
#include "tests/device/form_test.h"
#include "tests/optim/adam_planes.h"

namespace tidepool::device {
namespace adam_order_test {

using optim::AdamCase;
using optim::AdamPlanesOnHost;
using optim::StepFactors;
using optim::UpdateSpan;

constexpr uint64_t kElements = 30'003;  // with a rest behind the last vector

class AdamOrder : public FormTest {
 protected:
  // Where the planes of one version lie.
  struct Slot {
    std::byte* states = nullptr;  // master, momentum, variance
    uint64_t plane = 0;           // bytes from one to the next
  };
  static UpdateSpan SpanOf(const Slot& slot, std::byte* gradient, std::byte* param16,
                           const AdamCase& c) {
    UpdateSpan span;
    span.master = slot.states;
    span.momentum = slot.states + slot.plane;
    span.variance = slot.states + 2 * slot.plane;
    span.gradient = gradient;
    span.gradient_dtype = c.gradient;
    span.param16 = c.copies ? param16 : nullptr;
    span.param16_dtype = c.copy;
    span.count = kElements;
    return span;
  }

  static std::vector<std::byte> StatesOf(const AdamPlanesOnHost& planes, uint64_t plane) {
    std::vector<std::byte> states(3 * plane);
    std::memcpy(states.data(), planes.master.data(), kElements * 4);
    std::memcpy(states.data() + plane, planes.momentum.data(), kElements * 4);
    std::memcpy(states.data() + 2 * plane, planes.variance.data(), kElements * 4);
    return states;
  }
};

INSTANTIATE_TEST_SUITE_P(Forms, AdamOrder, ::testing::ValuesIn(FormsToTest()), NameOfForm);

TEST_P(AdamOrder, EveryDeviceIsReadyForIt) {
  const Status status = optim::PrepareAdam(device_.get());
  EXPECT_TRUE(status.ok()) << status.Format();
}

// Two steps are enqueued before anything may run, so an operation out of its turn would see bytes
// of another one.
TEST_P(AdamOrder, UpdatesBetweenTheCopiesAroundIt) {
  // A driver that loads a kernel waits for streams that wait for a flag.
  ASSERT_TRUE(optim::PrepareAdam(device_.get()).ok());
  const uint64_t plane = RoundUp(kElements * 4, 256);
  Slot slots[2] = {{Block(3 * plane), plane}, {Block(3 * plane), plane}};
  std::byte *const staging = Block(plane), *const copy16 = Block(plane);
  const auto gradients = Host<std::byte>(2 * plane), results = Host<std::byte>(2 * plane);
  Flag* const flag = NewFlag();
  uint64_t steps = 0;
  for (const AdamCase& c : optim::AllAdamCases()) {
    AdamPlanesOnHost planes(steps, kElements, c), second(steps + 100, kElements, c);
    const std::vector<std::byte> begin = StatesOf(planes, plane);
    std::byte* const first_states = BlockOf(begin.data(), begin.size());
    std::memcpy(gradients.data(), planes.gradient.data(), planes.gradient.size());
    std::memcpy(gradients.data() + plane, second.gradient.data(), second.gradient.size());

    auto stream = Open();
    stream->WaitFlag(flag, ++steps);
    stream->Copy(slots[0].states, first_states, 3 * plane);
    for (uint64_t step = 0; step < 2; ++step) {
      const Slot &old = slots[step], &next = slots[1 - step];
      stream->Copy(next.states, old.states, 3 * plane);
      stream->Copy(staging, gradients.data() + step * plane, plane);
      StepFactors factors = c.Factors();
      UpdateSpan span = SpanOf(next, staging, copy16, c);
      ASSERT_TRUE(optim::EnqueueAdam(stream.get(), factors, span).ok()) << c.Name();
      factors = {};  // it has its own copy of both
      span = {};
      if (c.copies) stream->Copy(results.data() + step * plane, copy16, kElements * 2);
    }
    const Stream::Marker end = stream->Record();
    Settle({stream.get()});
    EXPECT_FALSE(stream->Passed(end)) << "it waits for the flag";
    flag->store(steps, std::memory_order_release);
    stream->Synchronize(end);
    ASSERT_TRUE(stream->status().ok()) << stream->status().Format();

    const optim::FlushDenormals flush;
    const auto update = optim::SelectKernels(optim::IsaLevel::kScalarReference).update;
    for (uint64_t step = 0; step < 2; ++step) {
      if (step == 1) planes.gradient = second.gradient;
      update(c.Factors(), planes.Span());
      if (!c.copies) continue;
      std::vector<uint8_t> copied(kElements * 2);
      std::memcpy(copied.data(), results.data() + step * plane, copied.size());
      EXPECT_TRUE(optim::SameStored(copied, planes.param16, c.copy))
          << c.Name() << ", step " << step;
    }
    const std::vector<std::byte> states = Read<std::byte>(slots[0].states, 3 * plane);
    const auto same = [&](uint64_t which, const std::vector<float>& reference) {
      std::vector<float> values(kElements);
      std::memcpy(values.data(), states.data() + which * plane, kElements * 4);
      return optim::Same(values, reference);
    };
    EXPECT_TRUE(same(0, planes.master) && same(1, planes.momentum) && same(2, planes.variance))
        << c.Name();
  }
}

// On a GPU what cannot be reached is an error of the stream, as with a copy; then nothing more is
// enqueued.
TEST_P(AdamOrder, AStreamWithAnErrorTakesNoMore) {
  if (!GetParam().gpu) return;  // host streams have no errors
  auto stream = Open();
  Flag outside{0};
  stream->WaitFlag(&outside, 1);  // no registered memory
  ASSERT_FALSE(stream->status().ok());
  const AdamCase c = {OptimizerRule::kAdamW, DType::kF32, false, DType::kBF16};
  const UpdateSpan span =
      SpanOf({Block(3 * kPageBytes), kPageBytes}, Block(kPageBytes), nullptr, c);
  EXPECT_EQ(optim::EnqueueAdam(stream.get(), c.Factors(), optim::Slice(span, 0, 64)).id(),
            stream->status().id());
}

}  // namespace adam_order_test
}  // namespace tidepool::device
