#include "base/text/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidepool {
namespace completion_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Completion, KindsTellWhatMayStandThere) {
  EXPECT_THAT(ValuesOfKind("FORM:{table,json}").words, ElementsAre("table", "json"));
  EXPECT_THAT(ValuesOfKind("auto|off|reserved").words, ElementsAre("auto", "off", "reserved"));
  EXPECT_THAT(ValuesOfKind("SIZE|%|none").words, ElementsAre("none"));
  EXPECT_THAT(ValuesOfKind("TEXT").words, IsEmpty());
  EXPECT_THAT(ValuesOfKind("").words, IsEmpty());
  EXPECT_TRUE(ValuesOfKind("DIR").directories);
  EXPECT_FALSE(ValuesOfKind("DIR").files);
  EXPECT_TRUE(ValuesOfKind("FILE").files);
}

std::vector<CompletedCommand> Commands() {
  return {{.path = "",
           .help = "",
           .flags = {{{"-o", "--output"}, "the form", true, ValuesOfKind("FORM:{table,json}")}}},
          {.path = "look",
           .help = "look at it: don't touch",
           .flags = {{{"--all"}, "everything", false}}},
          {.path = "job", .help = "jobs", .flags = {}},
          {.path = "job end",
           .help = "end one",
           .flags = {},
           .takes_arguments = true,
           .arguments = {.lines_of = "names"}}};
}

TEST(Completion, TextsOfHelpAreQuotedForTheShell) {
  const std::string zsh = ZshCompletion("prog", Commands());
  EXPECT_THAT(zsh, ::testing::StartsWith("#compdef prog\n"));
  EXPECT_THAT(zsh, HasSubstr("commands=('look:look at it: don'\\''t touch' 'job:jobs')"));
  EXPECT_THAT(zsh, HasSubstr("flags=('--all:everything')"));
  EXPECT_THAT(zsh, HasSubstr("compadd -- table json; return"));
}

TEST(Completion, CommandsBelowOthersAreFoundInBothShells) {
  for (const std::string& text :
       {BashCompletion("prog", Commands()), ZshCompletion("prog", Commands())}) {
    EXPECT_THAT(text, HasSubstr("\" look\" | \" job\" | \"job end\") chosen="));
    EXPECT_THAT(text, HasSubstr("*\"|-o\" | *\"|--output\") "));
    EXPECT_THAT(text, HasSubstr("\"job end\")\n"));
  }
}

TEST(Completion, FishIsToldOfEveryCommandItsFlagsAndItsValues) {
  const std::string fish = CompletionFor("fish", "prog", Commands());
  EXPECT_THAT(fish, HasSubstr("case ' look' ' job' 'job end'\n"));
  EXPECT_THAT(fish,
              HasSubstr("complete -c prog -s o -l output -r -f -a 'table json' -d 'the form'"));
  EXPECT_THAT(fish, HasSubstr("-a look -d 'look at it: don\\'t touch'\n"));
  EXPECT_THAT(fish, HasSubstr("= \\'job end\\'' -f -a '(names)'\n"));
}

}  // namespace completion_test
}  // namespace tidepool
