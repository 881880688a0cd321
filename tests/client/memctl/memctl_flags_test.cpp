// memctl's command line: what is understood, and what is said of what is not.
#include "client/memctl/flags/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

#include <string>
#include <vector>

namespace tidepool::client {
namespace memctl_flags_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;

ParsedLine Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "memctl");
  return ParseCommandLine(static_cast<int>(words.size()), words.data());
}

TEST(MemctlFlags, HelpLeadsWithExamples) {
  const ParsedLine line = Parse({"--help"});
  EXPECT_EQ(line.exit_code, 0);
  const size_t examples = line.text.find("Examples:"), usage = line.text.find("Usage:");
  ASSERT_NE(examples, std::string::npos);
  ASSERT_NE(usage, std::string::npos);
  EXPECT_LT(examples, usage);
  EXPECT_THAT(line.text, HasSubstr("residency"));
  EXPECT_THAT(Parse({"chunks", "--help"}).text, HasSubstr("--cursor"));
  EXPECT_THAT(Parse({"--version"}).text, StartsWith("memctl "));
}

TEST(MemctlFlags, WhatIsNotUnderstoodIsAUsageErrorWithAGuess) {
  struct Case {
    std::vector<const char*> words;
    const char* text;
  };
  const Case cases[] = {
      {{"residncy"}, "did you mean \"residency\""},
      {{}, "no command"},
      {{"status", "--colour"}, "--colour"},
      {{"status", "ps", "extra"}, "extra"},
      {{"status", "ps"}, "'ps' is one word too many"},
      {{"chunks", "--colour", "nvme"}, "chunks: there is no flag --colour"},
      {{"drain", "--dryrun"}, "drain: there is no flag --dryrun here; did you mean \"--dry-run\""},
      {{"ps", "--jb=x"}, "did you mean \"--job\""},
      {{"job"}, "memctl job needs a word more: quota, suspend"},
      {{"job", "realease", "gpt"}, "did you mean \"release\""},
      {{"job", "pause", "gpt"}, "there is no command 'pause'; there are quota, suspend, resume"},
      {{"job", "quota"}, "memctl job quota --help"},
      {{"health", "mute"}, "check is required"},
      {{"report"}, "the file that is written is not named"},
      {{"report", "a", "-o", "b"}, "named twice: a and b"},
      {{"status", "-o", "xml"}, "'xml' is none of table, wide, json, jsonl, yaml"},
      {{"status", "-o", "svg"}, "only residency is shown as svg"},
      {{"status", "--dry-run"},
       "status: it changes nothing; --dry-run is of job quota, job suspend"},
      {{"api", "POST", "/v1/drain", "--yes"}, "api: it sends at once what it is given"},
      {{"timeline", "x", "--step", "1.5"}, "neither the number of a step nor `last`"},
      {{"status", "--timeout", "soon"}, "duration"},
      {{"status", "--watch", "often"}, "duration"},
      {{"chunks", "--limit", "0"}, "limit"},
      {{"api", "GET"}, "path"}};
  for (const Case& each : cases) {
    const ParsedLine line = Parse(each.words);
    EXPECT_FALSE(line.invocation.has_value()) << each.text;
    EXPECT_EQ(line.exit_code, kExitUsage) << each.text;
    EXPECT_THAT(line.text, HasSubstr(each.text));
    EXPECT_THAT(line.text, StartsWith("error[TP1"));
  }
}

TEST(MemctlFlags, ASnapshotNamesItsJobAndItsFolder) {
  const ParsedLine line = Parse({"snapshot", "gpt", "--to", "runs/gpt", "--keep", "2"});
  ASSERT_TRUE(line.invocation) << line.text;
  EXPECT_EQ(line.invocation->command, "snapshot");
  EXPECT_EQ(line.invocation->job, "gpt");
  EXPECT_EQ(line.invocation->fields.at("to"), "runs/gpt");
  EXPECT_EQ(line.invocation->fields.at("keep"), "2");
  EXPECT_FALSE(line.invocation->fields.contains("like"));
  EXPECT_THAT(Parse({"snapshot", "gpt"}).text, HasSubstr("--to is required"));
  EXPECT_FALSE(Parse({"snapshot", "gpt", "--to", "a", "--keep", "0"}).invocation);
  EXPECT_THAT(Parse({"--node", "a", "snapshot", "gpt", "--to", "b"}).text,
              HasSubstr("snapshot writes a file"));
}

