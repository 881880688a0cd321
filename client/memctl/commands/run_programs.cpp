#include "client/memctl/commands/run_programs.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/unique_fd.h"

extern char** environ;

namespace tidepool::client {
namespace {

struct Running {
  pid_t pid = -1;
  UniqueFd output, errors;
};

struct Pipe {
  UniqueFd read, write;
};

bool Open(Pipe* pipe) {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return false;
  *pipe = {UniqueFd(ends[0]), UniqueFd(ends[1])};
  return true;
}

Running Start(const std::vector<std::string>& command, ProgramEnd* end) {
  Running running;
  Pipe output, errors;
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  int error = Open(&output) && Open(&errors) ? 0 : errno;
  if (error == 0) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output.write.get(), STDOUT_FILENO);

    posix_spawn_file_actions_adddup2(&actions, errors.write.get(), STDERR_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t pipe_closed;  // memctl ignores it; they should not
    sigemptyset(&pipe_closed);
    sigaddset(&pipe_closed, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &pipe_closed);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    error = posix_spawnp(&running.pid, words.front(), &actions, &attributes, words.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }

  if (error != 0) {
    *end = {.exit_code = 127,
            .output = "",
            .errors = command.front() + ": " + std::strerror(error) + "\n"};
    return Running();
  }
  running.output = std::move(output.read);
  running.errors = std::move(errors.read);
  return running;
}

// False at the end of the stream.
bool ReadSome(const UniqueFd& fd, std::string* text) {
  std::array<char, 65536> buffer;
  const ssize_t bytes = read(fd.get(), buffer.data(), buffer.size());
  if (bytes < 0 && errno == EINTR) return true;
  if (bytes <= 0) return false;
  text->append(buffer.data(), static_cast<size_t>(bytes));
  return true;
}

int ExitCodeOf(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return 1;
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

std::vector<ProgramEnd> RunPrograms(const std::vector<std::vector<std::string>>& commands) {
  std::vector<ProgramEnd> ends(commands.size());
  std::vector<Running> all;
  for (size_t i = 0; i < commands.size(); ++i) all.push_back(Start(commands[i], &ends[i]));

  for (;;) {
    std::vector<pollfd> entries;
    std::vector<std::pair<UniqueFd*, std::string*>> readers;
    for (size_t i = 0; i < all.size(); ++i) {
      const std::pair<UniqueFd*, std::string*> both[] = {{&all[i].output, &ends[i].output},
                                                         {&all[i].errors, &ends[i].errors}};
      for (const auto& reader : both) {
        if (reader.first->get() < 0) continue;
        entries.push_back({reader.first->get(), POLLIN, 0});
        readers.push_back(reader);
      }
    }

    if (entries.empty()) break;
    if (poll(entries.data(), entries.size(), -1) < 0) continue;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents != 0 && !ReadSome(*readers[i].first, readers[i].second))
        *readers[i].first = UniqueFd();
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].pid > 0) ends[i].exit_code = ExitCodeOf(all[i].pid);
  }
  return ends;
}

std::string OwnProgram(const std::string& name) {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string beside = (own.parent_path() / name).string();
  return !error && access(beside.c_str(), X_OK) == 0 ? beside : name;
}

std::string MemserverProgram() {
  return OwnProgram("memserver");
}

}  // namespace tidepool::client
