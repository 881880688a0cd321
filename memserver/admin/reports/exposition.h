// Exposition: writes the text format that Prometheus reads (version 0.0.4): families of samples
// with labels. It does the escaping.
//
// One thread. A family is begun before its samples; without samples it still prints its name, type
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

  // Begins a family. A gauge goes up and down; a counter only grows (until memserver or its subject
  // restarts), and its name ends in "_total".
  Exposition& Gauge(std::string_view name, std::string_view help) {
    return Family(name, "gauge", help);
  }
  Exposition& Counter(std::string_view name, std::string_view help) {
    return Family(name, "counter", help);
  }
  // A histogram counts values by size, since memserver or its subject started.
  Exposition& Histogram(std::string_view name, std::string_view help) {
    return Family(name, "histogram", help);
  }
  // Adds a histogram of the last begun family: `counts[i]` values lie in bucket i alone, below
  // `bounds[i]` and not below the bound before; the last count is of values above all bounds.
  Exposition& Buckets(std::span<const double> bounds, std::span<const uint64_t> counts, double sum,
                      const Label& label);
  // Adds a sample of the last begun family.
  Exposition& Sample(uint64_t value, std::initializer_list<Label> labels = {});
  Exposition& Sample(double value, std::initializer_list<Label> labels = {});

  // Moves the text out.
  std::string Take() { return std::move(text_); }

 private:
  Exposition& Family(std::string_view name, std::string_view type, std::string_view help);
  // `part` is appended to the family's name.
  void Write(std::string_view part, std::string_view value, std::initializer_list<Label> labels);
  std::string text_;
  std::string name_;
};

}  // namespace tidepool::memserver
