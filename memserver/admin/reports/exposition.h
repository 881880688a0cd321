// Exposition: writes the text form that Prometheus reads (version 0.0.4): families of samples with
// labels. Escaping is its job.
//
// One thread. A family is begun before its samples; one without samples still prints its name, type
// and meaning.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace tidepool::memserver {

// A label of a sample.
struct Label {
  std::string_view name;
  std::string value;
};

class Exposition {
 public:
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

  // Begins a family: a gauge goes up and down; a counter only grows (until memserver or what it
  // belongs to begins anew), and its name ends in "_total".
  Exposition& Gauge(std::string_view name, std::string_view help) {
    return Family(name, "gauge", help);
  }
  Exposition& Counter(std::string_view name, std::string_view help) {
    return Family(name, "counter", help);
  }
  // Counts of values by size, since memserver or what it belongs to began.
  Exposition& Histogram(std::string_view name, std::string_view help) {
    return Family(name, "histogram", help);
  }
  // Adds a histogram of the family begun last: `counts` values each in the bucket below one of
  // `bounds` alone, and the last one behind them all.
  Exposition& Buckets(std::span<const double> bounds, std::span<const uint64_t> counts, double sum,
                      const Label& label);
  // Adds a sample of the family begun last.
  Exposition& Sample(uint64_t value, std::initializer_list<Label> labels = {});
  Exposition& Sample(double value, std::initializer_list<Label> labels = {});

  // Gives away the text.
  std::string Take() { return std::move(text_); }

 private:
  Exposition& Family(std::string_view name, std::string_view type, std::string_view help);
  // `part` is added to the family's name.
  void Write(std::string_view part, std::string_view value, std::initializer_list<Label> labels);
  std::string text_;
  std::string name_;
};

}  // namespace tidepool::memserver
