#include "memserver/traffic/transfers.h"

#include "base/check.h"
#include "base/hot.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/formats/moment_words.h"
#include "base/formats/split_float.h"
#include "memserver/traffic/frozen_requests.h"
#include "memserver/traffic/rcache_content.h"

namespace tidepool::memserver {
namespace {

// The master is written before the put is noted in kept memory, so a piece that was only half split
// is sent again.
void SplitStaged(const JobStates& states, Rank rank, const shm::Request& request) {
  const auto* from = reinterpret_cast<const float*>(states.staging(rank));
  auto* const high = reinterpret_cast<uint16_t*>(
      states.weights().PutHighBytes(request.chunk, request.element_begin));
  auto* const rest =
      reinterpret_cast<int16_t*>(states.weights().PutBytes(request.chunk, request.element_begin));
  SplitWeights(from, high, rest, request.element_count);
}

bool IsMoment(const shm::Request& request) {
  return request.micro_batch != shm::kPutMaster;
}

// Converts staged words of a moment to its narrower stored form.
void KeepStaged(const JobStates& states, Rank rank, const shm::Request& request) {
  const Chunk& chunk = states.chunk(request.chunk);
  const std::span words(reinterpret_cast<const uint32_t*>(states.staging(rank)),
                        request.element_count);
  std::byte* const plane = MomentPlane(chunk, request.micro_batch);
  if (shm::IsScales(request.micro_batch)) return KeepScales(words, request.element_begin, plane);
  KeepMoment(chunk.states, words, request.element_begin, plane);
}

// Starts the put of a moment, for a job that begins behind the step of a checkpoint.
Start StartMoment(JobStates* states, Session* session, const shm::Request& request) {
  const Chunk& chunk = states->chunk(request.chunk);
  const bool narrow =
      (chunk.states == StateForm::kSplitBf16 || chunk.states == StateForm::kSplit8) &&
      !chunk.states_off_host();
  if (narrow && session->put_staged) return Start::kWait;

  std::byte* to = states->staging(session->rank());
  if (chunk.states_off_host()) {
    to = states->weights().landing().Place(request.chunk, chunk.elements, session->rank(),
                                           request.micro_batch, request.element_begin);
    if (to == nullptr) return Start::kWait;
  } else if (!narrow) {
    to = MomentPlane(chunk, request.micro_batch) + request.element_begin * sizeof(float);
  }

  session->put_staged = session->put_staged || narrow;
  session->lane().Start({request, request.element_count * sizeof(float), 0, narrow}, to,
                        session->rcache() + request.rcache_offset);
  return Start::kStarted;
}

}  // namespace

Start StartPut(JobStates* states, Session* session, const shm::Request& request) {
  if (IsMoment(request)) return StartMoment(states, session, request);
  const bool split = states->chunk(request.chunk).is_split();
  // The area is free once the chunk that had it is on NVMe.
  if (!states->weights().MayLand(request.chunk)) return Start::kWait;
  // One put at a time: all puts land at the start of the staging buffer.
  if (split && session->put_staged) return Start::kWait;
  // A chunk that is not split does not use the buffer.
  session->put_staged = split || (session->put_staged && !TP_PLANTED("traffic.put_staging_freed"));
  const Copy copy{request, request.element_count * sizeof(float), 0, split};
  std::byte* const to = split ? states->staging(session->rank())
                              : states->weights().PutBytes(request.chunk, request.element_begin);
  session->lane().Start(copy, to, session->rcache() + request.rcache_offset);
  TP_POINT("server.put_started");
  return Start::kStarted;
}

bool EndPut(JobStates* states, Session* session, const Copy& copy) {
  session->bytes_d2h += copy.bytes;
  TP_POINT("server.put_copied");
  const Chunk& chunk = states->chunk(copy.request.chunk);
  if (copy.to_staging) {
    IsMoment(copy.request) ? KeepStaged(*states, session->rank(), copy.request)
                           : SplitStaged(*states, session->rank(), copy.request);
    session->put_staged = false;
  }
  if (IsMoment(copy.request)) return false;
  const uint64_t end = copy.request.element_begin + copy.request.element_count;
  // Weights of a shard come in order, so the copy that reaches its end is the last one.
  const uint64_t elements = end - states->ShardBegin(copy.request.chunk, session->rank());
  states->table().SetPut(copy.request.chunk, session->rank(), elements);
  TP_POINT("server.put_kept");
  return elements == chunk.shard_elements;
}

TP_HOT Start StartFetch(JobStates* states, Session* session, const shm::Request& request) {
  Chunk& chunk = states->chunk(request.chunk);
  const Version present = chunk.version;
  // Until all weights have arrived, no rank starts: a rank that ran ahead would submit gradients of
  // a step that cannot be open yet.
  if (!states->weights_ready() || present == kNoVersion || present < request.version)
    return Start::kWait;
  if (present > request.version) return Start::kTooLate;
  if (!states->weights().HoldsWeights(request.chunk)) return Start::kWait;
  ++chunk.readers;
  ++chunk.fetches;
  chunk.fetched = present;

  const Copy copy{request, request.element_count * BytesOf(chunk.dtype), 0, false};
  session->lane().Start(copy, session->rcache() + request.rcache_offset,
                        states->table().ParameterBytes(chunk, request.element_begin));
  NoteRcacheContent(states, session, request, true);
  TP_POINT("server.fetch_started");
  return Start::kStarted;
}

TP_HOT void EndFetch(JobStates* states, Session* session, const Copy& copy) {
  Chunk& chunk = states->chunk(copy.request.chunk);
  TP_CHECK(chunk.readers > 0, "every fetch in flight was counted");
  --chunk.readers;
  // Another chunk may have been fetched over it meanwhile.
  const bool holds =
      chunk.version == copy.request.version && session->rcache_map().Holds(copy.request.chunk);
  if (holds) chunk.ranks_cached |= uint64_t{1} << session->rank();
  session->bytes_h2d += copy.bytes;
  TP_POINT("server.fetch_copied");
}

void DropSession(JobStates* states, Session* session) {
  for (uint32_t i = 0; i < session->lane().size(); ++i) {
    const shm::Request& request = session->lane().at(i).request;
    if (states->spec().IsFrozen(request.chunk)) {
      DropFrozen(states, request);
      continue;
    }
    if (request.op != static_cast<uint32_t>(shm::Op::kFetch)) continue;
    Chunk& chunk = states->chunk(request.chunk);
    TP_CHECK(chunk.readers > 0, "every fetch in flight was counted");
    if (!TP_PLANTED("traffic.dead_reader_counted")) --chunk.readers;
  }

  if (FrozenTable* const frozen = states->frozen_table()) frozen->Leave(session->id());
  if (TP_PLANTED("traffic.dead_rcache_shown")) return;
  for (const auto& range : session->rcache_map().ranges())
    states->RanksCached(range.chunk) &= ~(uint64_t{1} << session->rank());
}

}  // namespace tidepool::memserver
