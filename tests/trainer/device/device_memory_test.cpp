// A GPU whose memory is used up: the error names the shares, and changes whose predictions add up.
#include "trainer/advice/device_memory.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "trainer/run/describe_plan.h"

namespace tidepool::trainer {
namespace device_memory_test {

class DeviceMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.model.preset = "gpt2-1.5b";
    options_.model.dtype = "bf16";
    options_.data.batch = 16;
    Result<RunPlan> plan = MakeRunPlan(options_, /*world=*/2, 0, "short");
    ASSERT_TRUE(plan.ok()) << plan.status().Format();
    plan_ = std::move(plan).value();
    // 80 GiB: 8 of rCache, 1 resident, 60 of tensors, 2 unused, 1 free; 8 are left for contexts and
    // others.
    run_.shares = {.total = 80 * kGiB,
                   .free = kGiB,
                   .rcache = 8 * kGiB,
                   .resident = kGiB,
                   .outside = kGiB / 2};
    run_.shares.allocated = 60 * kGiB;
    run_.shares.reserved = 62 * kGiB;
    run_.wanted = 4 * kGiB;
  }

  std::vector<std::string> Flags() const {
    std::vector<std::string> flags;
    for (const MemoryChange& change : ChangesThatFit(run_, plan_, options_))
      flags.push_back(change.flags);
    return flags;
  }

  RunOptions options_;
  RunPlan plan_;
  ShortRun run_;
};

TEST_F(DeviceMemory, SharesAddUpToTheWhole) {
  const DeviceShares& s = run_.shares;
  EXPECT_EQ(s.activations(), 60 * kGiB - kGiB / 2);
  EXPECT_EQ(s.unused(), 2 * kGiB);
  EXPECT_EQ(s.framework(), 8 * kGiB);
  EXPECT_EQ(
      s.free + s.rcache + s.resident + s.outside + s.activations() + s.unused() + s.framework(),
      s.total);
}

TEST_F(DeviceMemory, ChangesThatFitComeWithTheirPredictions) {
  run_.rcache_smallest = 4 * kGiB;
  const std::vector<MemoryChange> changes = ChangesThatFit(run_, plan_, options_);
  ASSERT_EQ(changes.size(), 3U);
  EXPECT_EQ(changes[0].flags, "--rcache " + std::to_string(4 * kGiB));
  EXPECT_EQ(changes[0].bytes, (79 + 4 - 5) * kGiB);
  // 63.5 GiB of activations on 8 sequences: one fewer is enough.
  EXPECT_EQ(changes[1].flags, "--batch 14");
  EXPECT_EQ(changes[1].bytes, 83 * kGiB - (127 * kGiB / 2) / 8);
  EXPECT_EQ(changes[2].flags, "--checkpoint-activations");
  EXPECT_LT(changes[2].bytes, 40 * kGiB);
}

TEST_F(DeviceMemory, StatesOnTheGpuAreAShareThatCanGo) {
  run_.shares.states = 6 * kGiB;
  EXPECT_EQ(run_.shares.framework(), 2 * kGiB) << "they were memserver's all the time";
  const std::vector<MemoryChange> changes = ChangesThatFit(run_, plan_, options_);
  ASSERT_FALSE(changes.empty());
  EXPECT_EQ(changes[0].flags, "--gpu-states off");
  EXPECT_EQ(changes[0].bytes, (79 + 4 - 6) * kGiB);
  const std::string text =
      ExplainShortage(Status(ErrorId::kDeviceMemoryShort, "out of memory"), run_, plan_, options_)
          .Format();
  EXPECT_NE(text.find("resident chunks 1.00 GiB, optimizer states 6.00 GiB, parameters outside"),
            std::string::npos)
      << text;
}

TEST_F(DeviceMemory, WhatWouldNotFitIsNotOffered) {
  run_.rcache_smallest = 8 * kGiB;  // 1 GiB less, where 3 are missing
  options_.model.activation_checkpointing = true;
  EXPECT_EQ(Flags(), (std::vector<std::string>{"--batch 14", "--context 512"}));
  run_.wanted = 40 * kGiB;
  EXPECT_EQ(Flags(), (std::vector<std::string>{"--batch 8 --accumulate 2", "--context 512"}))
      << "half the batch keeps the tokens of a step";
  run_.wanted = 0;
  run_.shares.allocated = run_.shares.outside;
  run_.shares.free = 0;
  EXPECT_EQ(Flags(), std::vector<std::string>{"--rcache " + std::to_string(8 * kGiB)});
}

