// Checks of a request's numbers against the job and the session: a peer wrote them, so none is
// trusted. The request was copied out of shared memory once, and only the copy is checked and used.
//
// Pure functions of the serve loop's tables. Each returns null if the request is sound, else a
// short text that names what is wrong; such a text ends the session.
#pragma once

#include <cstdint>

#include "memserver/residency/job_states.h"
#include "shm/messages.h"

namespace tidepool::memserver {

// Checks the flags of any request, in a session of this protocol version.
const char* CheckFlags(const shm::Request& request, uint32_t protocol);
// The attempt at the open step that the flags name, relative to the open one. Flags without an
// attempt belong to the open one.
enum class OfAttempt { kOpen, kDropped, kToCome };
OfAttempt AttemptOf(const JobStates& states, uint32_t flags);
// Checks chunk, membership, element range and rCache range of any request that moves elements of
// `element_bytes` each.
const char* CheckRange(const JobStates& states, Rank rank, uint64_t rcache_bytes,
                       const shm::Request& request);
// The plane of the moment that a put names; null if the chunk has none on the host.
std::byte* MomentPlane(const Chunk& chunk, uint32_t plane);
const char* CheckPut(JobStates& states, Rank rank, const shm::Request& request);
const char* CheckFetch(JobStates& states, const shm::Request& request);
const char* CheckGradient(JobStates& states, Rank rank, const shm::Request& request);
// False: a user has chosen a learning rate or a loss scale that no update can use. That is not a
// protocol violation.
bool HasUsableNumbers(const shm::EndStepRequest& request);
// Checks a request that names the open step by its version, and maybe its attempt.
const char* CheckOpenStep(const JobStates& states, Version version, uint32_t flags);
// Checks a job's start behind the step of a checkpoint: before its first put, or as earlier ranks
// said.
const char* CheckBeginAt(const JobStates& states, const shm::BeginAtRequest& request);
const char* CheckEndStep(const JobStates& states, const shm::EndStepRequest& request);

}  // namespace tidepool::memserver
