#include "bench/row.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/check.h"
#include "base/json_writer.h"

namespace tidepool::bench {
namespace {

bool Holds(const Row& row) {
  return !row.target.has_value() || (row.ratio.has_value() && *row.ratio >= *row.target);
}

void WriteOptional(const char* key, const std::optional<double>& value, JsonWriter* json) {
  json->Key(key);
  value.has_value() ? json->Double(*value) : json->Null();
}

}  // namespace

std::string ToJson(const Row& row) {
  JsonWriter json;
  json.BeginObject().Field("bench", row.bench).Field("row", row.row).Field("value", row.value).Field("unit", row.unit).Key("against");
  row.against.empty() ? json.Null() : json.String(row.against);
  WriteOptional("ratio", row.ratio, &json);
  WriteOptional("target", row.target, &json);
  json.Key("holds");
  row.target.has_value() ? json.Bool(Holds(row)) : json.Null();
  return json.EndObject().Take();
}

RowPrinter::RowPrinter(int argc, const char* const* argv, std::string_view help) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h") {
      std::fwrite(help.data(), 1, help.size(), stdout);
      std::exit(0);
    }
    if (word != "--json") {
      arguments_.push_back(word);
    } else if (i + 1 < argc) {
      json_file_ = argv[++i];
    } else {
      std::fputs("error[TP1001]: --json needs a file\n", stderr);
      std::exit(2);
    }
  }
}

void RowPrinter::Add(const Row& row) {
  rows_.push_back(row);
  std::puts(ToJson(row).c_str());
  std::fflush(stdout);
}

int RowPrinter::Finish() {
  if (!json_file_.empty()) {
    std::ofstream file(json_file_);
    file << "[";
    for (size_t i = 0; i < rows_.size(); ++i) file << (i == 0 ? "\n" : ",\n") << ToJson(rows_[i]);
    file << "\n]\n";
    if (!file.flush()) Die("cannot write " + json_file_);
  }
  return std::all_of(rows_.begin(), rows_.end(), Holds) ? 0 : 1;
}

void Die(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

double Median(std::vector<double> values) {
  return Percentile(std::move(values), 0.5);
}

double Percentile(std::vector<double> values, double share) {
  TP_CHECK(!values.empty(), "a percentile of nothing");
  std::sort(values.begin(), values.end());
  const double position = share * static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(std::lround(position))];
}

}  // namespace tidepool::bench
