// EnqueueAdam: one step of Adam or AdamW on a stream of any device, in stream order: on a GPU one
// fused kernel, which reads gradient, master, momentum and variance once and writes the states and
// the 16-bit copy; on a host stream the same loop.
//
// The thread of the stream (device/device.h). Numerical contract: as the host's kernels
// (optim/kernels/kernels.h): the bits of the scalar reference in a thread with FlushDenormals,
// whatever mode the stream's own thread is in; all NaNs count as equal. One element moves 26 bytes
// with a 16-bit gradient (28 with its 16-bit copy), 28 with an fp32 one (30).
#pragma once

#include "base/status.h"
#include "device/device.h"
#include "optim/update_rule.h"

namespace tidepool::optim {

// Why EnqueueAdam cannot do this update on any device (rule, form of states, types, a missing
// plane); null if it can.
const char* WhyNotOnStream(const StepFactors& factors, const UpdateSpan& span);

// Why this program runs Adam on no GPU, whatever its driver (built without nvcc); null if it has
// the kernels.
const char* WhyNoAdam();

// Checks that this device runs Adam, before anything is built on it; makes its kernels ready, so
// that no later call waits for the GPU. Errors: as device::Device::Prepare: kCudaUnavailable if the
// build has no kernel for this GPU (no nvcc), or its driver rejects it.
Status PrepareAdam(device::Device* device);

// Enqueues the update behind the stream's operations; returns at once. Every plane of the span is
// an address of the stream's device (on a GPU: of its own memory), and its memory stays until a
// marker recorded later has passed. Factors and span are copied. Requires that WhyNotOnStream
// returns null. Errors: those of the stream (Stream::status), after which nothing was enqueued: its
// first one, from whatever call; and this call's, kCudaUnavailable as from PrepareAdam,
// kCudaFailed, kDeviceMemoryShort. An error of the GPU's computation appears in the stream's status
// later, as with a copy. `from`: in elements; master, momentum and variance are read at this
// distance from where the span has them, and written there. The ranges read do not overlap those
// written, and are of the stream's device, too.
Status EnqueueAdam(device::Stream* stream, const StepFactors& factors, const UpdateSpan& span,
                   int64_t from = 0);

}  // namespace tidepool::optim
