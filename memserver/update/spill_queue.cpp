#include "memserver/update/spill_queue.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/planted.h"
#include "base/point.h"
#include "optim/undo_tile.h"
#include "shm/spill.h"

namespace tidepool::memserver {
namespace {

constexpr uint32_t kNone = StateTier::kStagingSlots;
// Of the staging slots, for one job: another always finds some.
constexpr uint32_t kRidesMax = StateTier::kStagingSlots / 2;

}  // namespace

SpillQueue::SpillQueue(JobStates* states, JobId job, StateTier* tier)
    : states_(states),
      job_(job),
      tier_(tier),
      tasks_(static_cast<uint32_t>(states->chunks().size())),
      finished_(static_cast<uint32_t>(states->chunks().size())),
      rides_(StateTier::kStagingSlots) {
  TP_CHECK(tier != nullptr || !states->spills(), "a job that spills has a tier");
}

void SpillQueue::Store(ChunkId chunk) {
  BeginTask({Kind::kStore, chunk, 0});
}

void SpillQueue::Update(ChunkId chunk, uint64_t epoch) {
  BeginTask({Kind::kUpdate, chunk, epoch});
}

void SpillQueue::BeginTask(const Task& task) {
  states_->chunk(task.chunk).pieces_left = states_->chunk(task.chunk).pieces;
  tasks_.Push(task);
}

bool SpillQueue::FillAhead() {
  bool begun = false;
  while (!over_ && !tasks_.empty() && riding_ < kRidesMax && tier_->staging_free() > 0) {
    const Task task = tasks_.Front();
    const Chunk& chunk = states_->chunk(task.chunk);
    const uint32_t piece = next_piece_++;
    if (next_piece_ == chunk.pieces) {
      tasks_.Pop();
      next_piece_ = 0;
    }
    // A server before this one may have stored some pieces.
    const bool stored = task.kind == Kind::kStore && ProgressOf(chunk, piece)->Load().state == optim::Progress::State::kFinished;
    if (stored) {
      EndPiece(task);
    } else {
      BeginRide(task, piece);
    }
    begun = true;
  }
  return begun;
}

void SpillQueue::BeginRide(const Task& task, uint32_t piece) {
  const auto staging = tier_->TakeStaging();
  TP_CHECK(staging.has_value(), "there was staging");
  ++riding_;
  rides_[*staging] = {State::kReady, task, piece, 0, ++numbers_};
  if (task.kind != Kind::kStore) Move(*staging, nvme::IoKind::kRead, task.epoch);
}

uint64_t SpillQueue::ElementsOf(const Ride& ride) const {
  const uint64_t begin = ride.piece * shm::kPieceElements;
  return std::min(shm::kPieceElements, states_->chunk(ride.task.chunk).elements - begin);
}

uint64_t SpillQueue::PayloadOf(const Ride& ride) const {
  return shm::SpilledPieceBytes(states_->spec(), ElementsOf(ride));
}

nvme::PieceName SpillQueue::NameOf(const Ride& ride, uint64_t epoch) const {
  const SpillPlace& place = states_->chunk(ride.task.chunk).spill;
  const uint64_t slot = TP_PLANTED("update.one_slot") ? 0 : epoch % 2;
  return {.store = tier_->store_nonce(place.directory),
          .job = states_->record().nonce,
          .chunk = ride.task.chunk,
          .piece = ride.piece,
          .epoch = epoch,
          .place = place.offset + slot * place.slot_bytes + shm::PieceOffset(states_->spec(), ride.piece)};
}

StagedPiece SpillQueue::PieceOf(uint32_t staging) const {
  const Ride& ride = rides_[staging];
  StagedPiece piece = tier_->PieceIn(staging, PayloadOf(ride));
  piece.is = NameOf(ride, ride.task.epoch);
  piece.becomes = NameOf(ride, ride.task.kind == Kind::kUpdate ? ride.task.epoch + 1 : ride.task.epoch);
  return piece;
}

void SpillQueue::Move(uint32_t staging, nvme::IoKind kind, uint64_t epoch) {
  Ride& ride = rides_[staging];
  ride.state = kind == nvme::IoKind::kRead ? State::kReading : State::kWriting;
  ride.reads += kind == nvme::IoKind::kRead ? 1 : 0;
  const uint32_t directory = states_->chunk(ride.task.chunk).spill.directory;
  tier_->Start({kind, staging, directory, NameOf(ride, epoch).place, PayloadOf(ride), job_});
}

uint32_t SpillQueue::OldestReady(bool updates) const {
  uint32_t oldest = kNone;
  for (uint32_t i = 0; i < rides_.size(); ++i) {
    if (rides_[i].state != State::kReady || (rides_[i].task.kind == Kind::kUpdate) != updates) continue;
    if (oldest == kNone || rides_[i].number < rides_[oldest].number) oldest = i;
  }
  return oldest;
}

bool SpillQueue::NextUpdate(bool may_begin, ReadyPiece* ready) {
  const uint32_t staging = riding_ > 0 ? OldestReady(true) : kNone;
  if (staging == kNone) return false;
  Ride& ride = rides_[staging];
  const Chunk& chunk = states_->chunk(ride.task.chunk);
  if (chunk.state == ChunkState::kUpdateDue && (!may_begin || chunk.readers > 0)) return false;
  ride.state = State::kAtWorker;
  *ready = {ride.task.chunk, ride.piece, PieceOf(staging)};
  return true;
}

bool SpillQueue::NextLoadWork(Work* work) {
  const uint32_t staging = riding_ > 0 ? OldestReady(false) : kNone;
  if (staging == kNone) return false;
  Ride& ride = rides_[staging];
  ride.state = State::kAtWorker;
  const Chunk& chunk = states_->chunk(ride.task.chunk);
  const uint64_t begin = ride.piece * shm::kPieceElements;
  *work = Work{};
  work->staged = PieceOf(staging);
  work->count = ElementsOf(ride);
  work->name = {WorkKind::kStage, job_, 0, ride.task.chunk, ride.piece};
  if (ride.task.kind == Kind::kStore) {
    work->planes.count = work->count;
    PointIntoStaging(states_->spec(), work->staged.payload, &work->planes);
    work->from = states_->PutBytes(chunk, begin);
    if (states_->is_split()) work->copy = chunk.planes.param16 + begin * BytesOf(states_->spec().dtype);
    return true;
  }
  work->name.kind = WorkKind::kUnstage;
  work->to = chunk.planes.param16 + begin * BytesOf(states_->spec().dtype);
  work->from = work->staged.payload.data();
  work->dtype = states_->spec().dtype;
  return true;
}

void SpillQueue::EndWork(const WorkDone& done) {
  const auto it = std::find_if(rides_.begin(), rides_.end(), [&done](const Ride& ride) {
    return ride.state == State::kAtWorker && ride.task.chunk == done.name.chunk && ride.piece == done.name.index;
  });
  TP_CHECK(it != rides_.end(), "work on a spilled piece ends once");
  const auto staging = static_cast<uint32_t>(it - rides_.begin());
  if (over_) return EndRide(staging);
  if (!done.intact) {
    if (it->reads < kReadsMax) return Move(staging, nvme::IoKind::kRead, it->task.epoch);
    return Fail(staging, Status(ErrorId::kNvmeDataBad, Where(*it) + " cannot be trusted: " + WhyNotIntact(PieceOf(staging))));
  }
  TP_POINT("server.piece_staged");
  if (it->task.kind != Kind::kUnstage) return Move(staging, nvme::IoKind::kWrite, PieceOf(staging).becomes.epoch);
  const Task task = it->task;
  EndRide(staging);
  EndPiece(task);
}

void SpillQueue::EndTransfer(const TierDone& done) {
  Ride& ride = rides_[done.staging];
  TP_CHECK(ride.state == State::kReading || ride.state == State::kWriting, "a transfer ends once");
  if (over_) return EndRide(done.staging);
  const bool read = done.kind == nvme::IoKind::kRead;
  if (done.error != 0) {
    return Fail(done.staging, Status(ErrorId::kNvmeIoFailed, Where(ride) + " cannot be " + (read ? "read" : "written") + " at offset " +
                                                                 std::to_string(done.offset) + ": " + std::strerror(done.error))
                                  .Where(tier_->directory(done.directory).path));
  }
  if (read) {
    ride.state = State::kReady;
    return;
  }
  TP_POINT("server.piece_written");
  const Task task = ride.task;
  if (task.kind == Kind::kStore) {
    ProgressOf(states_->chunk(task.chunk), ride.piece)->Store({0, 0, optim::Progress::State::kFinished});
    TP_POINT("server.piece_stored");
  }
  EndRide(done.staging);
  EndPiece(task);
}

void SpillQueue::EndRide(uint32_t staging) {
  rides_[staging].state = State::kNone;
  tier_->ReturnStaging(staging);
  --riding_;
}

void SpillQueue::EndPiece(const Task& task) {
  Chunk& chunk = states_->chunk(task.chunk);
  TP_CHECK(chunk.pieces_left > 0, "a piece ends once");
  if (--chunk.pieces_left > 0) return;
  // The upper halves of a split master are where they are fetched since they were put.
  const bool lacks_copy = chunk.planes.param16 != nullptr && !states_->is_split();
  if (task.kind == Kind::kStore && lacks_copy) return BeginTask({Kind::kUnstage, task.chunk, task.epoch});
  finished_.Push({task.chunk, task.kind == Kind::kUpdate});
}

bool SpillQueue::TakeFinished(Finished* finished) {
  if (over_ || finished_.empty()) return false;
  *finished = finished_.Front();
  finished_.Pop();
  return true;
}

std::string SpillQueue::Where(const Ride& ride) const {
  return "piece " + std::to_string(ride.piece) + " of chunk " + std::to_string(ride.task.chunk) + " of job " + std::to_string(job_) + " (" +
         states_->spec().name + ")";
}

void SpillQueue::Fail(uint32_t staging, Status why) {
  failure_ = std::move(why);
  EndRide(staging);
  Abandon();
}

bool SpillQueue::moving() const {
  return std::any_of(rides_.begin(), rides_.end(),
                     [](const Ride& ride) { return ride.state != State::kNone && ride.state != State::kReady; });
}

void SpillQueue::Abandon() {
  over_ = true;
  for (uint32_t i = 0; i < rides_.size(); ++i) {
    if (rides_[i].state == State::kReady) EndRide(i);
  }
}

}  // namespace tidepool::memserver
