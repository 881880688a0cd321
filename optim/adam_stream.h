// EnqueueAdam: one step of Adam or AdamW on a stream of any device, in its order: on a GPU one
// fused kernel, which reads gradient, master, momentum and variance once and writes the states and
// the 16-bit copy; on a host stream the same loop.
//
// The thread of the stream (device/device.h). Numbers: the same contract as the host's kernels
// (optim/kernels/kernels.h): the bits of the scalar reference in a thread with FlushDenormals,
// whatever mode the stream's own thread is in; all NaNs count as equal. One element moves 26 bytes
// with a 16-bit gradient (28 with its 16-bit copy), 28 with an fp32 one (30).
#pragma once

#include "base/status.h"
#include "device/device.h"
#include "optim/update_rule.h"

namespace tidepool::optim {

// Why EnqueueAdam cannot do this update on any device (rule, form of states, types, a plane that is
// missing); null when it can.
const char* WhyNotOnStream(const StepFactors& factors, const UpdateSpan& span);

// Why no GPU runs Adam by this program, whatever its driver (built without nvcc); null when it has
// the kernels.
const char* WhyNoAdam();

// Whether this device runs Adam, told before anything is built on it; makes its kernels ready, so
// that no later call waits for the GPU. Errors: as device::Device::Prepare: kCudaUnavailable when
// the build has no kernel for this GPU (no nvcc), or its driver does not take it.
Status PrepareAdam(device::Device* device);

// Enqueues the update behind what the stream holds; returns at once. Every plane of the span is an
// address of the stream's device (on a GPU: of its own memory), and its memory stays until a marker
// recorded later has passed. Factors and span are copied. Requires that WhyNotOnStream has no
// objection. Errors: those of the stream (Stream::status), after which nothing was enqueued: its
// first one, from whatever call; and this call's, kCudaUnavailable as from PrepareAdam,
// kCudaFailed, kDeviceMemoryShort. What goes wrong while the GPU computes shows in the stream's
// status later, as with a copy.
// `from`: in elements; master, momentum and variance are read so far from where the span has them,
// and written there. What is read does not overlap what is written, and is of the stream's device,
// too.
Status EnqueueAdam(device::Stream* stream, const StepFactors& factors, const UpdateSpan& span,
                   int64_t from = 0);

}  // namespace tidepool::optim
