#include "optim/adam_stream.h"

#include <gtest/gtest.h>

#include <cstring>

#include "device/host/inline_stream.h"
#include "optim/adam_share.h"
#include "optim/kernels/float_mode.h"
#include "optim/kernels/kernels.h"
#include "optim/rules.h"
#include "optim/update_rule.h"
#include "tests/fakes/real_clock.h"
#include "tests/optim/adam_planes.h"

// The GPU's kernel without a GPU: the body that each of its threads runs is host code as well. That
// nvcc makes the same arithmetic of it is what adam_gpu_test.cpp shows where there is a GPU.
namespace tidepool::optim {
namespace adam_stream_test {

// Runs the share of every thread, the last one first.
template <typename Rule>
void RunGrid(const StepFactors& factors, const UpdateSpan& span, uint64_t threads) {
  WithGradient<Rule>(span, /*from=*/0, [&](auto share, const auto& planes) {
    for (uint64_t thread = threads; thread-- > 0;) {
      decltype(share)::Run(FactorsOf<Rule>(factors), factors.gradient_scale, planes, thread,
                           threads);
    }
  });
}

void RunGrid(const StepFactors& factors, const UpdateSpan& span, uint64_t threads) {
  ASSERT_EQ(WhyNotOnStream(factors, span), nullptr);
  factors.rule == 0 ? RunGrid<AdamRule<true>>(factors, span, threads)
                    : RunGrid<AdamRule<false>>(factors, span, threads);
}

void ExpectTheBitsOfTheReference(uint64_t count, uint64_t threads) {
  uint64_t seed = count;
  for (const AdamCase& c : AllAdamCases()) {
    AdamPlanesOnHost grid(seed += 10, count, c);
    AdamPlanesOnHost reference = grid;
    RunGrid(c.Factors(), grid.Span(), threads);
    SelectKernels(IsaLevel::kScalarReference).update(c.Factors(), reference.Span());
    ASSERT_TRUE(grid.SameAs(reference))
        << c.Name() << ", " << count << " elements, " << threads << " threads";
  }
}

constexpr uint64_t kMany = 150'001;  // of each of ten forms

TEST(AdamShare, HasTheBitsOfTheReferenceWithDenormalsFlushed) {
  FlushDenormals flush;
  ExpectTheBitsOfTheReference(kMany, 1024);
}

TEST(AdamShare, HasTheBitsOfTheReferenceWithDenormals) {
  ExpectTheBitsOfTheReference(kMany / 3, 1024);
}

// Fewer elements than a vector, than a thread's vectors, than threads; and a rest behind the last
// vector.
TEST(AdamShare, ThreadsTakeEveryElementOnce) {
  for (const uint64_t count : {0, 1, 3, 4, 5, 7, 255, 256, 257, 1023}) {
    for (const uint64_t threads : {1, 2, 64, 256}) ExpectTheBitsOfTheReference(count, threads);
  }
}

TEST(AdamShare, TakesPlanesThatBeginAnywhere) {
  for (const AdamCase& c : AllAdamCases()) {
    for (const uint64_t first : {1, 2, 3, 4}) {
      AdamPlanesOnHost grid(first, 1'003, c);
      AdamPlanesOnHost reference = grid;
      RunGrid(c.Factors(), Slice(grid.Span(), first, 997), 64);
      SelectKernels(IsaLevel::kScalarReference)
          .update(c.Factors(), Slice(reference.Span(), first, 997));
      ASSERT_TRUE(grid.SameAs(reference)) << c.Name() << " from " << first;
    }
  }
}

TEST(AdamShare, VectorsAreUsedExactlyWhereEveryPlaneIsAligned) {
  alignas(64) float floats[16];
  alignas(64) uint16_t halves[16];
  UpdateSpan span;
  span.master = span.momentum = span.variance = floats;
  span.gradient = span.param16 = halves;
  span.count = 8;
  EXPECT_TRUE(AdamPlanesOf<Bf16Element>(span).vectors);
  span.param16 = halves + 4;
  EXPECT_TRUE(AdamPlanesOf<Bf16Element>(span).vectors);
  span.param16 = halves + 2;
  EXPECT_FALSE(AdamPlanesOf<Bf16Element>(span).vectors);
  span.param16 = nullptr;
  EXPECT_TRUE(AdamPlanesOf<Bf16Element>(span).vectors);
  span.variance = floats + 2;
  EXPECT_FALSE(AdamPlanesOf<Bf16Element>(span).vectors);
}

TEST(AdamStream, SaysWhatTheKernelCannotDo) {
  const AdamCase usual = {OptimizerRule::kAdamW, DType::kBF16, true, DType::kBF16};
  AdamPlanesOnHost planes(1, 8, usual);
  const UpdateSpan good = planes.Span();
  const auto objection = [&](auto change) {
    UpdateSpan span = good;
    StepFactors factors = usual.Factors();
    change(&span, &factors);
    const char* const text = WhyNotOnStream(factors, span);
    return std::string(text == nullptr ? "" : text);
  };
  EXPECT_EQ(objection([](UpdateSpan*, StepFactors*) {}), "");
  EXPECT_EQ(objection([](UpdateSpan*, StepFactors* f) { f->rule = 2; }),
            "the kernel knows Adam and AdamW only");
  EXPECT_EQ(objection([](UpdateSpan* s, StepFactors*) { s->states = StateForm::kSplit; }),
            "the kernel knows fp32 states only");
  EXPECT_EQ(objection([](UpdateSpan* s, StepFactors*) { s->variance = nullptr; }),
            "a plane is missing");
  EXPECT_EQ(objection([](UpdateSpan* s, StepFactors*) { s->param16 = nullptr; }),
            "16-bit gradients come with a copy of the same type");
  EXPECT_EQ(objection([](UpdateSpan* s, StepFactors*) { s->param16_dtype = DType::kF16; }),
            "16-bit gradients come with a copy of the same type");
  EXPECT_EQ(objection([](UpdateSpan* s, StepFactors*) {
              s->gradient_dtype = s->param16_dtype = DType::kF32;
            }),
            "the 16-bit copy has an fp32 type");
  uint64_t word = 0;
  EXPECT_NE(objection([&](UpdateSpan* s, StepFactors*) { s->undo.progress = &word; }), "");
  EXPECT_EQ(objection([](UpdateSpan* s, StepFactors*) { *s = UpdateSpan(); }), "")
      << "nothing can always be done";
}

TEST(AdamStream, NothingIsEnqueuedForNoElements) {
  device::InlineStream stream(RealClock());
  EXPECT_TRUE(EnqueueAdam(&stream, StepFactors(), UpdateSpan()).ok());
  EXPECT_FALSE(stream.Progress(1));
}

}  // namespace adam_stream_test
}  // namespace tidepool::optim
