#include "trainer/plan/pipeline/partition_lp.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <functional>

namespace tidepool::trainer {
namespace {

constexpr double kNsPerMs = 1e6;
constexpr size_t kColumns = 200;  // solvers read lines of a few hundred characters

// The terms of one side of a constraint, or of an objective.
class Sum {
 public:
  Sum& Add(double factor, const std::string& name) {
    if (factor == 0) return *this;
    std::array<char, 40> number{};
    std::snprintf(number.data(), number.size(), "%.15g", std::fabs(factor));

    const std::string term = std::string(factor < 0 ? " - " : " + ") + number.data() + " " + name;
    if (columns_ + term.size() > kColumns) {
      text_ += "\n ";
      columns_ = 0;
    }
    text_ += term;
    columns_ += term.size();
    return *this;
  }

  Sum& Add(double factor, const Sum& other) {
    for (const auto& [each, name] : other.terms_) Add(factor * each, name);
    return *this;
  }

  // Kept as terms, so that it can be part of other sums.
  Sum& Keep(double factor, const std::string& name) {
    if (factor != 0) terms_.emplace_back(factor, name);
    return *this;
  }
  Sum& Keep(double factor, const Sum& other) {
    for (const auto& [each, name] : other.terms_) Keep(factor * each, name);
    return *this;
  }

  const std::string& text() const { return text_; }

 private:
  std::vector<std::pair<double, std::string>> terms_;
  std::string text_;
  size_t columns_ = 0;
};

std::string Name(const char* of, size_t a) {
  return std::string(of) + "_" + std::to_string(a);
}
std::string Name(const char* of, size_t a, size_t b) {
  return Name(of, a) + "_" + std::to_string(b);
}

// Numbers layers, stages and micro-batches from 1, as the paper does.
class ProgramText {
 public:
  explicit ProgramText(const StageTable& table) : table_(table), task_(table.task()) {}

  std::string Take() {
    text_ = "\\ Stages of Mobius' pipeline (ASPLOS 2023, section 3.2): " + std::to_string(L()) +
            " layers, " + std::to_string(N()) + " GPUs, " + std::to_string(M()) +
            " micro-batches. Times in milliseconds.\nMinimize\n step:";
    Sum step;
    step.Add(1, Name("tb", 1, M())).Add(1, Backward(1));
    text_ += step.text() + "\nSubject To\n";

    AddRuns();
    AddMemory();
    for (size_t j = 1; j <= L(); ++j) {
      AddForward(j);
      AddBackward(j);
    }

    AddVariables();
    return std::move(text_);
  }

 private:
  size_t L() const { return table_.layers(); }
  size_t N() const { return task_.gpus; }
  size_t M() const { return task_.micro_batches; }
  const PipelineLayer& Layer(size_t i) const { return task_.layers[i - 1]; }
  double CopyMs(uint64_t bytes) const {
    return static_cast<double>(CopyNs(bytes, task_.bytes_per_ns)) / kNsPerMs;
  }
  double SizeMs(uint64_t bytes) const {
    return static_cast<double>(bytes) / task_.bytes_per_ns / kNsPerMs;
  }

  // Sums over the layers of stage j.
  Sum Over(size_t j, const std::function<double(const PipelineLayer&)>& of) const {
    Sum sum;
    for (size_t i = 1; i <= L(); ++i) sum.Keep(of(Layer(i)), Name("B", i, j));
    return sum;
  }
  Sum Forward(size_t j) const {
    return Over(j, [](const auto& l) { return static_cast<double>(l.forward_ns) / kNsPerMs; });
  }
  Sum Backward(size_t j) const {
    return Over(j, [](const auto& l) { return static_cast<double>(l.backward_ns) / kNsPerMs; });
  }
  Sum Weights(size_t j) const {
    return Over(j, [&](const auto& l) { return CopyMs(l.weight_bytes); });
  }

