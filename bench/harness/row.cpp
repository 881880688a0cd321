#include "bench/harness/row.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/text/json_writer.h"

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
  json.BeginObject()
      .Field("bench", row.bench)
      .Field("row", row.row)
      .Field("value", row.value)
      .Field("unit", row.unit)
      .Key("against");

  row.against.empty() ? json.Null() : json.String(row.against);
  WriteOptional("ratio", row.ratio, &json);
  WriteOptional("target", row.target, &json);
  json.Key("holds");
  row.target.has_value() ? json.Bool(Holds(row)) : json.Null();
  return json.EndObject().Take();
}

std::string ToJson(const Row& row, const Spread& spread) {
  JsonWriter json;
  json.BeginObject()
      .Field("bench", row.bench)
      .Field("row", row.row)
      .Key("spread")
      .BeginArray()
      .Double(spread.low)
      .Double(spread.high);
  return json.EndArray().Field("samples", spread.samples).EndObject().Take();
}

std::string ToJson(const Row& row, const RegimeSpan& regime, uint64_t dropped) {
  JsonWriter json;
  json.BeginObject()
      .Field("bench", row.bench)
      .Field("row", row.row)
      .Key("round_trip_ns")
      .BeginArray();

  return json.Double(regime.low_ns)
      .Double(regime.high_ns)
      .EndArray()
      .Field("dropped", dropped)
      .EndObject()
      .Take();
}

Spread SpreadOf(const std::vector<double>& values) {
  return {Percentile(values, 0.25), Percentile(values, 0.75), values.size()};
}

RowPrinter::RowPrinter(int argc, const char* const* argv, std::string_view help,
                       RoundTrip round_trip) {
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

  regime_.emplace(std::move(round_trip));
}

std::string RowPrinter::Word(std::string_view flag, std::string_view fallback) {
  const auto found = std::find(arguments_.begin(), arguments_.end(), flag);
  if (found == arguments_.end()) return std::string(fallback);
  if (found + 1 == arguments_.end()) Die("error[TP1001]: " + *found + " needs a value");
  std::string value = *(found + 1);
  arguments_.erase(found, found + 2);
  return value;
}

uint64_t RowPrinter::Number(std::string_view flag, uint64_t fallback) {
  if (std::find(arguments_.begin(), arguments_.end(), flag) == arguments_.end()) return fallback;
  const std::string text = Word(flag, "");
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0) {
    Die("error[TP1001]: " + std::string(flag) + " needs a positive number, not '" + text + "'");
  }
  return value;
}

void RowPrinter::NoMoreArguments() const {
  if (!arguments_.empty())
    Die("error[TP1001]: there is no argument '" + arguments_.front() + "' (see --help)");
}

void RowPrinter::Add(const Row& row, const std::optional<Spread>& spread, uint64_t dropped) {
  rows_.push_back(row);
  std::puts(ToJson(row).c_str());
  if (spread.has_value()) std::puts(ToJson(row, *spread).c_str());
  std::puts(ToJson(row, regime_->Look(), dropped).c_str());
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
  return std::all_of(rows_.begin(), rows_.end(), Holds) ? 0 : kExitTargetMissed;
}

}  // namespace tidepool::bench
