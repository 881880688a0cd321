#include "tests/sim/sim_rank.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tidepool::memserver {
namespace {

constexpr uint64_t kBlockBytes = 6144;  // the largest shard: 1,536 elements of fp32
constexpr size_t kPendingMax = 5;
constexpr size_t kDuplicatesMax = 16;

void Say(std::string* log, const std::string& what) {
  *log += (log->empty() ? "" : "; ") + what;
}

shm::Op OpOf(const shm::Request& request) {
  return static_cast<shm::Op>(request.op);
}

}  // namespace

bool SimRank::MaySave() const {
  return state_ == State::kRunning && !server_lost_ && !saving_ && !loading_ && !ended_ &&
         WeightsReady();
}

void SimRank::Reserve() {
  if (nonce_ == 0) nonce_ = random_->Next() | 1;
  connection_ = world_->Reserve(job_->spec(), rank_, 1000, nonce_);
  state_ = State::kReserving;
}

void SimRank::On(const ReserveGranted& granted) {
  if (state_ == State::kResuming && random_->Below(8) == 0) {  // its rings cannot be made just now
    world_->Post(ConnectionLost{connection_, "no descriptor for it", true});
    connection_ = 0;
    state_ = State::kParked;
    return;
  }
  if (state_ == State::kResuming) {
    world_->AttachAgain(granted, ends_.get());
    state_ = State::kReturning;
    return;
  }
  granted_ = std::make_unique<ReserveGranted>(granted);
  state_ = State::kGranted;
}

// The control thread closes the connection and tells the loop so.
void SimRank::On(const Refused& refused) {
  world_->Post(ConnectionLost{connection_, "refused"});
  connection_ = 0;
  if (state_ != State::kResuming) {
    state_ = State::kAbsent;
    if (random_->Below(2) == 0) nonce_ = 0;  // else the same process tries again
    return;
  }
  if (refused.why.id() == ErrorId::kNotReady) {
    state_ = State::kParked;
    return;
  }
  TP_CHECK(refused.why.id() == ErrorId::kPeerLost || refused.why.id() == ErrorId::kStatesLost,
           refused.why.Line().c_str());
  Gone();
}

void SimRank::On(const Attached& attached, std::string* log) {
  ends_->SetNames(nonce_, attached.job_nonce);
  if (state_ == State::kReturning) {
    const bool as_left =
        attached.sealed_version == version_ || (ended_ && attached.sealed_version == version_ + 1);
    TP_CHECK(leaving_ || as_left, "no step is sealed without a rank that was away");
    Say(log, "is back");
    lost_since_ns_ = 0;
    SendAgain(log);
    return;
  }
  state_ = State::kRunning;
  lost_since_ns_ = 0;
  states_lost_ = false;
  life_ = job_->lives();
  loading_ = !attached.weights_ready;
  put_elements_.assign(job_->spec().chunks.size(), 0);
  frozen_.assign(job_->spec().frozen.size(), {});
  puts_answered_ = puts_sent_ = 0;
  blocks_busy_.assign(job_->spec().rcache_bytes / kBlockBytes, false);
  attempt_ = client::Attempt(attached.attempt);
  BeginStep(attached.sealed_version);
}

void SimRank::On(const SessionOver& over) {
  if (over.why.ok()) {
    TP_CHECK(state_ == State::kLeaving, "only a goodbye is answered");
    Gone();
    return;
  }
  Doom();
}

void SimRank::On(const SaveDone& done) {
  const bool may_fail = state_ != State::kRunning || leaving_;
  TP_CHECK(may_fail || done.result.ok(),
           ("a save of the present version succeeds, not: " + done.result.Line()).c_str());
  saving_ = false;
}

void SimRank::Doom() {
  if (state_ == State::kReserving || state_ == State::kGranted || state_ == State::kAttaching ||
      state_ == State::kRunning) {
    state_ = State::kDoomed;
  }
}