  // The input of stage j; none for the first stage and past the last layer.
  Sum Input(size_t j, const std::function<double(uint64_t)>& of) const {
    Sum sum;
    if (j == 1 || j > L()) return sum;
    for (size_t i = 2; i <= L(); ++i) sum.Keep(of(Layer(i - 1).output_bytes), Name("y", i, j));
    return sum;
  }
  Sum InputCopy(size_t j) const {
    return Input(j, [&](uint64_t bytes) { return CopyMs(bytes); });
  }
  Sum InputSize(size_t j) const {
    return Input(j, [&](uint64_t bytes) { return SizeMs(bytes); });
  }

  // S_j / B.
  Sum Needed(size_t j, bool backward) const {
    Sum sum = Over(j, [&](const auto& l) {
      return SizeMs(l.weight_bytes + (backward ? l.gradient_bytes + l.kept_bytes : 0));
    });
    sum.Keep(backward ? 4 : 2, InputSize(j)).Keep(2, InputSize(j + 1));
    return sum.Keep(1, Name(backward ? "xb" : "xf", j));
  }

  void Row(const std::string& name, const Sum& sum, const char* relation, double right) {
    std::array<char, 40> number{};
    std::snprintf(number.data(), number.size(), "%.15g", right);
    text_ += " " + name + ":" + sum.text() + " " + relation + " " + number.data() + "\n";
  }

  // Each layer is in one stage; the next layer is in the same stage or the next one.
  void AddRuns() {
    Row("first", Sum().Add(1, Name("B", 1, 1)), "=", 1);

    for (size_t i = 1; i <= L(); ++i) {
      Sum one, next;
      for (size_t j = 1; j <= L(); ++j) {
        one.Add(1, Name("B", i, j));
        if (i < L())
          next.Add(static_cast<double>(j), Name("B", i + 1, j))
              .Add(-static_cast<double>(j), Name("B", i, j));
      }

      Row(Name("one", i), one, "=", 1);
      if (i == L()) continue;
      Row(Name("behind", i), next, ">=", 0);
      Row(Name("near", i), next, "<=", 1);
    }

    for (size_t i = 2; i <= L(); ++i) {
      for (size_t j = 2; j <= L(); ++j) {
        Sum begins;
        begins.Add(1, Name("y", i, j)).Add(-1, Name("B", i - 1, j - 1));
        if (j > 2) begins.Add(-1, Name("y", i, j - 1));
        Row(Name("begins", i, j), begins.Add(1, Name("B", i, j - 1)), "=", 0);
      }
    }
  }

  // (4) to (6).
  void AddMemory() {
    const double all = SizeMs(task_.gpu_bytes);
    for (size_t j = 1; j <= L(); ++j) {
      for (size_t i = 1; i <= L(); ++i) {
        AddWork("xf", i, j, Layer(i).forward_work_bytes);
        AddWork("xb", i, j, Layer(i).backward_work_bytes);
      }

      Row(Name("c4f", j), Sum().Add(1, Needed(j, false)), "<=", all);
      Row(Name("c4b", j), Sum().Add(1, Needed(j, true)), "<=", all);
      if (j > N()) AddPrefetch(j, j - N(), false);
      if (j + N() <= L()) AddPrefetch(j, j + N(), true);
    }
  }

  void AddWork(const char* of, size_t i, size_t j, uint64_t bytes) {
    if (bytes == 0) return;
    Row(Name(of, i, j), Sum().Add(1, Name(of, j)).Add(-SizeMs(bytes), Name("B", i, j)), ">=", 0);
  }

  // The part of stage j that arrives while stage `other` computes on its GPU; (7) is substituted.
  void AddPrefetch(size_t j, size_t other, bool backward) {
    const std::string part = Name(backward ? "pb" : "pf", j);
    const char* time = backward ? "tb" : "tf";
    Row(Name(backward ? "c5b" : "c5f", j), Sum().Add(1, part).Add(1, Needed(other, backward)),
        "<=", SizeMs(task_.gpu_bytes));

    Sum during;
    during.Add(1, part).Add(-1, backward ? Backward(other) : Forward(other));
    if (M() > 1) during.Add(-1, Name(time, other, M())).Add(1, Name(time, other, 1));
    Row(Name(backward ? "c6b" : "c6f", j), during, "<=", 0);
    Row(Name(backward ? "c6wb" : "c6wf", j), Sum().Add(1, part).Add(-1, Upload(j, backward)),
        "<=", 0);
  }

