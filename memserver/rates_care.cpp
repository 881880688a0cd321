#include "memserver/rates_care.h"

#include "base/log.h"

namespace tidepool::memserver {

int RatesCare::pause_ms() const {
  if (done_) return -1;
  return static_cast<int>((measures_ ? kWatchNs : busy_ ? kBusyPauseNs : kPauseNs) / kNsPerMs);
}

void RatesCare::Look(bool busy) {
  if (done_) return;
  busy_ = busy;
  if (busy) {
    Stop();
    quiet_ns_ = clock_->NowNs();
    return;
  }

  if (measures_) {
    if (const std::optional<bool> well = measurer_.ended()) NoteEnd(*well);
    return;
  }
  if (clock_->NowNs() - quiet_ns_ >= kQuietNs) Begin();
}

void RatesCare::Begin() {
  const Status started = measurer_.start();
  measures_ = started.ok();
  if (!started.ok()) {
    LogWarn("rates are not measured", {{"why", started.Line()}});
    NoteEnd(/*well=*/false);
  }
}

void RatesCare::NoteEnd(bool well) {
  measures_ = false;
  quiet_ns_ = clock_->NowNs();
  failures_ += !well;
  done_ = well || failures_ == kTries;
  if (well) LogInfo("the machine's rates are known", {{"shown_by", "trainer rates"}});
}

void RatesCare::Stop() {
  if (!measures_) return;
  measurer_.stop();
  measures_ = false;
  LogInfo("rates are measured later: a job has come, or the server ends");
}

}  // namespace tidepool::memserver
