// Row: one measured value in the form shared by all benchmarks, and RowPrinter, which prints rows.
//
// One thread. Rows are JSON objects, one per line:
//  {"bench", "row", "value", "unit", "against", "ratio", "target", "holds"}
// `ratio` is how much better the row is than the measurement named in `against`, from the same run;
// `holds` is ratio >= target, and null without a target. A row measured several times is followed
// by its spread, on its own line:
//  {"bench", "row", "spread": [low, high], "samples"}
// the quartiles of the ratio (or of the value, without a ratio) over the rounds. Then follows the
// state of the machine (bench/harness/regime.h):
//  {"bench", "row", "round_trip_ns": [low, high], "dropped"}
// the round trip between two CPUs before and after the measurement, and the number of rounds
// dropped because it changed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/harness/die.h"
#include "bench/harness/median.h"
#include "bench/harness/regime.h"

namespace tidepool::bench {

struct Row {
  std::string bench, row;
  double value = 0;
  std::string unit;
  std::string against;          // empty: no comparison
  std::optional<double> ratio;  // of value to `against`, above 1 when better
  std::optional<double> target;
};

// Quartiles over a run's rounds.
struct Spread {
  double low = 0, high = 0;
  uint64_t samples = 0;
};
// Quartiles of `values`.
Spread SpreadOf(const std::vector<double>& values);

// The three lines of a row, as above.
std::string ToJson(const Row& row);
std::string ToJson(const Row& row, const Spread& spread);
std::string ToJson(const Row& row, const RegimeSpan& regime, uint64_t dropped);

// The exit code of a completed benchmark with a row whose target does not hold.
inline constexpr int kExitTargetMissed = 3;

class RowPrinter {
 public:
  // Removes "--json FILE" from the arguments; with an argument that starts with "--help", prints
  // `help` and ends the program.
  RowPrinter(int argc, const char* const* argv, std::string_view help,
             RoundTrip round_trip = MeasureRoundTripNs);
  // Prints the row to stdout at once, followed by the spread and the regime since the previous row.
  void Add(const Row& row, const std::optional<Spread>& spread = std::nullopt,
           uint64_t dropped = 0);
  // The remaining arguments.
  const std::vector<std::string>& arguments() const { return arguments_; }
  // Removes "FLAG NUMBER" from the arguments; `fallback` if the flag is missing. Ends the program
  // if it is not a positive number.
  uint64_t Number(std::string_view flag, uint64_t fallback);
  // The same for any text.
  std::string Word(std::string_view flag, std::string_view fallback);
  // Ends the program if arguments remain.
  void NoMoreArguments() const;
  // Writes the file of --json; returns the program's exit code: 0 if every target holds, else
  // kExitTargetMissed.
  int Finish();

 private:
  std::string json_file_;
  std::vector<std::string> arguments_;
  std::vector<Row> rows_;
  std::optional<RegimeWatch> regime_;
};

}  // namespace tidepool::bench
