// Row: one measured figure in the form that all benchmarks share, and RowPrinter, which prints
// them.
//
// One thread. Rows are JSON objects, one a line:
//   {"bench", "row", "value", "unit", "against", "ratio", "target", "holds"}
// `ratio` is how much better the row is than what stands in `against`, measured in the same run;
// `holds` is ratio >= target, and null where a row has no target. A row that was measured several
// times is followed by its spread, a line of its own:
//   {"bench", "row", "spread": [low, high], "samples"}
// the quartiles of the ratio (of the value, where there is no ratio) over the rounds. Then comes
// what the machine was like (bench/harness/regime.h):
//   {"bench", "row", "round_trip_ns": [low, high], "dropped"}
// the round trip between two CPUs before and behind the measurement, and how many rounds do not
// count as it changed meanwhile.
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
  std::string against;          // empty: the row stands alone
  std::optional<double> ratio;  // of value to `against`, above 1 when better
  std::optional<double> target;
};

// Quartiles over the rounds of a run.
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

// The exit code of a benchmark that ran to its end, but has a row whose target does not hold.
inline constexpr int kExitTargetMissed = 3;

class RowPrinter {
 public:
  // Takes "--json FILE" out of the arguments; with any other word starting in "--help" prints
  // `help` and ends the program.
  RowPrinter(int argc, const char* const* argv, std::string_view help,
             RoundTrip round_trip = MeasureRoundTripNs);
  // Prints the row to stdout at once, behind it the spread, and the regime since the row before.
  void Add(const Row& row, const std::optional<Spread>& spread = std::nullopt,
           uint64_t dropped = 0);
  // The arguments that the printer did not take.
  const std::vector<std::string>& arguments() const { return arguments_; }
  // Takes "FLAG NUMBER" out of the arguments; `fallback` where the flag is missing. Ends the
  // program when it is no positive number.
  uint64_t Number(std::string_view flag, uint64_t fallback);
  // The same for any word.
  std::string Word(std::string_view flag, std::string_view fallback);
  // Ends the program when arguments are left that nobody took.
  void NoMoreArguments() const;
  // Writes the file of --json; returns the program's exit code: 0 when every target holds, else
  // kExitTargetMissed.
  int Finish();

 private:
  std::string json_file_;
  std::vector<std::string> arguments_;
  std::vector<Row> rows_;
  std::optional<RegimeWatch> regime_;
};

}  // namespace tidepool::bench
