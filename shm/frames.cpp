#include "shm/frames.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "shm/byte_codec.h"
#include "shm/spec/job_spec.h"
#include "shm/messages.h"

namespace tidepool::shm {

namespace {

constexpr size_t kFrameTypes = std::variant_size_v<Frame>;

std::string Shortened(std::string text) {
  if (text.size() > kFrameTextMax) text.resize(kFrameTextMax);
  return text;
}

// --- payloads out ---

void PutStatus(const Status& status, ByteWriter* out) {
  out->Put(static_cast<uint32_t>(status.id()));
  for (const std::string& text :
       {status.ok() ? std::string() : status.what(), status.where(), status.why(), status.fix()}) {
    out->PutString(Shortened(text));
  }
}

// The highest version first: a server before version 3 reads only this word, and names it.
void PutProtocols(const ProtocolRange& range, ByteWriter* out) {
  out->Put(range.highest);
  out->Put(range.lowest);
}

// Peers whose versions have no client-owned rCache neither send nor read these fields.
bool SaysRcache(const ProtocolRange& range) {
  return range.highest >= kAbiBrought;
}

void PutRcache(const RcacheKind& rcache, ByteWriter* out) {
  out->Put(static_cast<uint32_t>(rcache.form));
  out->PutBytes(std::as_bytes(std::span(rcache.gpu)));
}

void PutPayload(const HelloFrame& frame, ByteWriter* out) {
  PutProtocols(frame.protocols, out);
  out->Put(frame.rank);
  out->Put(frame.world);
  out->Put(frame.pid);
  out->Put(frame.flags);
  out->Put(frame.spec_bytes);
  out->Put(frame.fingerprint);
  out->Put(frame.nonce);
  if (SaysRcache(frame.protocols)) PutRcache(frame.rcache, out);
  if (frame.protocols.highest >= kAbiNote) out->PutString(frame.note);
}
void PutPayload(const SpecPartFrame& frame, ByteWriter* out) {
  out->PutBytes(frame.bytes);
}
void PutPayload(const WelcomeFrame& frame, ByteWriter* out) {
  out->Put(frame.protocol);
  out->Put(frame.session);
  out->Put(frame.job);
  out->Put(frame.rcache_bytes);
  out->Put(frame.weights_ready);
  out->Put(frame.loss_scale);
  out->Put(frame.sealed_version);

  out->Put(frame.data_cursor);
  out->Put(frame.random_state);
  out->Put(frame.pool_bytes);
  out->Put(frame.scaler_steps);
  out->Put(frame.last_skipped);
  out->Put(frame.job_nonce);
  if (frame.protocol >= kAbiNote) out->PutString(frame.note);
  if (frame.protocol >= kAbiAttempt) out->Put(frame.attempt);
}
void PutPayload(const RefusedFrame& frame, ByteWriter* out) {
  PutStatus(frame.why, out);
}
void PutPayload(const SchedulePartFrame& frame, ByteWriter* out) {
  out->Put(frame.total);
  out->Put(static_cast<uint32_t>(frame.order.size()));
  out->PutBytes(std::as_bytes(std::span(frame.order)));
}
void PutPayload(const SaveFrame& frame, ByteWriter* out) {
  out->Put(frame.version);
  out->PutString(frame.name);
}
void PutPayload(const SaveDoneFrame& frame, ByteWriter* out) {
  PutStatus(frame.result, out);
}
void PutPayload(const GoodbyeFrame&, ByteWriter*) {}
void PutPayload(const EndedFrame& frame, ByteWriter* out) {
  PutStatus(frame.why, out);
}
void PutPayload(const PeerLostFrame& frame, ByteWriter* out) {
  out->Put(frame.rank);
}

void PutPayload(const ResumeFrame& frame, ByteWriter* out) {
  PutProtocols(frame.protocols, out);
  out->Put(frame.rank);
  out->Put(frame.job_nonce);
  out->Put(frame.nonce);
  out->Put(frame.rcache_bytes);
  if (!SaysRcache(frame.protocols)) return;
  PutRcache(frame.rcache, out);
  out->Put(frame.flags_base);
}
void PutPayload(const ResumedFrame& frame, ByteWriter* out) {
  out->Put(frame.protocol);
  out->Put(frame.session);
}

void PutPayload(const QueuedFrame& frame, ByteWriter* out) {
  out->Put(frame.place);
  PutStatus(frame.why, out);
}

void PutPayload(const StreamStatesFrame& frame, ByteWriter* out) {
  out->Put(frame.version);
}
void PutPayload(const StatesStreamFrame&, ByteWriter*) {}
void PutPayload(const AskStatesFrame& frame, ByteWriter* out) {
  PutProtocols(frame.protocols, out);
  out->PutString(frame.job);
}
void PutPayload(const StatesGivenFrame& frame, ByteWriter* out) {
  out->Put(frame.version);
  out->Put(frame.spec_bytes);
  out->PutString(frame.note);
}

// --- payloads in: each reads everything and says whether the values are within their limits ---

bool GetStatus(ByteReader* in, Status* status) {
  const auto id = in->Get<uint32_t>();
  std::array<std::string, 4> texts;  // what, where, why, fix
  for (std::string& text : texts) text = in->GetString(kFrameTextMax);
  if (id == 0) return true;
  const ErrorId known =
      id <= UINT16_MAX ? ErrorEntryOf(static_cast<ErrorId>(id)).id : ErrorId::kInternal;
  *status = Status(known, texts[0]).Where(texts[1]).Why(texts[2]).Fix(texts[3]);
  return true;
}

// Reads the range; true if this program speaks none of it. Such a frame is accepted, so that the
// answer can name both ranges; the fields behind the range are unreadable here.
bool GetProtocols(ByteReader* in, ProtocolRange* range) {
  range->highest = in->Get<uint32_t>();
  range->lowest = in->Get<uint32_t>();
  // Before version 3 the second word had another meaning: such a client speaks one version.
  if (range->lowest == 0 || range->lowest > range->highest) range->lowest = range->highest;
  if (!in->ok() || Agreed(*range, kOwnProtocols)) return false;
  *in = ByteReader({});
  return true;
}
// A newer client may send fields that are unknown here.
void SkipUnknown(const ProtocolRange& range, ByteReader* in) {
  if (in->ok() && range.highest > kOwnProtocols.highest) *in = ByteReader({});
}

bool GetRcache(ByteReader* in, RcacheKind* rcache) {
  const auto form = in->Get<uint32_t>();
  in->GetBytes(std::as_writable_bytes(std::span(rcache->gpu)));
  if (form > kMemoryFormMax) return false;
  rcache->form = static_cast<MemoryForm>(form);
  return rcache->is_brought() == (rcache->gpu != RcacheKind{}.gpu);
}

bool GetPayload(ByteReader* in, HelloFrame* frame) {
  if (GetProtocols(in, &frame->protocols)) return true;
  frame->rank = in->Get<uint32_t>();
  frame->world = in->Get<uint32_t>();
  frame->pid = in->Get<int32_t>();
  frame->flags = in->Get<uint32_t>() & kHelloFlags;
  frame->spec_bytes = in->Get<uint64_t>();
  frame->fingerprint = in->Get<uint64_t>();
  frame->nonce = in->Get<uint64_t>();

  const bool sound = !SaysRcache(frame->protocols) || GetRcache(in, &frame->rcache);
  if (frame->protocols.highest >= kAbiNote) frame->note = in->GetString(kRunNoteMax);
  SkipUnknown(frame->protocols, in);
  return sound && frame->nonce != 0 && frame->world >= 1 && frame->world <= kRanksMax &&
         frame->rank < frame->world && frame->spec_bytes <= kSpecBytesMax;
}
bool GetPayload(ByteReader* in, SpecPartFrame* frame) {
  const auto rest = in->rest();
  frame->bytes.assign(rest.begin(), rest.end());
  *in = ByteReader({});
  return !frame->bytes.empty();
}
bool GetPayload(ByteReader* in, WelcomeFrame* frame) {
  frame->protocol = in->Get<uint32_t>();
  frame->session = in->Get<uint32_t>();
  frame->job = in->Get<uint32_t>();
  frame->rcache_bytes = in->Get<uint64_t>();
  frame->weights_ready = in->Get<uint32_t>();
  frame->loss_scale = in->Get<float>();

  frame->sealed_version = in->Get<uint64_t>();
  frame->data_cursor = in->Get<uint64_t>();
  frame->random_state = in->Get<uint64_t>();
  frame->pool_bytes = in->Get<uint64_t>();
  frame->scaler_steps = in->Get<uint32_t>();
  frame->last_skipped = in->Get<uint32_t>();
  frame->job_nonce = in->Get<uint64_t>();

  if (frame->protocol >= kAbiNote) frame->note = in->GetString(kRunNoteMax);
  if (frame->protocol >= kAbiAttempt) frame->attempt = in->Get<uint32_t>();
  return true;
}
bool GetPayload(ByteReader* in, RefusedFrame* frame) {
  return GetStatus(in, &frame->why);
}
bool GetPayload(ByteReader* in, SchedulePartFrame* frame) {
  frame->total = in->Get<uint32_t>();
  const auto count = in->Get<uint32_t>();
  if (count == 0 || count > frame->total || count != in->rest().size() / sizeof(ChunkId))
    return false;
  frame->order.resize(count);
  for (ChunkId& chunk : frame->order) chunk = in->Get<ChunkId>();
  return true;
}
bool GetPayload(ByteReader* in, SaveFrame* frame) {
  frame->version = in->Get<uint64_t>();
  frame->name = in->GetString(kFileNameMax);
  return IsPlainFileName(frame->name);
}
bool GetPayload(ByteReader* in, SaveDoneFrame* frame) {
  return GetStatus(in, &frame->result);
}
bool GetPayload(ByteReader*, GoodbyeFrame*) {
  return true;
}
bool GetPayload(ByteReader* in, EndedFrame* frame) {
  return GetStatus(in, &frame->why);
}
bool GetPayload(ByteReader* in, PeerLostFrame* frame) {
  frame->rank = in->Get<uint32_t>();
  return frame->rank < kRanksMax;
}

bool GetPayload(ByteReader* in, ResumeFrame* frame) {
  if (GetProtocols(in, &frame->protocols)) return true;
  frame->rank = in->Get<uint32_t>();
  frame->job_nonce = in->Get<uint64_t>();
  frame->nonce = in->Get<uint64_t>();
  frame->rcache_bytes = in->Get<uint64_t>();

  bool sound = true;
  if (SaysRcache(frame->protocols)) {
    sound = GetRcache(in, &frame->rcache);
    frame->flags_base = in->Get<uint64_t>();
    sound = sound && frame->flags_base <= (frame->rcache.is_brought() ? kFlagsBaseMax : 0);
  }
  SkipUnknown(frame->protocols, in);
  return sound && frame->rank < kRanksMax && frame->nonce != 0 && frame->rcache_bytes != 0;
}
bool GetPayload(ByteReader* in, ResumedFrame* frame) {
  frame->protocol = in->Get<uint32_t>();
  frame->session = in->Get<uint32_t>();
  return true;
}

bool GetPayload(ByteReader* in, QueuedFrame* frame) {
  frame->place = in->Get<uint32_t>();
  return GetStatus(in, &frame->why) && frame->place != 0;
}

bool GetPayload(ByteReader* in, StreamStatesFrame* frame) {
  frame->version = in->Get<uint64_t>();
  return true;
}
bool GetPayload(ByteReader*, StatesStreamFrame*) {
  return true;
}
bool GetPayload(ByteReader* in, AskStatesFrame* frame) {
  if (GetProtocols(in, &frame->protocols)) return true;
  frame->job = in->GetString(kJobNameMax);
  SkipUnknown(frame->protocols, in);
  return !frame->job.empty();
}
bool GetPayload(ByteReader* in, StatesGivenFrame* frame) {
  frame->version = in->Get<uint64_t>();
  frame->spec_bytes = in->Get<uint64_t>();
  frame->note = in->GetString(kRunNoteMax);
  return frame->spec_bytes > 0 && frame->spec_bytes <= kSpecBytesMax;
}

// --- the table of types ---

struct TypeEntry {
  const char* name;
  uint32_t fds;
  bool (*decode)(ByteReader* in, Frame* frame);
};

template <size_t index>
bool DecodeAs(ByteReader* in, Frame* frame) {
  return GetPayload(in, &frame->emplace<index>()) && in->Finished();
}

constexpr std::array<TypeEntry, kFrameTypes> kTypes{{
    {"Hello", 0, DecodeAs<0>},
    {"SpecPart", 0, DecodeAs<1>},
    {"Welcome", kWelcomeFds, DecodeAs<2>},
    {"Refused", 0, DecodeAs<3>},
    {"SchedulePart", 0, DecodeAs<4>},
    {"Save", 1, DecodeAs<5>},
    {"SaveDone", 0, DecodeAs<6>},
    {"Goodbye", 0, DecodeAs<7>},
    {"Ended", 0, DecodeAs<8>},
    {"PeerLost", 0, DecodeAs<9>},
    {"Resume", 1, DecodeAs<10>},
    {"Resumed", kResumedFds, DecodeAs<11>},
    {"Queued", 0, DecodeAs<12>},
    {"StreamStates", 0, DecodeAs<13>},
    {"StatesStream", 1, DecodeAs<14>},
    {"StreamSteps", 0, DecodeAs<15>},
    {"StepsStream", 1, DecodeAs<16>},
    {"StepsEnded", 0, DecodeAs<17>},
    {"AskStates", 0, DecodeAs<18>},
    {"StatesGiven", kGivenFds, DecodeAs<19>},
}};

template <typename Content, size_t number>
constexpr bool kIsNumbered = std::is_same_v<std::variant_alternative_t<number - 1, Frame>, Content>;
static_assert(kIsNumbered<HelloFrame, static_cast<size_t>(FrameType::kHello)>);
static_assert(kIsNumbered<SaveFrame, static_cast<size_t>(FrameType::kSave)>);
static_assert(kIsNumbered<ResumeFrame, static_cast<size_t>(FrameType::kResume)>);

}  // namespace

std::vector<std::byte> EncodeFrame(const Frame& frame) {
  ByteWriter payload;
  std::visit([&payload](const auto& content) { PutPayload(content, &payload); }, frame);

  ByteWriter out;
  out.Put(kFrameMagic);
  out.Put(static_cast<uint16_t>(frame.index() + 1));
  out.Put<uint16_t>(0);
  out.Put(static_cast<uint32_t>(payload.size()));
  out.Put<uint32_t>(0);

  out.PutBytes(payload.Take());
  TP_CHECK(out.size() <= kPacketBytesMax, "a frame does not fit into one packet");
  return out.Take();
}

Result<Frame> DecodeFrame(std::span<const std::byte> bytes) {
  const auto bad = [&](const std::string& what) {
    return Status(ErrorId::kHandshakeBad,
                  what + " (packet of " + std::to_string(bytes.size()) + " bytes)");
  };
  ByteReader in(bytes);
  const auto magic = in.Get<uint32_t>();
  const auto type = in.Get<uint16_t>();
  in.Get<uint16_t>();
  const auto length = in.Get<uint32_t>();
  in.Get<uint32_t>();

  if (!in.ok() || magic != kFrameMagic) return bad("a packet is not a Tidepool frame");
  if (type == 0 || type > kFrameTypes)
    return bad("a frame has the unknown type " + std::to_string(type));
  const TypeEntry& entry = kTypes[type - 1U];
  if (length != in.rest().size())
    return bad(std::string("a ") + entry.name + " frame has a wrong length");

  Frame frame;
  if (!entry.decode(&in, &frame))
    return bad(std::string("a ") + entry.name + " frame has a field out of range");
  return frame;
}

uint32_t FdsOf(const Frame& frame) {
  const uint32_t usual = kTypes[frame.index()].fds;
  if (const auto* hello = std::get_if<HelloFrame>(&frame))
    return usual + (hello->rcache.is_brought() ? 1 : 0);
  if (const auto* resume = std::get_if<ResumeFrame>(&frame))
    return usual + (resume->rcache.is_brought() ? 1 : 0);
  return usual;
}

const char* NameOf(const Frame& frame) {
  return kTypes[frame.index()].name;
}

}  // namespace tidepool::shm
