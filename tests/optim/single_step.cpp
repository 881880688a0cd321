#include "tests/optim/single_step.h"

#include <csignal>
#include <ucontext.h>
#include <x86intrin.h>

#include "base/check.h"

namespace tidepool::optim {
namespace {

constexpr unsigned long long kTrapFlag = 0x100;

struct Session {
  StepFunction observer;
  void* context;
  volatile bool stepping;
  volatile uint64_t instructions;
};
Session session;

void OnTrap(int /*signal*/, siginfo_t* /*cause*/, void* machine) {
  if (session.stepping) {
    session.instructions = session.instructions + 1;
    session.observer(session.context);
  } else {
    static_cast<ucontext_t*>(machine)->uc_mcontext.gregs[REG_EFL] &=
        ~static_cast<greg_t>(kTrapFlag);
  }
}

}  // namespace

uint64_t SingleStep(StepFunction function, StepFunction observer, void* context) {
  session.observer = observer;
  session.context = context;
  session.instructions = 0;
  struct sigaction action = {};
  struct sigaction previous = {};
  action.sa_sigaction = OnTrap;
  action.sa_flags = SA_SIGINFO;
  TP_CHECK(sigaction(SIGTRAP, &action, &previous) == 0, "cannot handle SIGTRAP");
  session.stepping = true;
  __writeeflags(__readeflags() | kTrapFlag);
  function(context);
  session.stepping = false;
  // The next trap clears the flag; reading it back makes sure that there was one.
  while ((__readeflags() & kTrapFlag) != 0) {
  }
  TP_CHECK(sigaction(SIGTRAP, &previous, nullptr) == 0, "cannot restore the handler of SIGTRAP");
  return session.instructions;
}

}  // namespace tidepool::optim