TEST(MemctlFlags, WordsOfOtherProgramsLeadToTheCommandThatDoesIt) {
  for (const char* word :
       {"jobs",  "ls",        "list",   "kill",    "rm",     "delete", "stop",  "restart",
        "log",   "stats",     "tail",   "queue",   "squeue", "watch",  "free",  "cancel",
        "pause", "suspend",   "resume", "release", "info",   "show",   "check", "ui",
        "web",   "dashboard", "mem",    "memory",  "trace",  "set"}) {
    const std::string text = Parse({word}).text;
    const size_t begin = text.find("did you mean \"");
    ASSERT_NE(begin, std::string::npos) << text;
    const std::string guess = text.substr(begin + 14, text.find('"', begin + 14) - begin - 14);

    std::istringstream words(guess);
    std::vector<std::string> command{std::istream_iterator<std::string>(words), {}};
    if (command.back() == "JOB") command.pop_back();
    std::vector<const char*> helped;
    for (const std::string& each : command) helped.push_back(each.c_str());
    helped.push_back("--help");
    EXPECT_EQ(Parse(helped).exit_code, kExitOk) << word << " leads to " << guess;
  }
  EXPECT_THAT(Parse({"jobs"}).text, HasSubstr("did you mean \"ps\""));
}

TEST(MemctlFlags, WhatIsWrittenInAnotherWayIsTheSame) {
  EXPECT_EQ(Parse({"help", "chunks"}).text, Parse({"chunks", "--help"}).text);
  EXPECT_EQ(Parse({"help"}).text, Parse({"--help"}).text);
  EXPECT_EQ(Parse({"report", "-o", "run.html"}).invocation->target, "run.html");
  EXPECT_EQ(Parse({"-s", "/run/x/admin.sock", "status"}).invocation->socket_dir, "/run/x");
  const auto muted = Parse({"health", "mute", "DRAINING", "4h"}).invocation,
             flags = Parse({"health", "--mute", "DRAINING", "--for", "4h"}).invocation;
  ASSERT_TRUE(muted.has_value() && flags.has_value());
  EXPECT_EQ(muted->fields, flags->fields);
  EXPECT_EQ(Parse({"health", "unmute", "DRAINING"}).invocation->fields,
            Parse({"health", "--unmute", "DRAINING"}).invocation->fields);
  EXPECT_EQ(Parse({"health", "detail"}).invocation->command, "health");
}

TEST(MemctlFlags, GlobalFlagsStandBeforeOrAfterTheCommand) {
  for (const std::vector<const char*>& words :
       {std::vector<const char*>{"-s", "/x", "--no-header", "--watch=2s", "residency", "--job",
                                 "a"},
        std::vector<const char*>{"residency", "--job", "a", "-s", "/x", "--no-header", "--watch",
                                 "2s"}}) {
    const ParsedLine line = Parse(words);
    ASSERT_TRUE(line.invocation.has_value()) << line.text;
    EXPECT_EQ(line.invocation->command, "residency");
    EXPECT_EQ(line.invocation->socket_dir, "/x");
    EXPECT_EQ(line.invocation->job, "a");
    EXPECT_FALSE(line.invocation->header);
    EXPECT_EQ(line.invocation->watch_ns, 2 * kNsPerSecond);
    EXPECT_EQ(line.invocation->timeout_ns, kTimeoutDefaultNs);
  }
  EXPECT_EQ(Parse({"residency", "--watch"}).invocation->watch_ns, kNsPerSecond);
  EXPECT_EQ(Parse({"wait-ready"}).invocation->timeout_ns, kWaitReadyDefaultNs);
}

}  // namespace memctl_flags_test
}  // namespace tidepool::client
