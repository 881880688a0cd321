// Fuzz target: what a user or a client writes as text: the configuration file, environment and
// flags of memserver (attack A17 of the reliability notes), and the request paths of its admin API.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/unique_fd.h"
#include "memserver/admin/request_target.h"
#include "memserver/config/config.h"
#include "memserver/config/flags.h"
#include "tests/fuzz/descriptor_watch.h"
#include "tests/fuzz/fuzz_input.h"

namespace tidepool::memserver {
namespace {

using fuzz::FuzzInput;

// A file that has a path but no place on a disk.
class TextFile {
 public:
  explicit TextFile(const std::string& text) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    TP_CHECK(write(fd_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()),
             "room for a file");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }

 private:
  const UniqueFd fd_;
};

void CheckError(const Status& status) {
  const ErrorId id = status.id();
  TP_CHECK(id == ErrorId::kConfigSyntax || id == ErrorId::kConfigUnknownKey ||
               id == ErrorId::kConfigBadValue || id == ErrorId::kConfigUnreadable,
           "a bad setting has one of the documented errors");
  TP_CHECK(!status.Line().empty(), "an error has a text");
}

// What is printed as the settings that hold, holds when it is read again.
void CheckPrinted(const LoadedConfig& loaded) {
  const auto is_ascii = [](const EffectiveSetting& each) {
    return std::all_of(each.text.begin(), each.text.end(), [](char c) { return c >= 0; });
  };
  // Bytes that are no UTF-8 have no place in TOML.
  if (!std::all_of(loaded.settings.begin(), loaded.settings.end(), is_ascii)) return;
  const TextFile file(PrintEffective(loaded));
  const auto again = LoadConfig({file.path(), {}, {}});
  TP_CHECK(again.ok(), "the printed settings are a configuration file");
  for (size_t i = 0; i < loaded.settings.size(); ++i) {
    TP_CHECK(again.value().settings[i].text == loaded.settings[i].text,
             "the printed settings are those that hold");
  }
}

void Load(const ConfigSources& sources) {
  const auto loaded = LoadConfig(sources);
  if (!loaded.ok()) return CheckError(loaded.status());
  TP_CHECK(loaded.value().settings.size() == Settings().size(), "every setting has a value");
  CheckPrinted(loaded.value());
}

void FuzzFile(const std::string& text) {
  const TextFile file(text);
  Load({file.path(), {}, {}});
}

// Known keys and flags with values of the input: a free text seldom spells one.
std::string ValueOf(FuzzInput* input) {
  constexpr std::array<const char*, 16> kValues{
      "auto", "on",   "off", "true", "50%", "8GiB",  "1 GiB", "0",
      "-1",   "json", "v3",  "10s",  "5m",  "debug", "none",  "99999999999999999999"};
  return input->OneIn(3) ? input->Text(12)
                         : std::string(kValues[input->Choice(kValues.size())]) +
                               input->Text(input->OneIn(4) ? 2 : 0);
}

const Setting& AnySetting(FuzzInput* input) {
  return Settings()[input->Choice(static_cast<uint32_t>(Settings().size()))];
}

void FuzzKnownKeys(FuzzInput* input) {
  std::string text;
  for (uint32_t lines = input->Choice(6); lines > 0; --lines) {
    const bool quoted = !input->OneIn(3);
    const char* quote = quoted ? "\"" : "";
    text += std::string(AnySetting(input).key) + " = " + quote + ValueOf(input) + quote + "\n";
  }
  FuzzFile(text + input->Text(20));
}

void FuzzFlags(FuzzInput* input) {
  std::vector<std::string> words{"memserver"};
  while (input->Left() > 0 && words.size() < 12) {
    switch (input->Choice(6)) {
      case 0: words.push_back(input->Text(12)); break;
      case 1:
        words.emplace_back(
            std::array{"run", "check", "config", "keep", "--version"}[input->Choice(5)]);
        break;
      case 2: words.push_back(std::string(AnySetting(input).flag) + "=" + ValueOf(input)); break;
      case 3:
        words.emplace_back(std::array{"--", "--help", "--defaults", "--parent-pid", "--listen-fd",
                                      "--lease-ms"}[input->Choice(6)]);
        break;
      default: words.emplace_back(AnySetting(input).flag); words.push_back(ValueOf(input));
    }
  }
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  auto flags = ParseFlags(static_cast<int>(argv.size()), argv.data());
  if (!flags.ok()) {
    TP_CHECK(flags.status().id() == ErrorId::kUsageError && !flags.status().Line().empty(),
             "bad flags are a usage error");
    return;
  }
  TP_CHECK(flags->command != Command::kKeep || flags->keep.listen_fd >= 3,
           "a keeper has an inherited socket");
  Load({"", flags->settings, {}});
}

void FuzzEnvironment(FuzzInput* input) {
  ConfigSources sources;
  std::map<std::string, std::string> variables;
  for (uint32_t i = input->Choice(6); i > 0; --i)
    variables[EnvironmentNameOf(AnySetting(input))] = ValueOf(input);
  sources.environment = [&variables](const std::string& name) { return variables[name]; };
  Load(sources);
}

void FuzzTarget(const std::string& text) {
  auto target = ParseTarget(text);
  if (!target.ok())
    return TP_CHECK(target.status().id() == ErrorId::kAdminBadRequest,
                    "a bad path is a bad request");
  constexpr std::array<std::string_view, 2> kKnown{"job", "limit"};
  const Status known = CheckParameters(*target, kKnown);
  const auto limit = NumberParameter(*target, "limit", 100, 1000);
  TP_CHECK(!limit.ok() || limit.value() <= 1000, "a number is within its limit");
  TP_CHECK(target->parameters.size() <= text.size() && target->path.size() <= text.size(),
           "nothing comes from nowhere");
  if (target->parameters.empty()) TP_CHECK(known.ok(), "nothing is unknown where nothing is given");
}

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void RunOne(FuzzInput* input) {
  switch (input->Choice(5)) {
    case 0: return FuzzFile(TextOf(input->Rest()));
    case 1: return FuzzKnownKeys(input);
    case 2: return FuzzFlags(input);
    case 3: return FuzzEnvironment(input);
    default: return FuzzTarget(TextOf(input->Rest()));
  }
}

}  // namespace
}  // namespace tidepool::memserver

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::fuzz::FuzzInput input(data, size);
  const tidepool::fuzz::DescriptorWatch watch;
  tidepool::memserver::RunOne(&input);
  watch.CheckSame();
  return 0;
}
