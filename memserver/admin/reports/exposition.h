// Exposition: writes the text form that Prometheus reads (version 0.0.4): families of samples with
// labels. Escaping is its job.
//
// One thread. A family is begun before its samples; one without samples still prints its name, type
// and meaning.
#pragma once

#include <cstdint>
#include <initializer_list>
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
  // Adds a sample of the family begun last.
  Exposition& Sample(uint64_t value, std::initializer_list<Label> labels = {});
  Exposition& Sample(double value, std::initializer_list<Label> labels = {});

  // Gives away the text.
  std::string Take() { return std::move(text_); }

 private:
  Exposition& Family(std::string_view name, std::string_view type, std::string_view help);
  void Write(std::string_view value, std::initializer_list<Label> labels);
  std::string text_;
  std::string name_;
};

}  // namespace tidepool::memserver
