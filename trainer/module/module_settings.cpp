#include "trainer/module/module_settings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include <boost/json.hpp>

#include "trainer/run/job.h"
#include "trainer/run/resuming/run_note.h"

namespace tidepool::trainer {
namespace {

Status BadSetting(std::string_view key, const std::string& wanted) {
  return Status(ErrorId::kUsageError, "\"" + std::string(key) + "\" is not " + wanted)
      .Where("settings of the job");
}

// Reads the keys of one object into registered variables; an unregistered key is an error.
class Keys {
 public:
  explicit Keys(const boost::json::object& object) : object_(object) {}

  Keys& Text(const char* key, std::string* out) {
    const boost::json::value* value = Find(key);
    if (value != nullptr && value->is_string()) *out = std::string(value->get_string());
    return Expect(key, value == nullptr || value->is_string(), "a text");
  }

  Keys& Flag(const char* key, bool* out) {
    const boost::json::value* value = Find(key);
    if (value != nullptr && value->is_bool()) *out = value->get_bool();
    return Expect(key, value == nullptr || value->is_bool(), "true or false");
  }

  template <typename Number>
  Keys& Real(const char* key, Number* out) {
    const boost::json::value* value = Find(key);
    if (value == nullptr) return *this;
    boost::json::error_code error;
    const double number = value->to_number<double>(error);
    const bool fits = !error && std::abs(number) <= std::numeric_limits<Number>::max();
    if (fits) *out = static_cast<Number>(number);
    return Expect(key, fits, "a number");
  }