void SimRank::BeginStep(Version version) {
  version_ = version;
  submitted_.assign(job_->spec().chunks.size(), 0);
  said_ = 0;
  ended_ = false;
  answered_.clear();
}

const std::vector<ChunkId>& SimRank::MyChunks() {
  if (!my_chunks_.empty()) return my_chunks_;
  for (ChunkId id = 0; id < job_->spec().chunks.size(); ++id) {
    if (job_->spec().IsMember(id, rank_)) my_chunks_.push_back(id);
  }
  return my_chunks_;
}

// A trainer knows this from its collectives, which the simulation does not have.
bool SimRank::WeightsReady() const {
  const Job* job = world_->tables().FindJob(job_->spec().name);
  return job != nullptr && job->IsRecorded() && job->states->weights_ready();
}

// What is said of a step is answered with its end, and keeps nothing from being sent before that.
size_t SimRank::Waited() const {
  return static_cast<size_t>(std::count_if(
      pending_.begin(), pending_.end(),
      [](const auto& pending) { return !shm::IsStepNumbers(pending.second.request); }));
}

bool SimRank::TakeBlock(uint64_t* block) {
  const auto it = std::find(blocks_busy_.begin(), blocks_busy_.end(), false);
  if (it == blocks_busy_.end() || Waited() >= kPendingMax) return false;
  *it = true;
  *block = static_cast<uint64_t>(it - blocks_busy_.begin());
  return true;
}

uint64_t SimRank::BlockOffset(uint64_t block) const {
  return block * kBlockBytes;
}
std::byte* SimRank::BlockBytes(uint64_t block) const {
  return ends_->rcache() + BlockOffset(block);
}

// Writes over the block immediately: the server may not read it any more.
void SimRank::FreeBlock(uint64_t block) {
  std::memset(BlockBytes(block), 0x5a, kBlockBytes);
  blocks_busy_[block] = false;
}

void SimRank::Poke(std::string* log) {
  switch (state_) {
    case State::kAbsent:
    case State::kReserving:
    case State::kAttaching:
    case State::kResuming:
    case State::kReturning: return;
    case State::kGranted:
      ends_ = world_->Attach(*granted_, rank_);
      state_ = State::kAttaching;
      return Say(log, "attaches");
    case State::kDoomed: Die(); return Say(log, "gives up");
    case State::kLeaving:
      if (server_lost_ && random_->Below(4) == 0) Park(log);
      return;
    case State::kParked:
      if (random_->Below(4) != 0) return;
      connection_ = world_->AskToResume(*ends_, job_->spec());
      state_ = State::kResuming;
      return Say(log, "asks to go on");
    case State::kRunning: Act(log);
  }
}

void SimRank::Act(std::string* log) {
  TakeAnswers(log);
  if (state_ != State::kRunning) return;
  if (server_lost_ && random_->Below(4) == 0) return Park(log);
  TP_CHECK(!ends_->Ended(), "the server does not end the session of an honest rank");
  if (saving_) return;
  if (!frozen_.empty() && random_->Below(3) == 0 && (FrozenSome(log) || FetchFrozen(log))) return;
  if (loading_) {
    PutSome(log);
    return;
  }
  switch (random_->Below(4)) {
    case 0:
      if (!job_->Says(version_, rank_).empty() && random_->Below(3) == 0 && SaySome(log)) return;
      FetchSome(log);
      return;
    case 1:
    case 2:
      if (SubmitSome(log)) return;
      [[fallthrough]];
    default: EndStep(log);
  }
}

// --- a server that is gone ---

void SimRank::LoseServer() {
  connection_ = 0;
  if (lost_since_ns_ == 0) lost_since_ns_ = world_->clock().NowNs();
  switch (state_) {
    case State::kAbsent:
    case State::kParked: return;
    case State::kReserving:
    case State::kGranted:
    case State::kAttaching:  // starts over; most are the same process
      if (random_->Below(4) == 0) {
        Gone();
      } else {
        ends_.reset();
        granted_.reset();
        state_ = State::kAbsent;
        states_lost_ = false;
      }
      return;
    case State::kResuming:
    case State::kReturning: state_ = State::kParked; return;
    case State::kRunning:
    case State::kDoomed:
    case State::kLeaving: server_lost_ = true; return;
  }
}

