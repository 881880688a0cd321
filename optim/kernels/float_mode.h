// FlushDenormals: for its lifetime the calling thread treats denormal floats as zero (FTZ for
// results, DAZ for operands).
//
// One object per worker thread, made and destroyed on that thread. Reason: CPU Adam falls to an
// eighth of its speed when the variance of unused parameters decays into the denormals. Bits are
// equal from run to run only if all computing threads use the same mode.
#pragma once

#include <xmmintrin.h>

namespace tidepool::optim {

class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

  // True if the calling thread is in this mode, by whatever means.
  static bool IsOn() {
    return (_mm_getcsr() & (kFlushToZero | kDenormalsAreZero)) ==
           (kFlushToZero | kDenormalsAreZero);
  }

 private:
  // Bits of the MXCSR register (Intel SDM volume 1, 10.2.3).
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kDenormalsAreZero = 0x0040;

  const unsigned saved_;
};

}  // namespace tidepool::optim
