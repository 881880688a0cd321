#include "trainer/advice/rates_file.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include <boost/json.hpp>

namespace tidepool::trainer {
namespace {

Status Bad(const std::string& file, const std::string& why) {
  return Status(ErrorId::kConfigBadValue, file + ": " + why)
      .Where("--rates " + file)
      .Fix("docs/planning.md (\"What --rcache auto does\") has the form of the file");
}

// A rate above 0; 0 if the key is missing; nullopt for any other value.
std::optional<double> RateIn(const boost::json::object& entry, const char* key) {
  const boost::json::value* value = entry.if_contains(key);
  if (value == nullptr) return 0;
  boost::json::error_code error;
  const double rate = value->is_number() ? value->to_number<double>(error) : 0;
  if (error || !std::isfinite(rate) || rate <= 0) return std::nullopt;
  return rate;
}

Result<Rates> RatesIn(const std::string& file, const boost::json::object& entry) {
  Rates rates;
  const std::pair<const char*, double*> keys[] = {
      {"to_device_gb_per_s", &rates.to_device},
      {"from_device_gb_per_s", &rates.from_device},
      {"host_update_g_elements_per_s", &rates.host_update},
      {"device_update_g_elements_per_s", &rates.device_update}};

  for (const auto& [key, place] : keys) {
    const std::optional<double> rate = RateIn(entry, key);
    if (!rate) return Bad(file, std::string(key) + " must be a number above 0");
    *place = *rate;
  }

  if (rates.to_device > 0 && rates.from_device > 0) return rates;
  return Bad(file, "to_device_gb_per_s and from_device_gb_per_s are missing in an entry");
}

Result<RatesTable::Row> RowOf(const std::string& file, const boost::json::value& entry) {
  const boost::json::value* number =
      entry.is_object() ? entry.get_object().if_contains("ranks") : nullptr;
  if (number == nullptr || !number->is_int64() || number->get_int64() < 1 ||
      number->get_int64() > INT32_MAX)
    return Bad(file, "an entry of rates has no number of \"ranks\"");
  RatesTable::Row row{.ranks = static_cast<uint32_t>(number->get_int64())};
  TP_ASSIGN_OR_RETURN(row.rates, RatesIn(file, entry.get_object()));
  return row;
}

std::string TextOf(const boost::json::object& object, const char* key) {
  const boost::json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

// Why this table's rates do not apply here; empty if they do.
std::string WhyNotHere(const RatesTable& table, const RatesWanted& wanted) {
  if (!table.machine.empty() && table.machine != wanted.machine)
    return "they are of another machine: " + table.machine + "; this is " + wanted.machine;
  if (!table.device.empty() && table.device != wanted.device)
    return "they were measured with --device " + table.device + ", not " + wanted.device;
  return {};
}

}  // namespace

Result<RatesTable> ReadRatesTable(const std::string& file) {
  std::ifstream in(file);
  std::stringstream text;
  // Inserting the buffer of an empty file fails, so do not try.
  if (in.is_open() && in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (!in.is_open() || in.bad() || text.fail()) {
    return Status(ErrorId::kConfigUnreadable, "cannot read " + file + ": " + std::strerror(errno))
        .Where("--rates " + file)
        .Fix("give a file of measured rates, or leave --rates out: the rCache is chosen without");
  }

  boost::json::error_code error;
  const boost::json::value value = boost::json::parse(text.str(), error);
  if (error || !value.is_object()) return Bad(file, "it is not a JSON object");
  const boost::json::value* entries = value.get_object().if_contains("rates");
  if (entries == nullptr || !entries->is_array()) return Bad(file, "there is no array \"rates\"");

  RatesTable table;
  table.file = file;
  table.origin = TextOf(value.get_object(), "origin");
  for (const boost::json::value& entry : entries->get_array()) {
    TP_ASSIGN_OR_RETURN(const RatesTable::Row row, RowOf(file, entry));
    table.rows.push_back(row);
  }

  if (table.origin.empty()) return Bad(file, "\"origin\" does not say what was measured");
  table.machine = TextOf(value.get_object(), "machine");
  table.device = TextOf(value.get_object(), "device");
  return table;
}

Result<RatesOfFile> RatesTable::For(uint32_t ranks) const {
  std::string measured;
  for (const Row& row : rows) {
    if (row.ranks == ranks) return RatesOfFile{.rates = row.rates, .file = file, .origin = origin};
    measured += (measured.empty() ? "" : ", ") + std::to_string(row.ranks);
  }
  return Bad(file, "there are no rates for " + std::to_string(ranks) +
                       (ranks == 1 ? " rank" : " ranks") + ", only for " +
                       (measured.empty() ? "none" : measured));
}

Result<RatesOfFile> ReadRates(const std::string& file, uint32_t ranks) {
  TP_ASSIGN_OR_RETURN(const RatesTable table, ReadRatesTable(file));
  return table.For(ranks);
}

Result<RatesOfFile> ReadRatesHere(const std::string& file, const RatesWanted& wanted) {
  TP_ASSIGN_OR_RETURN(const RatesTable table, ReadRatesTable(file));
  const std::string why_not = WhyNotHere(table, wanted);
  if (why_not.empty()) return table.For(wanted.ranks);
  return Status(ErrorId::kConfigBadValue, "the rates of " + file + " are of no use here")
      .Where("--rates " + file)
      .Why(why_not)
      .Fix(
          "leave --rates out: memserver measures this machine (trainer rates); or remove "
          "\"machine\" and \"device\" from the file, if you mean to plan for that machine");
}

FoundRates FindRates(const std::string& file, const RatesWanted& wanted) {
  Result<RatesTable> table = ReadRatesTable(file);
  if (table.status().id() == ErrorId::kConfigUnreadable) {
    return {std::nullopt,
            "no rates were given (--rates FILE), and memserver has measured none at " + file};
  }
  if (!table.ok())
    return {std::nullopt, "memserver's rates are not used: " + table.status().what()};

  const std::string why_not = WhyNotHere(table.value(), wanted);
  if (!why_not.empty()) return {std::nullopt, "memserver's rates are not used: " + why_not};
  Result<RatesOfFile> rates = table.value().For(wanted.ranks);
  if (!rates.ok())
    return {std::nullopt, "memserver's rates are not used: " + rates.status().what()};
  return {std::move(rates).value(), {}};
}

}  // namespace tidepool::trainer