// Takes first what the old server still answered.
void SimRank::Park(std::string* log) {
  TakeAnswers(log);
  if (state_ == State::kDoomed && !leaving_) return;
  server_lost_ = false;
  state_ = State::kParked;
  Say(log, "waits for a server");
}

void SimRank::SendAgain(std::string* log) {
  std::map<uint64_t, Pending> unanswered;
  unanswered.swap(pending_);
  if (plan_->Has(Fault::kDuplicate) && random_->Below(2) == 0) SendDuplicates();
  for (auto& [counter, pending] : unanswered) {
    if (pending.duplicate) continue;
    pending.request.flags |= shm::kResubmitted;
    pending.sent_again = true;
    pending_[ends_->Send(pending.request)] = pending;
  }
  if (!pending_.empty()) Say(log, "sends " + std::to_string(pending_.size()) + " requests again");
  state_ = leaving_ ? State::kLeaving : State::kRunning;
  if (leaving_) world_->Post(Goodbye{connection_});
  if (saving_ && !leaving_) world_->Post(SaveWeights{connection_, UniqueFd(), "w", version_});
}

void SimRank::SendDuplicates() {
  const size_t first = answered_.size() > kDuplicatesMax ? answered_.size() - kDuplicatesMax : 0;
  for (size_t i = first; i < answered_.size(); ++i) {
    // An answered end belongs to the step before the open one; once this step is sealed, its record
    // is gone.
    if (OpOf(answered_[i]) == shm::Op::kEndStep && ended_) continue;
    Pending pending{answered_[i], kNoBlock, true, true};
    pending.request.flags |= shm::kResubmitted;
    pending_[ends_->Send(pending.request)] = pending;
  }
}

// --- requests ---

void SimRank::Sent(shm::Request request, uint64_t block) {
  attempt_.Name(&request);
  const uint64_t counter = ends_->Send(request);
  pending_[counter] = {request, block, false, false};
}

bool SimRank::PutSome(std::string* log) {
  for (const ChunkId chunk : MyChunks()) {
    const uint64_t left = job_->spec().ShardElements(chunk) - put_elements_[chunk];
    uint64_t block = 0;
    if (left == 0) continue;
    if (!TakeBlock(&block)) return false;
    const uint64_t count = 1 + random_->Below(left);
    const uint64_t begin = ShardBegin(chunk) + put_elements_[chunk];
    job_->FillWeights(chunk, begin, {reinterpret_cast<float*>(BlockBytes(block)), count});
    put_elements_[chunk] += count;
    ++puts_sent_;
    Sent(FakeRank::PutRequest(chunk, begin, count, BlockOffset(block)), block);
    Say(log, "puts chunk " + std::to_string(chunk));
    return true;
  }
  if (puts_answered_ == puts_sent_) {
    loading_ = false;
    answered_.clear();
  }
  return false;
}

bool SimRank::SubmitSome(std::string* log) {
  std::vector<ChunkId> open = MyChunks();
  std::erase_if(open, [this](ChunkId id) { return submitted_[id] == job_->spec().micro_batches; });
  uint64_t block = 0;
  if (open.empty() || ended_ || !WeightsReady() || !TakeBlock(&block)) return false;
  const ChunkId chunk = open[random_->Below(open.size())];
  const uint64_t count = job_->spec().ShardElements(chunk);
  const uint32_t micro_batch = submitted_[chunk]++;
  std::vector<float> values(count);
  job_->FillGradient(version_, micro_batch, chunk, ShardBegin(chunk), values);
  job_->twin().Encode(chunk, values, BlockBytes(block));
  shm::Request request = FakeRank::SubmitRequest(
      {chunk, ShardBegin(chunk), count, BlockOffset(block), version_, micro_batch});
  // Half of the zeros go without their bytes.
  if ((version_ + rank_) % 2 == 0 && job_->IsZeros(version_, micro_batch, chunk)) {
    request.rcache_offset = 0;
    request.flags |= shm::kZeros;
  }
  Sent(request, block);
  Say(log, "submits chunk " + std::to_string(chunk) + " of version " + std::to_string(version_));
  return true;
}