TEST_F(DeviceMemory, TheErrorNamesSharesAndChanges) {
  run_.rcache_smallest = 4 * kGiB;
  const Status ended = ExplainShortage(
      Status(ErrorId::kDeviceMemoryShort, "LibTorch: out of memory"), run_, plan_, options_);
  EXPECT_EQ(ended.exit_code(), kExitDeviceMemory);
  const std::string text = ended.Format();
  for (const char* part :
       {"another 4.00 GiB",
        "of 80.0 GiB: rCache 8.00 GiB, resident chunks 1.00 GiB, parameters outside 512 MiB",
        "activations 59.5 GiB",
        "framework (contexts, kernels) and other processes 8.00 GiB, free 1.00 GiB",
        "each of these alone would have fitted so far: --rcache 4294967296 (78.0 GiB in use), or "
        "--batch 14"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
  // The rCache alone fills it, and the order of the run needs all of it.
  run_.shares = {.total = 80 * kGiB, .free = 0, .rcache = 80 * kGiB};
  run_.rcache_smallest = 80 * kGiB;
  run_.wanted = 2 * kGiB;
  options_.model.vocab_tiles = 8;  // else this would save as much
  EXPECT_NE(ExplainShortage(ended, run_, plan_, options_).fix().find("no single change would fit"),
            std::string::npos);
}

// Each change is weighed by the plan that it leads to: so is it here.
class BeforeTheFirstStep : public DeviceMemory {
 protected:
  void SetUp() override {
    options_.model.dtype = "fp32";
    options_.model.preset = "gpt2-1.5b";
    // Larger chunks than the parameters ask for, so that there are smaller ones.
    options_.memory.rcache = "50%";
    options_.memory.chunk_size = "1GiB";
    plan_ = PlanWith("50%", "fp32", "1GiB");
    run_ = {.shares = {.total = 8 * kGiB}, .wanted = plan_.rcache.bytes, .at = ShortAt::kRcache};
  }
  RunPlan PlanWith(const std::string& rcache, const std::string& dtype,
                   const std::string& chunk_size) const {
    RunOptions options = options_;
    options.memory.rcache = rcache;
    options.model.dtype = dtype;
    options.memory.chunk_size = chunk_size;
    Result<RunPlan> plan = MakeRunPlan(options, /*world=*/2, 0, "short");
    EXPECT_TRUE(plan.ok()) << plan.status().Format();
    return std::move(plan).value();
  }
  static uint64_t BytesOf(const RunPlan& plan) {
    return plan.rcache.bytes + SpareBytes(plan.layout);
  }
};

TEST_F(BeforeTheFirstStep, AnRcacheWithoutRoomIsToldWithPlansThatHaveIt) {
  run_.shares.free = BytesOf(plan_) - 64 * kMiB;
  const uint64_t used = run_.shares.total - run_.shares.free;
  const std::vector<MemoryChange> changes = ChangesThatFit(run_, plan_, options_);
  ASSERT_EQ(changes.size(), 3U);
  ASSERT_TRUE(changes[0].flags.starts_with("--rcache "));
  const RunPlan smaller = PlanWith(changes[0].flags.substr(9), "fp32", "1GiB");
  EXPECT_EQ(changes[0].bytes, used + BytesOf(smaller));
  EXPECT_EQ(smaller.rcache.blocks, plan_.rcache.blocks - 1) << "no smaller than it must be";
  EXPECT_EQ(changes[1].flags, "--dtype bf16");
  EXPECT_EQ(changes[1].bytes, used + BytesOf(PlanWith("50%", "bf16", "1GiB")));
  ASSERT_TRUE(changes[2].flags.starts_with("--chunk-size "));
  EXPECT_EQ(changes[2].bytes, used + BytesOf(PlanWith("50%", "fp32", changes[2].flags.substr(13))));
  for (const MemoryChange& change : changes) EXPECT_LE(change.bytes, run_.shares.total);
  const std::string text =
      ExplainShortage(Status(ErrorId::kDeviceMemoryShort, "cuMemCreate"), run_, plan_, options_)
          .Format();
  for (const std::string& part : std::vector<std::string>{
           "the rCache of " + FormatBytes(plan_.rcache.bytes) + ", before the first step",
           "rCache 0 B, resident chunks 0 B",
           changes[0].flags + " (" + FormatBytes(changes[0].bytes) + " in use)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
}

TEST_F(BeforeTheFirstStep, WhatTheEngineNeedsBesideTheRcacheCountsToo) {
  run_.at = ShortAt::kBuild;
  run_.wanted = kGiB;
  run_.shares.resident = plan_.rcache.resident_bytes;
  run_.shares.rcache = plan_.rcache.bytes - plan_.rcache.resident_bytes;
  run_.shares.free = kGiB / 2;
  const uint64_t others = run_.shares.total - run_.shares.free - plan_.rcache.bytes;
  const std::vector<MemoryChange> changes = ChangesThatFit(run_, plan_, options_);
  ASSERT_GE(changes.size(), 2U);
  EXPECT_EQ(changes[0].bytes,
            others + kGiB + PlanWith(changes[0].flags.substr(9), "fp32", "1GiB").rcache.bytes);
  EXPECT_LE(changes[0].bytes, run_.shares.total);
  EXPECT_GT(changes[0].bytes + plan_.rcache.block_bytes, run_.shares.total)
      << "the largest that fits";
  EXPECT_EQ(changes[1].flags, "--dtype bf16");
}

TEST_F(BeforeTheFirstStep, AGpuThatOthersHaveFilledLeavesNoChange) {
  run_.shares.free = kMiB;
  EXPECT_TRUE(ChangesThatFit(run_, plan_, options_).empty());
  const Status ended =
      ExplainShortage(Status(ErrorId::kDeviceMemoryShort, "cuMemCreate"), run_, plan_, options_);
  EXPECT_NE(ended.fix().find("end what else uses this GPU"), std::string::npos) << ended.Format();
}

TEST_F(DeviceMemory, WhatLibTorchAskedForIsRead) {
  EXPECT_EQ(WantedBytes("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has"), 5 * kGiB / 2);
  EXPECT_EQ(WantedBytes("Tried to allocate 20.00 MiB."), 20 * kMiB);
  EXPECT_EQ(WantedBytes("Tried to allocate 512 bytes."), 512U);
  EXPECT_EQ(WantedBytes("CUDA out of memory. Tried to allocate more than 1EB memory."), 0U);
  EXPECT_EQ(WantedBytes("no such words"), 0U);
}

TEST_F(DeviceMemory, AnEstimateCountsEveryRankOfAGpu) {
  const GpuEstimate one = EstimateGpu(plan_, 1, std::nullopt, {.why_not = "no GPU is here"});
  EXPECT_EQ(one.rank_bytes, plan_.rcache.bytes + SpareBytes(plan_.layout));
  EXPECT_NE(DescribeGpu(one).find("measured where a GPU is; none is here"), std::string::npos);
  const GpuEstimate two =
      EstimateGpu(plan_, 2, device::DeviceBytes{.free = 78 * kGiB, .total = 80 * kGiB},
                  {.why_not = "no memserver could be asked"});
  EXPECT_NE(DescribeGpu(two).find(FormatBytes(2 * one.rank_bytes) +
                                  " of each GPU that is used, for 2 ranks"),
            std::string::npos);
  EXPECT_NE(DescribeGpu(two).find("2.00 GiB of 80.0 GiB"), std::string::npos) << DescribeGpu(two);
  EXPECT_NE(DescribeGpu(two).find("not known and not counted: no memserver could be asked"),
            std::string::npos)
      << DescribeGpu(two);
  EXPECT_NE(PlanJson(plan_, &two).find("\"bytes\":" + std::to_string(2 * one.rank_bytes)),
            std::string::npos);
  EXPECT_EQ(PlanJson(plan_, &two).find("server_bytes"), std::string::npos)
      << "no number is guessed";
}

TEST_F(DeviceMemory, AnEstimateCountsWhatTheServerMeasuredOfItself) {
  std::vector<client::GpuView> gpus(2);
  gpus[0].uuid = "GPU-1";
  gpus[0].taken = kGiB;
  gpus[1].uuid = "GPU-2";
  const ServerContext known = ServerContextOf(gpus, "GPU-1");
  EXPECT_EQ(known.bytes, kGiB);
  const GpuEstimate estimate = EstimateGpu(plan_, 2, std::nullopt, known);
  EXPECT_EQ(estimate.bytes(), 2 * estimate.rank_bytes + kGiB);
  EXPECT_NE(DescribeGpu(estimate).find("and 1.00 GiB that memserver has taken, as it measured"),
            std::string::npos);
  EXPECT_NE(PlanJson(plan_, &estimate).find("\"server_bytes\":" + std::to_string(kGiB)),
            std::string::npos);
  EXPECT_NE(PlanJson(plan_, &estimate).find("\"bytes\":" + std::to_string(estimate.bytes())),
            std::string::npos);
  for (const auto& [unknown, why] :
       {std::pair(ServerContextOf(gpus, "GPU-2"), "management library is missing"),
        std::pair(ServerContextOf(gpus, "GPU-3"), "has not opened this GPU yet"),
        std::pair(ServerContextOf(Status(ErrorId::kNoServer, "nobody listens"), "GPU-1"),
                  "nobody listens")}) {
    EXPECT_EQ(unknown.bytes, 0U);
    EXPECT_NE(unknown.why_not.find(why), std::string::npos) << unknown.why_not;
  }
}

}  // namespace device_memory_test
}  // namespace tidepool::trainer
