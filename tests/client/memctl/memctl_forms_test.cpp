// Answers as lines and as YAML, and those of several machines as one.
#include "client/memctl/views/forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/memctl/views/json_tree.h"
#include "client/memctl/commands/nodes.h"
#include "client/memctl/commands/run_programs.h"
#include "tests/client/memctl/memctl_fixture.h"

namespace tidepool::client {
namespace memctl_forms_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(MemctlForms, YamlHasTheSameNumbersAndTexts) {
  EXPECT_EQ(
      *AsYaml(
          R"({"state":"ready","version":"0.1.0","pid":7,"share":1e-05,"none":null,"pool":{"bytes":1073741824,"dir":"/run/x"},
    "jobs":[{"name":"no","ranks":[0,1],"runs":[["C",2],[".",7]]},{"name":"b: c","ranks":[],"quota":{}}],"empty":[]})"),
      R"(state: ready
version: "0.1.0"
pid: 7
share: 1.0e-05
none: null
pool:
  bytes: 1073741824
  dir: /run/x
jobs:
  - name: "no"
    ranks: [0, 1]
    runs:
      - [C, 2]
      - [".", 7]
  - name: "b: c"
    ranks: []
    quota: {}
empty: []
)");
  EXPECT_EQ(*LinesAsYaml("{\"number\":1}\n{\"number\":2,\"name\":\"x\"}\n"),
            "- number: 1\n- number: 2\n  name: x\n");
  EXPECT_EQ(*LinesAsYaml(""), "");
}

TEST(MemctlForms, LinesAreTheElementsOfTheList) {
  EXPECT_EQ(*AsJsonLines(R"({"jobs": [{"a":0.10}, {"a":18446744073709551615}],"next":1})", "jobs"),
            "{\"a\":0.10}\n{\"a\":18446744073709551615}\n");
  EXPECT_EQ(*AsJsonLines(R"({"a": {"b" : [1, "x\"]"]}})", "jobs"),
            "{\"a\":{\"b\":[1,\"x\\\"]\"]}}\n");
  EXPECT_EQ(*AsJsonLines(R"({"jobs":[]})", "jobs"), "");
}

TEST(MemctlForms, WhatIsNoJsonIsAnError) {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\"}", "{\"a\":1} 2", "nul", "\"a", "{a:1}", "[1 2]"})
    EXPECT_FALSE(ReadJsonTree(text).ok()) << text;
  EXPECT_FALSE(ReadJsonTree(std::string(70, '[') + std::string(70, ']')).ok()) << "too deep";
}

TEST_F(Memctl, AnAnswerComesInEveryForm) {
  Serve();
  EXPECT_THAT(ResultOf({"status", "-o", "yaml"}), StartsWith("state: ready\nversion: \"1.2.3\"\n"));
  EXPECT_THAT(ResultOf({"ps", "-o", "jsonl"}), StartsWith("{\"id\":3,\"name\":\"gpt\""));
  auto chunks = Run({"chunks", "-o", "jsonl", "--limit", "3"});
  EXPECT_EQ(std::count(chunks->result.begin(), chunks->result.end(), '\n'), 3);
  EXPECT_THAT(chunks->remark, HasSubstr("--cursor 3:3")) << "the lines do not say it";
  EXPECT_EQ(Run({"chunks", "-o", "yaml", "--limit", "3"})->remark, "") << "the document does";
  EXPECT_EQ(ResultOf({"undrain", "-o", "yaml"}), "result: done\n");
  EXPECT_THAT(ResultOf({"api", "GET", "/v1/version", "-o", "yaml"}),
              StartsWith("name: tidepool\n"));
  EXPECT_THAT(ResultOf({"api", "GET", "/metrics", "-o", "yaml"}), StartsWith("# HELP"))
      << "as it came";
}

TEST_F(Memctl, WideHasMoreColumns) {
  Serve();
  EXPECT_THAT(ResultOf({"ps", "-o", "wide"}),
              HasSubstr("SKIPPED  UID  ACCOUNT  WEIGHT  PRIORITY  GUARANTEE  LIMIT  NVME LIMIT  "
                        "CHUNKS  ON NVME  P50  P99  CPUS\n"));
  EXPECT_THAT(ResultOf({"status", "-o", "wide"}), HasSubstr("GPU-01, by vmm (it can)"));
  EXPECT_EQ(ResultOf({"quotas", "-o", "wide"}), ResultOf({"quotas"}));
}

TEST_F(Memctl, VerboseTellsOfEachRequest) {
  Serve();
  ParsedLine line = Parse({"-v", "ps", "-s", directory_.c_str()});
  ASSERT_TRUE(line.invocation && line.invocation->verbose);
  std::vector<std::string> told;
  line.invocation->clock = &clock_;
  line.invocation->tell = [&](const std::string& text) { told.push_back(text); };
  ASSERT_TRUE(RunCommand(*line.invocation, {}).ok());
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0], StartsWith("GET /v1/jobs at " + directory_ + "/admin.sock: 200, "));
  EXPECT_EQ(Parse({"-q", "-v", "ps"}).exit_code, kExitUsage);
}

TEST(MemctlNodes, TheCommandLineForANodeHasNothingOfThisMachine) {
  const std::vector<std::string> words{
      "--node", "a,b",      "-o",     "yaml",          "ps", "--watch", "2s",     "--job",
      "x",      "--node=c", "-ojson", "--output=json", "-s", "/run/x",  "--watch"};
  EXPECT_THAT(WordsForNodes(words), ElementsAre("ps", "--job", "x", "-s", "/run/x"));
  const ParsedLine line = Parse({"--node", "a,b", "--node", "c", "ps", "-o", "wide"});
  ASSERT_TRUE(line.invocation.has_value()) << line.text;
  EXPECT_THAT(line.invocation->nodes, ElementsAre("a", "b", "c"));
  EXPECT_THAT(line.invocation->words, ElementsAre("ps"));
}

TEST(MemctlNodes, WhatIsOfOneMachineIsRefused) {
  for (const std::vector<const char*>& words : {std::vector<const char*>{"top"},
                                                {"page"},
                                                {"record", "x"},
                                                {"events", "-f"},
                                                {"topo", "--xml", "x"}}) {
    std::vector<const char*> line{"--node", "a"};
    line.insert(line.end(), words.begin(), words.end());
    EXPECT_EQ(Parse(line).exit_code, kExitUsage) << words[0];
    EXPECT_THAT(Parse(line).text, HasSubstr("--node: ")) << words[0];
  }
  EXPECT_THAT(Parse({"--node", "-oProxyCommand=x", "ps"}).text, HasSubstr("no name of a machine"));
}

TEST(RunPrograms, EndsAndTextsAreThoseOfEach) {
  const auto ends = RunPrograms({{"sh", "-c", "echo out; echo err >&2; exit 3"},
                                 {"/no/such/program"},
                                 {"sh", "-c", "kill -9 $$"},
                                 {"cat"}});
  ASSERT_EQ(ends.size(), 4u);
  EXPECT_EQ(ends[0].exit_code, 3);
  EXPECT_EQ(ends[0].output, "out\n");
  EXPECT_EQ(ends[0].errors, "err\n");
  EXPECT_EQ(ends[1].exit_code, 127);
  EXPECT_THAT(ends[1].errors, HasSubstr("/no/such/program: No such file"));
  EXPECT_EQ(ends[2].exit_code, 137);
  EXPECT_EQ(ends[3].exit_code, 0) << "there is nothing to read";
}

}  // namespace memctl_forms_test
}  // namespace tidepool::client