bool SimRank::FetchSome(std::string* log) {
  const std::vector<ChunkId>& mine = MyChunks();
  uint64_t block = 0;
  if (mine.empty() || !TakeBlock(&block)) return false;
  const ChunkId chunk = mine[random_->Below(mine.size())];
  // After its end of the step a rank may only ask for the next version: the present one may be
  // overwritten at any time.
  const Version version = version_ + (ended_ ? 1 : 0);
  const uint64_t count = job_->spec().ShardElements(chunk);
  Sent(FakeRank::FetchRequest(chunk, ShardBegin(chunk), count, BlockOffset(block), version), block);
  Say(log, "fetches chunk " + std::to_string(chunk) + " of version " + std::to_string(version));
  return true;
}

bool SimRank::FrozenSome(std::string* log) {
  const size_t index = random_->Below(frozen_.size());
  Frozen& frozen = frozen_[index];
  if (frozen.state == Frozen::State::kPut) return PutFrozen(index, log);
  // A claim may wait for a rank that waits for this one's step: one place stays free for what ends
  // it.
  if (frozen.state != Frozen::State::kAsk || Waited() + 1 >= kPendingMax) return false;
  // A chunk that the job lists twice is put once: a second claim would begin the upload anew.
  for (size_t i = 0; i < frozen_.size(); ++i) {
    const bool same =
        i != index && job_->spec().frozen[i].content == job_->spec().frozen[index].content;
    if (same &&
        (frozen_[i].state == Frozen::State::kAsked || frozen_[i].state == Frozen::State::kPut))
      return false;
  }
  frozen.state = Frozen::State::kAsked;
  Sent(FakeRank::ClaimRequest(static_cast<ChunkId>(job_->spec().chunks.size() + index)), kNoBlock);
  Say(log, "claims frozen chunk " + std::to_string(index));
  return true;
}

bool SimRank::PutFrozen(size_t index, std::string* log) {
  Frozen& frozen = frozen_[index];
  const bool done = frozen.lost || frozen.bytes_sent == SimJob::kFrozenBytes;
  uint64_t block = 0;
  if (done && frozen.puts_out == 0) frozen.state = Frozen::State::kAsk;
  if (done || !TakeBlock(&block)) return false;
  const uint64_t element = BytesOf(job_->spec().frozen[index].dtype), begin = frozen.bytes_sent;
  const uint64_t count =
      std::min(SimJob::kFrozenBytes - begin, element * (1 + random_->Below(kBlockBytes / element)));
  const auto& content = SimJob::ContentOf(job_->spec().frozen[index].content);
  std::memcpy(BlockBytes(block), content.data() + begin, count);
  if (frozen.wrong && begin == 0) *BlockBytes(block) ^= std::byte{4};
  frozen.bytes_sent += count;
  ++frozen.puts_out;
  const auto id = static_cast<ChunkId>(job_->spec().chunks.size() + index);
  Sent(FakeRank::PutRequest(id, begin / element, count / element, BlockOffset(block)), block);
  Say(log, "puts frozen chunk " + std::to_string(index));
  return true;
}

bool SimRank::FetchFrozen(std::string* log) {
  const size_t index = random_->Below(frozen_.size());
  uint64_t block = 0;
  if (frozen_[index].state != Frozen::State::kAlreadyPresent || !TakeBlock(&block)) return false;
  const uint64_t element = BytesOf(job_->spec().frozen[index].dtype),
                 begin = random_->Below(SimJob::kFrozenBytes / element);
  const uint64_t count =
      std::min(SimJob::kFrozenBytes / element - begin, 1 + random_->Below(kBlockBytes / element));
  const auto id = static_cast<ChunkId>(job_->spec().chunks.size() + index);
  Sent(FakeRank::FetchRequest(id, begin, count, BlockOffset(block), version_), block);
  Say(log, "fetches frozen chunk " + std::to_string(index));
  return true;
}

