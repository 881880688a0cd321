#include "memserver/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

namespace tidepool::memserver {

UniqueFd TakeSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding a file-size limit becomes an error of the call
  return UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

TakenSignal TakeSignal(int signals) {
  signalfd_siginfo info{};
  if (read(signals, &info, sizeof info) != sizeof info) return {};
  return {static_cast<int>(info.ssi_signo),
          {.uid = info.ssi_uid,
           .pid = static_cast<int32_t>(info.ssi_pid),
           .level = AdminLevel::kAdmin}};
}

}  // namespace tidepool::memserver
