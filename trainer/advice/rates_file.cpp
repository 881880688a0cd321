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

// A rate above 0; 0 where the key is missing, nothing where it holds anything else.
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

Result<Rates> RatesOfRanks(const std::string& file, const boost::json::array& entries,
                           uint32_t ranks) {
  std::string measured;
  for (const boost::json::value& value : entries) {
    const boost::json::value* number =
        value.is_object() ? value.get_object().if_contains("ranks") : nullptr;
    if (number == nullptr || !number->is_int64())
      return Bad(file, "an entry of rates has no number of \"ranks\"");
    if (number->get_int64() == static_cast<int64_t>(ranks))
      return RatesIn(file, value.get_object());
    measured += (measured.empty() ? "" : ", ") + std::to_string(number->get_int64());
  }

  return Bad(file, "there are no rates for " + std::to_string(ranks) +
                       (ranks == 1 ? " rank" : " ranks") + ", only for " +
                       (measured.empty() ? "none" : measured));
}

}  // namespace

Result<RatesOfFile> ReadRates(const std::string& file, uint32_t ranks) {
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

  RatesOfFile read{.rates = {}, .file = file, .origin = {}};
  TP_ASSIGN_OR_RETURN(read.rates, RatesOfRanks(file, entries->get_array(), ranks));
  const boost::json::value* origin = value.get_object().if_contains("origin");
  if (origin == nullptr || !origin->is_string() || origin->get_string().empty())
    return Bad(file, "\"origin\" does not say what was measured");
  read.origin = std::string(origin->get_string());
  return read;
}

}  // namespace tidepool::trainer
