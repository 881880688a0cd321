// Row: one measured figure in the form that all benchmarks share, and RowPrinter, which prints them.
//
// One thread. Rows are JSON objects, one a line:
//   {"bench", "row", "value", "unit", "against", "ratio", "target", "holds"}
// `ratio` is how much better the row is than what stands in `against`, measured in the same run; `holds` is ratio >= target, and null
// where a row has no target.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool::bench {

struct Row {
  std::string bench, row;
  double value = 0;
  std::string unit;
  std::string against;          // empty: the row stands alone
  std::optional<double> ratio;  // of value to `against`, above 1 when better
  std::optional<double> target;
};

std::string ToJson(const Row& row);

class RowPrinter {
 public:
  // Takes "--json FILE" out of the arguments; with any other word starting in "--help" prints `help` and ends the program.
  RowPrinter(int argc, const char* const* argv, std::string_view help);
  // Prints the row to stdout at once.
  void Add(const Row& row);
  // What was not for the printer.
  const std::vector<std::string>& arguments() const { return arguments_; }
  // Writes the file of --json; returns the program's exit code: 0 when every target holds.
  int Finish();

 private:
  std::string json_file_;
  std::vector<std::string> arguments_;
  std::vector<Row> rows_;
};

// Ends the program with a message and exit code 1.
[[noreturn]] void Die(const std::string& message);

// The middle value, and the value below which `share` of all lie. Both sort a copy; empty input is an error of the caller.
double Median(std::vector<double> values);
double Percentile(std::vector<double> values, double share);

}  // namespace tidepool::bench
