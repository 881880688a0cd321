#include "base/picture/scale.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace tidepool {
namespace {

// The scaling and suffix of a unit's labels.
struct Form {
  double size = 1;  // the value that is written as 1
  std::string name;
};

Form FormOf(double largest, AxisUnit unit) {
  const auto among = [largest](double base, std::initializer_list<const char*> names) {
    Form form{1 / base, ""};
    for (const char* name : names) {
      form = {form.size * base, name};
      if (largest < form.size * base) break;
    }
    return form;
  };

  if (unit == AxisUnit::kShare) return {0.01, " %"};
  if (unit == AxisUnit::kPlain) return {1, ""};
  if (unit == AxisUnit::kCount) {
    return largest < 1e4   ? Form{1, ""}
           : largest < 1e6 ? Form{1e3, " k"}
           : largest < 1e9 ? Form{1e6, " M"}
                           : Form{1e9, " G"};
  }
  if (unit == AxisUnit::kBytes) return among(1024, {" B", " KiB", " MiB", " GiB", " TiB"});

  return largest < 1e-3   ? Form{1e-6, " us"}
         : largest < 1    ? Form{1e-3, " ms"}
         : largest < 300  ? Form{1, " s"}
         : largest < 7200 ? Form{60, " min"}
                          : Form{3600, " h"};
}

double StepOf(double span, int count) {
  const double raw = span / count, power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

Scale Made(double least, double most, const Form& form, double step, const std::string& behind) {
  const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  Scale scale{least * form.size, most * form.size, {}};
  for (double i = std::ceil(least / step - 1e-9); i * step <= most + step * 1e-9; ++i) {
    const double value = i == 0 ? 0 : i * step;
    scale.ticks.push_back({value * form.size, FormatFixed(value, digits) + form.name + behind});
  }
  return scale;
}

}  // namespace

double Scale::ShareOf(double value) const {
  return std::clamp((value - least) / (most - least), 0.0, 1.0);
}

Scale RoundScale(double least, double most, AxisUnit unit, const std::string& behind, int count) {
  const Form form = FormOf(std::max(std::abs(least), std::abs(most)), unit);
  double low = least / form.size, high = most / form.size;
  if (!(high - low > 1e-12 * std::max(std::abs(high), 1e-12))) high = low + std::max(low / 10, 1.0);
  const double step = StepOf(high - low, count);
  low = std::floor(low / step + 1e-9) * step;
  high = std::ceil(high / step - 1e-9) * step;
  return Made(low, high, form, step, behind);
}

Scale ExactScale(double least, double most, AxisUnit unit, int count) {
  const Form form = FormOf(std::max(std::abs(least), std::abs(most)), unit);
  const double low = least / form.size, high = std::max(most, least + 1e-9) / form.size;
  return Made(low, high, form, StepOf(high - low, count), "");
}

}  // namespace tidepool