// May say it at any time of the step, and has said all before the end.
bool SimRank::SaySome(std::string* log) {
  if (ended_ || !WeightsReady()) return false;
  const std::vector<shm::Request> says = job_->Says(version_, rank_);
  if (said_ >= says.size()) return false;
  Sent(says[said_++], kNoBlock);
  Say(log, "says something of step " + std::to_string(version_));
  return true;
}

bool SimRank::EndStep(std::string* log) {
  if (ended_) return false;
  for (const ChunkId chunk : MyChunks()) {
    if (submitted_[chunk] < job_->spec().micro_batches) return false;
  }
  if (!WeightsReady()) return false;  // a rank without chunks
  if (SaySome(log)) return true;
  // Fetches of this version may still be in flight: the server reads them out before it updates
  // their chunks.
  ended_ = true;
  Sent(FakeRank::EndStepRequestOf(version_, job_->learning_rate(version_), job_->loss_scale()),
       kNoBlock);
  Say(log, "ends step " + std::to_string(version_));
  return true;
}

// --- answers ---

void SimRank::TakeAnswers(std::string* log) {
  while (const auto answer = ends_->Take()) {
    const auto it = pending_.find(answer->counter);
    TP_CHECK(it != pending_.end(), "an answer names a request in flight");
    const Pending pending = it->second;
    pending_.erase(it);
    OnAnswer(pending, *answer, log);
    if (pending.block != kNoBlock) FreeBlock(pending.block);
  }
}

void SimRank::OnAnswer(const Pending& pending, const shm::Completion& answer, std::string* log) {
  TP_CHECK(answer.op == pending.request.op, "an answer has the operation of its request");
  if (answer.error == static_cast<uint32_t>(ErrorId::kPeerLost)) {
    if (!leaving_) state_ = State::kDoomed;
    return;
  }
  const shm::Op op = OpOf(pending.request);
  if (shm::IsStepNumbers(pending.request)) {
    TP_CHECK(answer.error == 0 || answer.error == static_cast<uint32_t>(ErrorId::kNonFinite),
             "what is said of a step shares the fate of its end");
    return;
  }
  if (op != shm::Op::kEndStep && job_->spec().IsFrozen(pending.request.chunk))
    return OnFrozen(pending, answer);
  if (op == shm::Op::kEndStep) return OnStepEnded(pending, answer, log);
  if (op == shm::Op::kFetch) return OnFetched(pending, answer);
  TP_CHECK(answer.error == 0, "an honest request succeeds");
  if (pending.duplicate) return;
  if (op == shm::Op::kPutWeights) ++puts_answered_;
  answered_.push_back(pending.request);
}

// True when this chunk was put wrong, under any of the places where the job lists it.
bool SimRank::HasPutWrong(size_t index) const {
  for (size_t i = 0; i < frozen_.size(); ++i) {
    if (frozen_[i].wrong && job_->spec().frozen[i].content == job_->spec().frozen[index].content)
      return true;
  }
  return false;
}

