#include "tests/sim/sim_rank.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "tests/fakes/values.h"

namespace tidepool::memserver {
namespace {

constexpr uint64_t kBlockBytes = 6144;  // the largest shard: 1,536 elements of fp32
constexpr size_t kPendingMax = 5;

double Tolerance(DType dtype) {
  return dtype == DType::kF32 ? 1e-4 : dtype == DType::kBF16 ? 1.0 / 200 : 1.0 / 1000;
}

void Say(std::string* log, const std::string& what) {
  *log += what;
}

}  // namespace

void SimRank::Reserve() {
  connection_ = world_->Reserve(job_->spec(), rank_);
  state_ = State::kReserving;
}

void SimRank::On(const ReserveGranted& granted) {
  granted_ = std::make_unique<ReserveGranted>(granted);
  state_ = State::kGranted;
}

// The connection is closed by the control thread, which tells the loop so.
void SimRank::On(const Refused&) {
  Die();
}

void SimRank::On(const Attached& attached) {
  state_ = State::kRunning;
  loading_ = !attached.weights_ready;
  put_elements_.assign(job_->spec().chunks.size(), 0);
  puts_answered_ = puts_sent_ = 0;
  blocks_busy_.assign(job_->spec().rcache_bytes / kBlockBytes, false);
  BeginStep(attached.sealed_version);
  attempt_ = 0;
}

void SimRank::BeginStep(Version version) {
  version_ = version;
  submitted_.assign(job_->spec().chunks.size(), 0);
  ended_ = false;
}

std::vector<ChunkId> SimRank::MyChunks() const {
  std::vector<ChunkId> mine;
  for (ChunkId id = 0; id < job_->spec().chunks.size(); ++id) {
    if (job_->spec().IsMember(id, rank_)) mine.push_back(id);
  }
  return mine;
}

// A trainer knows this from its collectives, which the simulation does not have.
bool SimRank::WeightsReady() const {
  const Job* job = world_->tables().FindJob(job_->spec().name);
  return job != nullptr && job->IsRecorded() && job->states->weights_ready();
}

bool SimRank::TakeBlock(uint64_t* block) {
  const auto it = std::find(blocks_busy_.begin(), blocks_busy_.end(), false);
  if (it == blocks_busy_.end() || pending_.size() >= kPendingMax) return false;
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

// Scribbled over at once: the server may not read it any more.
void SimRank::FreeBlock(uint64_t block) {
  std::memset(BlockBytes(block), 0x5a, kBlockBytes);
  blocks_busy_[block] = false;
}

void SimRank::Poke(std::string* log) {
  switch (state_) {
    case State::kAbsent:
    case State::kReserving:
    case State::kAttaching: return;
    case State::kGranted:
      ends_ = world_->Attach(*granted_, rank_);
      state_ = State::kAttaching;
      return Say(log, "attaches");
    case State::kDoomed: Die(); return Say(log, "gives up");
    case State::kRunning: break;
  }
  TakeAnswers(log);
  if (state_ != State::kRunning) return;
  TP_CHECK(!ends_->Ended(), "the server does not end the session of an honest rank");
  if (loading_) {
    PutSome(log);
    return;
  }
  switch (random_->Below(4)) {
    case 0: FetchSome(log); return;
    case 1:
    case 2:
      if (SubmitSome(log)) return;
      [[fallthrough]];
    default: EndStep(log);
  }
}

bool SimRank::PutSome(std::string* log) {
  for (const ChunkId chunk : MyChunks()) {
    const uint64_t left = job_->spec().ShardElements(chunk) - put_elements_[chunk];
    uint64_t block = 0;
    if (left == 0) continue;
    if (!TakeBlock(&block)) return false;
    const uint64_t count = 1 + random_->Below(left);
    const uint64_t begin = ShardBegin(chunk) + put_elements_[chunk];
    auto* values = reinterpret_cast<float*>(BlockBytes(block));
    for (uint64_t i = 0; i < count; ++i) values[i] = job_->WeightAt(chunk, begin + i);
    put_elements_[chunk] += count;
    ++puts_sent_;
    pending_[ends_->Put(chunk, begin, count, BlockOffset(block))] = {shm::Op::kPutWeights, chunk, block, 0};
    Say(log, "puts chunk " + std::to_string(chunk));
    return true;
  }
  if (puts_answered_ == puts_sent_) loading_ = false;
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
  for (uint64_t i = 0; i < count; ++i) values[i] = job_->GradientAt(version_, micro_batch, chunk, ShardBegin(chunk) + i);
  Encode(job_->spec().dtype, values, BlockBytes(block));
  const FakeRank::Gradient gradient{chunk, ShardBegin(chunk), count, BlockOffset(block), version_, micro_batch};
  pending_[ends_->Submit(gradient)] = {shm::Op::kSubmitGradient, chunk, block, version_};
  Say(log, "submits chunk " + std::to_string(chunk) + " of version " + std::to_string(version_));
  return true;
}

bool SimRank::FetchSome(std::string* log) {
  const std::vector<ChunkId> mine = MyChunks();
  uint64_t block = 0;
  if (mine.empty() || !TakeBlock(&block)) return false;
  const ChunkId chunk = mine[random_->Below(mine.size())];
  // Behind the end of its step a rank may only ask for the next version: the present one may be overwritten at any time.
  const Version version = version_ + (ended_ ? 1 : 0);
  const uint64_t count = job_->spec().ShardElements(chunk);
  pending_[ends_->Fetch(chunk, ShardBegin(chunk), count, BlockOffset(block), version)] = {shm::Op::kFetch, chunk, block, version};
  Say(log, "fetches chunk " + std::to_string(chunk) + " of version " + std::to_string(version));
  return true;
}

bool SimRank::EndStep(std::string* log) {
  if (ended_) return false;
  for (const ChunkId chunk : MyChunks()) {
    if (submitted_[chunk] < job_->spec().micro_batches) return false;
  }
  if (!WeightsReady()) return false;  // a rank without chunks
  // Fetches of this version may still be in flight: the server reads them out before it updates their chunks.
  ended_ = true;
  const uint64_t counter = ends_->EndStep(version_, job_->learning_rate(version_), job_->loss_scale());
  pending_[counter] = {shm::Op::kEndStep, 0, kNoBlock, version_};
  Say(log, "ends step " + std::to_string(version_));
  return true;
}

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
  TP_CHECK(answer.op == static_cast<uint32_t>(pending.op), "an answer has the operation of its request");
  if (answer.error == static_cast<uint32_t>(ErrorId::kPeerLost)) {
    state_ = State::kDoomed;
    return;
  }
  if (pending.op == shm::Op::kEndStep) {
    OnStepEnded(answer, log);
    return;
  }
  TP_CHECK(answer.error == 0, "an honest request succeeds");
  if (pending.op == shm::Op::kPutWeights) ++puts_answered_;
  if (pending.op == shm::Op::kFetch) OnFetched(pending);
}

void SimRank::OnFetched(const Pending& pending) {
  const DType dtype = job_->spec().dtype;
  const std::vector<float> values = Decode(dtype, BlockBytes(pending.block), job_->spec().ShardElements(pending.chunk));
  // The answer may have waited in the ring while later steps were sealed; the model knows two versions.
  if (pending.version + 1 < job_->sealed()) return;
  const std::string wrong = job_->Compare(pending.version, pending.chunk, ShardBegin(pending.chunk), values, Tolerance(dtype));
  TP_CHECK(wrong.empty(), ("a fetch delivered wrong parameters: " + wrong).c_str());
}

void SimRank::OnStepEnded(const shm::Completion& answer, std::string* log) {
  if (answer.error == static_cast<uint32_t>(ErrorId::kNonFinite)) {
    TP_CHECK(job_->spec().loss_scaling == 0 && answer.version == version_, "a step is refused only without loss scaling");
    job_->BeginAttempt(++attempt_);
    BeginStep(version_);
    Say(log, "must repeat step " + std::to_string(version_));
    return;
  }
  TP_CHECK(answer.error == 0 && answer.version == version_ + 1, "a step ends with the next version");
  attempt_ = 0;
  BeginStep(answer.version);
}

void SimRank::Die() {
  world_->Post(ConnectionLost{connection_, "killed by the simulation"});
  ends_.reset();
  granted_.reset();
  pending_.clear();
  state_ = State::kAbsent;
}

void SimRank::Leave() {
  world_->Post(Goodbye{connection_});
  ends_.reset();
  granted_.reset();
  pending_.clear();
  state_ = State::kAbsent;
}

}  // namespace tidepool::memserver
