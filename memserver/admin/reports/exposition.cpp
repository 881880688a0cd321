#include "memserver/admin/reports/exposition.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace tidepool::memserver {
namespace {

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

std::string TextOf(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

}  // namespace

Exposition& Exposition::Family(std::string_view name, std::string_view type,
                               std::string_view help) {
  TP_CHECK((type == "counter") == name.ends_with("_total"),
           "names of counters, and no others, end in _total");
  name_ = name;
  text_ += "# HELP " + name_ + " " + std::string(help) + "\n# TYPE " + name_ + " " +
           std::string(type) + "\n";
  return *this;
}

Exposition& Exposition::Sample(uint64_t value, std::initializer_list<Label> labels) {
  Write("", std::to_string(value), labels);
  return *this;
}

Exposition& Exposition::Sample(double value, std::initializer_list<Label> labels) {
  Write("", TextOf(value), labels);
  return *this;
}

Exposition& Exposition::Buckets(std::span<const double> bounds, std::span<const uint64_t> counts,
                                double sum, const Label& label) {
  uint64_t below = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    below += counts[i];
    const std::string bound = i < bounds.size() ? TextOf(bounds[i]) : "+Inf";
    Write("_bucket", std::to_string(below), {label, {"le", bound}});
  }
  Write("_sum", TextOf(sum), {label});
  Write("_count", std::to_string(below), {label});
  return *this;
}

void Exposition::Write(std::string_view part, std::string_view value,
                       std::initializer_list<Label> labels) {
  text_ += name_;
  text_ += part;

  char before = '{';
  for (const Label& label : labels) {
    text_ += before + std::string(label.name) + "=\"" + Escaped(label.value) + "\"";
    before = ',';
  }

  if (labels.size() > 0) text_ += '}';
  text_ += ' ';
  text_ += value;
  text_ += '\n';
}

}  // namespace tidepool::memserver