void SimRank::OnFrozen(const Pending& pending, const shm::Completion& answer) {
  const size_t index = pending.request.chunk - job_->spec().chunks.size();
  Frozen& frozen = frozen_[index];
  const auto error = static_cast<ErrorId>(answer.error);
  switch (OpOf(pending.request)) {
    case shm::Op::kClaimFrozen:
      TP_CHECK(
          error == ErrorId::kNone || (error == ErrorId::kContentMismatch && HasPutWrong(index)),
          "only wrong bytes are rejected");
      frozen_rejected_ += error != ErrorId::kNone ? 1 : 0;
      frozen.state = error != ErrorId::kNone ? Frozen::State::kAsk
                     : answer.bytes == 0     ? Frozen::State::kPut
                                             : Frozen::State::kAlreadyPresent;
      frozen.bytes_sent = frozen.puts_out = 0;
      frozen.lost = false;
      frozen.wrong = frozen.state == Frozen::State::kPut && plan_->Has(Fault::kNonFinite) &&
                     random_->Below(4) == 0;
      return;
    case shm::Op::kPutWeights:
      --frozen.puts_out;
      frozen.lost = frozen.lost || error != ErrorId::kNone;
      TP_CHECK(error == ErrorId::kNone || error == ErrorId::kUploadLost ||
                   error == ErrorId::kChunkFrozen,
               "a put can be too late");
      return;
    default: break;
  }
  TP_CHECK(error == ErrorId::kNone, "what is there can be fetched");
  const uint64_t element = BytesOf(job_->spec().frozen[index].dtype);
  const auto& content = SimJob::ContentOf(job_->spec().frozen[index].content);
  const bool same = std::memcmp(BlockBytes(pending.block),
                                content.data() + pending.request.element_begin * element,
                                pending.request.element_count * element) == 0;
  TP_CHECK(same, "a fetch delivers what the chunk's name says");
  ++frozen_fetched_;
}

void SimRank::OnFetched(const Pending& pending, const shm::Completion& answer) {
  const Version version = pending.request.version;
  if (answer.error != 0) {
    // The rank had ended its step before the server died, so nobody needs these bytes.
    const bool passed_over = answer.error == static_cast<uint32_t>(ErrorId::kVersionGone) &&
                             pending.sent_again && version < job_->sealed();
    TP_CHECK(passed_over, "an honest fetch succeeds");
    return;
  }
  // The answer may have waited in the ring while later steps were sealed, or the job was made anew;
  // the twin knows two versions.
  if (life_ != job_->lives() || version + 1 < job_->sealed()) return;
  const uint64_t bytes =
      pending.request.element_count * BytesOf(job_->spec().DTypeOf(pending.request.chunk));
  const std::string wrong =
      job_->Compare(version, pending.request.chunk, pending.request.element_begin,
                    {BlockBytes(pending.block), bytes});
  TP_CHECK(wrong.empty(), ("a fetch delivered wrong parameters: " + wrong).c_str());
}

void SimRank::OnStepEnded(const Pending& pending, const shm::Completion& answer, std::string* log) {
  const Version version = pending.request.version;
  if (pending.duplicate) {
    TP_CHECK(answer.error == 0 && answer.version == version + 1, "a step that is sealed stays so");
    return;
  }
  attempt_.Follow(pending.request, static_cast<ErrorId>(answer.error), shm::kAbiVersion);
  if (answer.error == static_cast<uint32_t>(ErrorId::kNonFinite)) {
    TP_CHECK(job_->spec().loss_scaling == 0 && version == version_,
             "a step is refused only without loss scaling");
    BeginStep(version_);
    Say(log, "must repeat step " + std::to_string(version_));
    return;
  }
  TP_CHECK(answer.error == 0 && answer.version == version_ + 1,
           "a step ends with the next version");
  BeginStep(answer.version);
  answered_.push_back(pending.request);
}

// --- going away ---

void SimRank::Gone() {
  ends_.reset();
  granted_.reset();
  pending_.clear();
  answered_.clear();
  state_ = State::kAbsent;
  connection_ = nonce_ = 0;
  lost_since_ns_ = 0;
  server_lost_ = states_lost_ = leaving_ = saving_ = false;
}

void SimRank::Die() {
  if (connection_ != 0) world_->Post(ConnectionLost{connection_, "killed by the simulation"});
  Gone();
}

void SimRank::Leave() {
  leaving_ = true;
  state_ = State::kLeaving;
  if (connection_ != 0) world_->Post(Goodbye{connection_});
}

void SimRank::Save() {
  saving_ = true;
  world_->Post(SaveWeights{connection_, UniqueFd(), "w", version_});
}

}  // namespace tidepool::memserver
