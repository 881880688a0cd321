#include "trainer/launch/begin_anew.h"

#include <linux/close_range.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/error_catalog.h"
#include "base/log.h"

namespace tidepool::trainer {

void BeginAnew(const Environment& changes) {
  close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  Environment environment = ReadEnvironment();
  for (const auto& [name, value] : changes) environment[name] = value;
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  execve("/proc/self/exe", argv.data(), envp.data());
  LogError("the program cannot be started again", {{"why", std::strerror(errno)}});
  EndAtOnce(kExitFailed);
}

void EndAtOnce(int exit_code) {
  _exit(exit_code);
}

}  // namespace tidepool::trainer
