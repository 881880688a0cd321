// Which chunks hold which experts, by the names of a job's tensors, as /v1/residency tells it.
#include "memserver/admin/reports/residency_columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "tests/memserver/admin/admin_fixture.h"

namespace tidepool::memserver {
namespace residency_columns_test {

using ::testing::HasSubstr;

TEST(ResidencyColumns, ExpertsAreFoundByTheNamesThatHuggingFaceGivesThem) {
  const auto told = [](std::string_view tensor) {
    const auto expert = ExpertOf(tensor);
    return !expert ? "-" : std::string(expert->layer) + " " + std::to_string(expert->number);
  };
  EXPECT_EQ(told("model.layers.3.block_sparse_moe.experts.5.w1.weight"), "model.layers.3 5");
  EXPECT_EQ(told("model.layers.10.mlp.experts.127.up_proj.weight"), "model.layers.10 127");
  EXPECT_EQ(told("moe.experts.0"), "moe 0");
  EXPECT_EQ(told("moe.experts.999999.w"), "moe 999999");
  for (const char* other :
       {"model.layers.3.mlp.experts.gate_up_proj", "model.layers.3.mlp.gate.weight",
        "model.layers.3.mlp.shared_experts.2.w", ".experts.5.w", "experts.5.w", "a.experts.",
        "a.experts..w", "a.experts.1000000.w", "a.experts.5x.w", "a.experts.-1.w", ""})
    EXPECT_EQ(told(other), "-") << other;
}

// Experts of two layers, each in a chunk of its own but the last two, which share one.
JobRow JobWithExperts() {
  JobRow job = TwoJobs().jobs[0];
  auto spec = std::make_shared<shm::JobSpec>();
  const auto add = [&](const char* name, uint32_t chunk) {
    spec->parameters.push_back({.name = name, .dims = {}, .chunk = chunk, .element_count = 8});
  };
  add("wte", 0);
  add("h.0.attn.w", 0);
  add("h.0.moe.experts.0.w1", 1);
  add("h.0.moe.experts.0.w2", 1);
  add("h.0.moe.experts.1.w1", 2);
  add("h.2.moe.experts.6.w1", 3);
  add("h.2.moe.experts.4.w1", 4);
  add("h.2.moe.experts.5.w1", 4);
  spec->chunks.resize(6);
  job.spec = spec;
  job.chunks[1].fetched_step = 42;
  job.chunks[2].fetched_step = 40;
  job.chunks[4].fetched_step = 41;
  return job;
}

TEST(ResidencyReport, NamesTheExpertsOfChunksAndWhenTheyWereFetched) {
  Snapshot snapshot = TwoJobs();
  snapshot.jobs[0] = JobWithExperts();
  const std::string chunks = ResidencyReport(snapshot, {&snapshot.jobs[0]}, ResidencyBy::kChunk);
  EXPECT_THAT(
      chunks,
      HasSubstr(
          R"("experts":[{"layer":"h.0","first_expert":0,"last_expert":1,"first_chunk":1,"last_chunk":2,"chunks_fetched":1},)"
          R"({"layer":"h.2","first_expert":6,"last_expert":6,"first_chunk":3,"last_chunk":3,"chunks_fetched":0},)"
          R"({"layer":"h.2","first_expert":4,"last_expert":5,"first_chunk":4,"last_chunk":4,"chunks_fetched":1}],"rows")"));
  const std::string experts = ResidencyReport(snapshot, {&snapshot.jobs[0]}, ResidencyBy::kExpert);
  EXPECT_THAT(experts, HasSubstr(R"({"by":"expert","pool")"));
  EXPECT_THAT(
      experts,
      HasSubstr(
          R"~("columns":[{"name":"wte","chunks":1,"bytes":32,"fetched_step":0},{"name":"h.0","chunks":1,"bytes":32,"fetched_step":0},)~"
          R"~({"name":"h.0 expert 0","chunks":1,"bytes":64,"fetched_step":42},{"name":"h.0 expert 1","chunks":1,"bytes":32,"fetched_step":40},)~"
          R"~({"name":"h.2 expert 6","chunks":1,"bytes":32,"fetched_step":0},{"name":"h.2 expert 4","chunks":1,"bytes":32,"fetched_step":41},)~"
          R"~({"name":"h.2 expert 5","chunks":1,"bytes":32,"fetched_step":41},{"name":"(no tensor)","chunks":1,"bytes":4096,"fetched_step":0}],"rows")~"));
  EXPECT_THAT(ResidencyReport(snapshot, {&snapshot.jobs[1]}, ResidencyBy::kChunk),
              ::testing::Not(HasSubstr("experts")))
      << "its tensors are unknown";
  snapshot.jobs[0].chunks.clear();
  EXPECT_THAT(ResidencyReport(snapshot, {&snapshot.jobs[0]}, ResidencyBy::kChunk),
              ::testing::Not(HasSubstr("experts")))
      << "it has no chunks yet";
}

}  // namespace residency_columns_test
}  // namespace tidepool::memserver