  template <typename Number>
  Keys& Whole(const char* key, Number min, Number max, Number* out) {
    const boost::json::value* value = Find(key);
    if (value == nullptr) return *this;
    boost::json::error_code error;
    const auto number = value->to_number<uint64_t>(error);
    const bool fits = !error && number >= min && number <= max;
    if (fits) *out = static_cast<Number>(number);
    return Expect(key, fits,
                  "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  }

  // Registers a key that other code reads; null if it is missing.
  const boost::json::value* Find(const char* key) {
    const boost::json::value* value = object_.if_contains(key);
    known_ += value != nullptr ? 1 : 0;
    names_ += names_.empty() ? key : std::string(", ") + key;
    return value;
  }

  Keys& Expect(const char* key, bool good, const std::string& wanted) {
    if (!good && bad_.ok()) bad_ = BadSetting(key, wanted);
    return *this;
  }

  // The first error.
  Status Done() const {
    if (!bad_.ok() || known_ == object_.size()) return bad_;
    return Status(ErrorId::kUsageError, "a setting of the job has an unknown name")
        .Where("settings of the job")
        .Fix("known are: " + names_);
  }

 private:
  const boost::json::object& object_;
  size_t known_ = 0;
  std::string names_;
  Status bad_;
};

Status ReadOptimizer(const boost::json::value* value, ModuleSettings* settings) {
  if (value == nullptr) return {};
  if (!value->is_object()) return BadSetting("optimizer", "an object");
  OptimizerSpec& spec = settings->optimizer;
  std::string rule = NameOf(spec.rule), states = NameOf(spec.states);
  bool nesterov = false;

  Keys keys(value->get_object());
  keys.Text("rule", &rule).Text("states", &states).Flag("nesterov", &nesterov);
  keys.Real("beta1", &spec.beta1).Real("beta2", &spec.beta2).Real("eps", &spec.eps);
  keys.Real("momentum", &spec.momentum).Real("dampening", &spec.dampening);
  keys.Real("lr_decay", &spec.lr_decay);

  const auto known_rule = RuleFromName(rule);
  const auto known_form = StateFormFromName(states);
  keys.Expect("rule", known_rule.has_value(), "adamw, adam, sgd, adagrad or lion");
  keys.Expect("states", known_form.has_value(), "fp32, split, split-bf16 or split-8bit");
  TP_RETURN_IF_ERROR(keys.Done());

  spec.rule = *known_rule;
  spec.states = *known_form;
  spec.nesterov = nesterov ? 1 : 0;
  return {};
}

Status ReadGroups(const boost::json::value* value, ModuleSettings* settings) {
  settings->groups = {{1.0f, 0.0f}};
  if (value == nullptr) return {};
  const std::string wanted = "a list of [factor of the learning rate, weight decay]";
  if (!value->is_array() || value->get_array().empty())
    return BadSetting("parameter_groups", wanted);

  settings->groups.clear();
  for (const boost::json::value& item : value->get_array()) {
    boost::json::error_code error;

    if (!item.is_array() || item.get_array().size() != 2)
      return BadSetting("parameter_groups", wanted);
    const double factor = item.get_array()[0].to_number<double>(error);
    if (error) return BadSetting("parameter_groups", wanted);
    const double decay = item.get_array()[1].to_number<double>(error);
    if (error) return BadSetting("parameter_groups", wanted);

    settings->groups.push_back({static_cast<float>(factor), static_cast<float>(decay)});
    if (!std::isfinite(settings->groups.back().lr_scale) ||
        !std::isfinite(settings->groups.back().weight_decay))
      return BadSetting("parameter_groups", wanted);
  }
  return {};
}

// Checks constraints between optimizer and job.
Status CheckTogether(ModuleSettings* settings) {
  TP_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(settings->run.model.dtype));
  if (dtype == DType::kF16) {
    return Status(ErrorId::kUsageError, "dtype fp16 needs a loss scale that changes with the steps")
        .Where("settings of the job")
        .Fix("choose dtype bf16, whose range is that of fp32");
  }

  const bool by_chance = settings->optimizer.states == StateForm::kSplitBf16 ||
                         settings->optimizer.states == StateForm::kSplit8;
  settings->optimizer.rounding_seed = by_chance ? settings->run.model.seed : 0;
  if (const char* why = WhyBad(settings->optimizer, dtype); why != nullptr) {
    return Status(ErrorId::kUsageError, why)
        .Where("optimizer of the job")
        .Fix("correct the number; states other than fp32 need dtype bf16");
  }
  if (settings->note.size() > kRunNoteBytesMax) return BadSetting("note", "at most 480 bytes");
  return {};
}

}  // namespace

Result<ModuleSettings> ParseModuleSettings(std::string_view json) {
  boost::json::error_code error;
  const boost::json::value parsed = boost::json::parse(json, error);
  if (error || !parsed.is_object()) {
    return Status(ErrorId::kUsageError, "the settings of a job are no JSON object")
        .Where("settings of the job");
  }

  ModuleSettings settings;
  RunOptions& run = settings.run;
  run.memory.rcache = "auto";
  Keys keys(parsed.get_object());
  keys.Text("job", &run.job.name).Text("resume", &run.job.resume).Flag("or_new", &run.job.or_new);
  keys.Text("queue_timeout", &run.job.queue_timeout);
  keys.Text("rejoin_timeout", &run.job.rejoin_timeout);

  keys.Text("socket_dir", &run.server.socket_dir).Text("server_timeout", &run.server.timeout);
  keys.Flag("standalone", &run.server.standalone).Text("pool", &run.server.pool);
  keys.Text("memserver", &run.server.program);

  keys.Text("dtype", &run.model.dtype).Text("rcache", &run.memory.rcache);
  keys.Text("plan", &run.memory.plan);
  constexpr std::array<std::string_view, 5> kPlans{"", "ddp", "zero2", "zero3", "auto"};
  keys.Expect("plan", std::find(kPlans.begin(), kPlans.end(), run.memory.plan) != kPlans.end(),
              "ddp, zero2, zero3 or auto");
  keys.Text("chunk_size", &run.memory.chunk_size).Text("device", &run.device.name);
  keys.Whole<uint64_t>("seed", 0, std::numeric_limits<uint64_t>::max(), &run.model.seed);
  keys.Whole<uint32_t>("micro_batches", 1, client::kMicroBatchesMax, &run.training.micro_batches);
  keys.Flag("quiet", &run.output.quiet);
  keys.Real("max_grad_norm", &run.optimizer.clip).Text("note", &settings.note);

  const boost::json::value* optimizer = keys.Find("optimizer");
  const boost::json::value* groups = keys.Find("parameter_groups");
  TP_RETURN_IF_ERROR(keys.Done());
  TP_RETURN_IF_ERROR(ReadOptimizer(optimizer, &settings));
  TP_RETURN_IF_ERROR(ReadGroups(groups, &settings));
  TP_RETURN_IF_ERROR(CheckTogether(&settings));
  return settings;
}

}  // namespace tidepool::trainer
