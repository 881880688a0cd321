// The range of every flag that is a number, and why: one table for run, estimate, sample and
// launch.
//
// Any thread; constants and pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tidepool::trainer {

// A flag and its range.
struct NumberFlag {
  const char* name;          // "--steps"
  bool whole;                // a whole number, not a 32-bit float
  long double least, most;   // allowed, but
  bool above, below;         // for these bounds themselves
  const char* why;           // nothing else is
  const char* command = "";  // that the flag is of; empty: all that have it
};

// The whole table.
std::span<const NumberFlag> NumberFlags();
// Null where there is none.
const NumberFlag* FindNumberFlag(std::string_view command, std::string_view name);

// Empty when `text` is a number in the flag's range, which then is written without signs and zeros
// in front that a reader could take for another base; else what is wrong, with the value, the range
// and why.
std::string CheckNumber(const NumberFlag& flag, std::string* text);

}  // namespace tidepool::trainer
