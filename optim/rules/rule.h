// The parts of a rule: the states of one element, and a struct with the arithmetic.
//
// A rule is one file in this folder and one line in optim/rules.h (besides its name in
// base/formats/optimizer.cpp): a struct in an unnamed namespace, because every instruction set
// compiles its own copy (see optim/kernels/element_types.h), with
//   kMomentum, kVariance       the planes that it reads and writes; it has no others
//   Factors                    plain floats, at most kFactorBytes
//   Serves(spec)               true if it handles a job of this specification
//   Make(spec, step, group)    the Factors, once per step and parameter group
//   Step(f, g, element)        the wide form: no branches, no calls except built-ins
//                              (TP_SQUARE_ROOT if a GPU runs it too); g is the scaled gradient
//   Reference(f, g, element)   the same formula in plain form, for the scalar reference
#pragma once

#include <cmath>
#include <cstdint>

#include "base/formats/optimizer.h"
#include "optim/kernels/both_sides.h"
#include "optim/update_span.h"

#define TP_OPTIM_STEP TP_BOTH_SIDES __attribute__((always_inline)) static inline

namespace tidepool::optim {
namespace {

struct Element {
  float p = 0, m = 0, v = 0;  // master, momentum, variance
};

}  // namespace
}  // namespace tidepool::optim