  Sum Upload(size_t j, bool backward) const {
    Sum upload = Weights(j);
    return backward ? upload.Keep(1, InputCopy(j)) : upload;
  }

  // (8) to (10).
  void AddForward(size_t j) {
    for (size_t m = 1; m <= M(); ++m) {
      if (j > 1) {
        Sum input;
        input.Add(1, Name("tf", j, m)).Add(-1, Name("tf", j - 1, m)).Add(-1, Forward(j - 1));
        Row(Name("c8f", j, m), input.Add(-1, InputCopy(j)), ">=", 0);
      }
      AddOrder("c10f", "tf", Forward(j), j, m);
    }

    Sum there;
    there.Add(1, Name("tf", j, 1)).Add(-1, Weights(j));
    if (j > N()) {
      there.Add(1, Name("pf", j)).Add(-1, Name("tf", j - N(), M())).Add(-1, Forward(j - N()));
    }
    Row(Name("c9f", j), there, ">=", 0);
  }

  void AddOrder(const char* row, const char* time, const Sum& duration, size_t j, size_t m) {
    if (m == 1) return;
    Sum order;
    order.Add(1, Name(time, j, m)).Add(-1, Name(time, j, m - 1)).Add(-1, duration);
    Row(Name(row, j, m), order, ">=", 0);
  }

  // (8) to (11).
  void AddBackward(size_t j) {
    for (size_t m = 1; m <= M(); ++m) {
      if (j < L()) {
        Sum input;
        input.Add(1, Name("tb", j, m)).Add(-1, Name("tb", j + 1, m)).Add(-1, Backward(j + 1));
        Row(Name("c8b", j, m), input.Add(-1, InputCopy(j + 1)), ">=", 0);
      }
      AddOrder("c10b", "tb", Backward(j), j, m);
    }

    if (j == L()) {
      Sum turn;
      turn.Add(1, Name("tb", j, 1)).Add(-1, Name("tf", j, M())).Add(-1, Forward(j));
      Row("c11", turn, ">=", 0);
    }
    if (j + N() > L()) return;

    Sum there;
    there.Add(1, Name("tb", j, 1)).Add(-1, Upload(j, true)).Add(1, Name("pb", j));
    there.Add(-1, Name("tb", j + N(), M())).Add(-1, Backward(j + N()));
    for (size_t i = 2; i <= L(); ++i) there.Add(-LongerThanAny(), Name("y", i, j + N()));
    Row(Name("c9b", j), there, ">=", -LongerThanAny());
  }

  // The time of everything done sequentially: no optimal pipeline is slower.
  double LongerThanAny() const {
    double sum = 1;
    for (const PipelineLayer& layer : task_.layers) {
      sum += static_cast<double>(layer.forward_ns + layer.backward_ns) / kNsPerMs *
             static_cast<double>(M());
      sum += 2 * CopyMs(layer.weight_bytes) +
             CopyMs(layer.output_bytes) * static_cast<double>(2 * M() + 2);
    }
    return sum;
  }

  // In this format, unlisted variables are at least 0.
  void AddVariables() {
    text_ += "Bounds\n";
    for (size_t i = 2; i <= L(); ++i) {
      for (size_t j = 2; j <= L(); ++j) text_ += " " + Name("y", i, j) + " <= 1\n";
    }
    text_ += "Binaries\n";
    for (size_t i = 1; i <= L(); ++i) {
      for (size_t j = 1; j <= L(); ++j) text_ += " " + Name("B", i, j) + "\n";
    }
    text_ += "End\n";
  }

  const StageTable& table_;
  const PipelineTask& task_;
  std::string text_;
};

}  // namespace

std::string PartitionProgram(const StageTable& table) {
  return ProgramText(table).Take();
}

}  // namespace tidepool::trainer
