// StopFlag: records SIGINT or SIGTERM, so that the training loop ends between two steps and
// everything is cleaned up.
//
// Install and Uninstall on the main thread; Requested from any thread. The first signal sets the
// flag and restores the default action of both signals: a second one ends the process at once (a
// private memory server still ends and removes its directory by itself).
#pragma once

namespace tidepool::trainer {

class StopFlag {
 public:
  StopFlag() = delete;
  static void Install();
  // Restores the default action of both signals and clears the flag.
  static void Uninstall();

  static bool Requested() { return Signal() != 0; }
  // The received signal (a run ended by it exits with 128 + this), 0 for none.
  static int Signal();
};

}  // namespace tidepool::trainer
