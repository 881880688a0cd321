// The allowed range of every numeric flag, with the reason: one table for run, estimate, sample and
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
  long double least, most;   // allowed range, inclusive,
  bool above, below;         // or exclusive at this bound
  const char* why;           // the reason for the range
  const char* command = "";  // the command that has the flag; empty: all
};

// The whole table.
std::span<const NumberFlag> NumberFlags();
// Null if the flag is not in the table.
const NumberFlag* FindNumberFlag(std::string_view command, std::string_view name);

// Returns "" if `text` is a number in the flag's range, and normalises it (removes signs and
// leading zeros that a reader could take for another base); else the error, with the value, the
// range and the reason.
std::string CheckNumber(const NumberFlag& flag, std::string* text);

}  // namespace tidepool::trainer
