#include "memserver/update/staging/spill_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "base/point.h"
#include "optim/undo_tile.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {
namespace {

constexpr uint32_t kNone = StateTier::kStagingSlots;

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
  Chunk& chunk = states_->chunk(task.chunk);
  chunk.pieces_left = chunk.pieces;
  tasks_.Push(task);
  if (ahead_ > 0) TakeOverAhead(task);
}

bool SpillQueue::ReadAhead(ChunkId chunk, uint32_t piece, uint64_t epoch) {
  if (over_ || riding_ >= kRidesMax ||
      !tier_->HasStagingToSpare(states_->chunk(chunk).spill.directory))
    return false;
  BeginRide({Kind::kUpdate, chunk, epoch}, piece, 0, Ahead::kYes);
  return true;
}

bool SpillQueue::GiveBackAhead(std::optional<ChunkId> chunk) {
  const uint32_t before = ahead_;
  for (uint32_t i = 0; i < rides_.size() && ahead_ > 0; ++i) {
    Ride& ride = rides_[i];
    if (ride.ahead != Ahead::kYes || ride.task.chunk != chunk.value_or(ride.task.chunk)) continue;
    --ahead_;
    ride.ahead = Ahead::kGivenBack;
    if (ride.state == State::kReady) EndRide(i);
  }
  return ahead_ < before;
}

// What is ahead of the newest task goes on as if that had begun it: its first pieces, where it is
// the next to be begun. The rest would be begun again.
void SpillQueue::TakeOverAhead(const Task& task) {
  while (tasks_.size() == 1) {
    const auto it = std::find_if(rides_.begin(), rides_.end(), [&](const Ride& ride) {
      return ride.ahead == Ahead::kYes && ride.task.chunk == task.chunk &&
             ride.task.epoch == task.epoch && ride.piece == next_piece_;
    });
    if (it == rides_.end()) break;
    it->ahead = Ahead::kNo;
    --ahead_;
    unpaid_bytes_ += 2 * PayloadOf(*it);
    PassPiece();
  }
  GiveBackAhead(task.chunk);
}

void SpillQueue::PassPiece() {
  if (++next_piece_ < states_->chunk(tasks_.Front().chunk).pieces) return;
  tasks_.Pop();
  next_piece_ = 0;
}

uint64_t SpillQueue::BeginNext() {
  if (over_ || tasks_.empty() || riding_ >= kRidesMax) return 0;
  const Task task = tasks_.Front();
  const Chunk& chunk = states_->chunk(task.chunk);
  if (!tier_->HasStaging(chunk.spill.directory)) return 0;
  const uint32_t piece = next_piece_;
  PassPiece();
  // A server before this one may have stored some pieces.
  const bool stored = task.kind == Kind::kStore &&
                      ProgressOf(chunk, piece)->Load().state == optim::Progress::State::kFinished;
  if (!stored) return BeginRide(task, piece) + std::exchange(unpaid_bytes_, 0);
  EndPiece(task);
  return 1;
}

uint64_t SpillQueue::BeginRide(const Task& task, uint32_t piece, uint32_t times_put_off,
                               Ahead ahead) {
  const auto staging = tier_->TakeStaging(states_->chunk(task.chunk).spill.directory);
  TP_CHECK(staging.has_value(), "there was staging");
  ++riding_;
  ahead_ += ahead == Ahead::kYes ? 1 : 0;
  rides_[*staging] = Ride{.state = State::kReady,
                          .ahead = ahead,
                          .task = task,
                          .piece = piece,
                          .number = ++numbers_,
                          .times_put_off = times_put_off};
  if (task.kind != Kind::kStore) Move(*staging, nvme::IoKind::kRead, task.epoch);
  return PayloadOf(rides_[*staging]) * (task.kind == Kind::kUpdate ? 2 : 1);
}

// Those that are due now, oldest first.
bool SpillQueue::BeginPutOff(int64_t now_ns) {
  bool begun = false;
  while (!over_ && riding_ < kRidesMax) {
    const auto due =
        std::find_if(put_off_.begin(), put_off_.end(),
                     [now_ns](const PutOffPiece& each) { return each.due_ns <= now_ns; });
    if (due == put_off_.end() || !tier_->HasStaging(due->last.directory)) break;
    const Unwritten last = due->last;
    put_off_.erase(due);
    const Task task{last.update ? Kind::kUpdate : Kind::kStore, last.chunk,
                    last.update ? last.epoch - 1 : last.epoch};
    // The update begins again from the slot before, so what was counted of it is forgotten.
    const Chunk& chunk = states_->chunk(last.chunk);
    if (last.update)
      ProgressOf(chunk, last.piece)->Store({chunk.version, 0, optim::Progress::State::kFinished});
    BeginRide(task, last.piece, last.times + 1);
    begun = true;
  }
  return begun;
}

int64_t SpillQueue::next_due_ns() const {
  int64_t due = INT64_MAX;
  for (const PutOffPiece& each : put_off_) due = std::min(due, each.due_ns);
  return due;
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
          .place = place.offset + slot * place.slot_bytes +
                   shm::PieceOffset(states_->spec(), ride.piece)};
}

PieceBuffer SpillQueue::PieceOf(uint32_t staging) const {
  const Ride& ride = rides_[staging];
  PieceBuffer piece = tier_->PieceIn(staging, PayloadOf(ride));
  piece.is = NameOf(ride, ride.task.epoch);
  piece.becomes =
      NameOf(ride, ride.task.kind == Kind::kUpdate ? ride.task.epoch + 1 : ride.task.epoch);
  return piece;
}

void SpillQueue::Move(uint32_t staging, nvme::IoKind kind, uint64_t epoch) {
  Ride& ride = rides_[staging];
  const bool read = kind == nvme::IoKind::kRead;
  ride.reads += read ? 1 : 0;
  if (std::byte* const stand_in = states_->stand_ins().Find(ride.task.chunk, ride.piece, epoch)) {
    const std::span<std::byte> image = tier_->Image(staging, PayloadOf(ride));
    std::memcpy(read ? image.data() : stand_in, read ? stand_in : image.data(), image.size());
    ride.state = State::kReady;
    if (!read) EndWrite(staging);
    return;
  }
  ride.state = read ? State::kReading : State::kWriting;
  const uint32_t directory = states_->chunk(ride.task.chunk).spill.directory;
  const uint64_t nonce = states_->record().nonce;
  tier_->Start({.kind = kind,
                .staging = staging,
                .directory = directory,
                .offset = NameOf(ride, epoch).place,
                .payload_bytes = PayloadOf(ride),
                .job = job_,
                .nonce = ride.task.chunk < states_->demoted() ? DemotedKey(nonce) : nonce,
                .chunk = ride.task.chunk,
                .piece = ride.piece});
}

uint32_t SpillQueue::OldestReady(bool updates) const {
  uint32_t oldest = kNone;
  for (uint32_t i = 0; i < rides_.size(); ++i) {
    const bool due = rides_[i].state == State::kReady && rides_[i].ahead == Ahead::kNo;
    if (!due || (rides_[i].task.kind == Kind::kUpdate) != updates) continue;
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
    work->from = states_->PutBytes(ride.task.chunk, begin);
    if (states_->is_split()) work->copy = states_->PutHighBytes(ride.task.chunk, begin);
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
    return ride.state == State::kAtWorker && ride.task.chunk == done.name.chunk &&
           ride.piece == done.name.index;
  });
  TP_CHECK(it != rides_.end(), "work on a spilled piece ends once");
  const auto staging = static_cast<uint32_t>(it - rides_.begin());
  if (over_) return EndRide(staging);
  if (!done.intact) {
    if (it->reads < kReadsMax) return Move(staging, nvme::IoKind::kRead, it->task.epoch);
    return Fail(staging, Status(ErrorId::kNvmeDataBad, Where(*it) + " cannot be trusted: " +
                                                           WhyNotIntact(PieceOf(staging))));
  }
  TP_POINT("server.piece_staged");
  if (it->task.kind != Kind::kUnstage)
    return Move(staging, nvme::IoKind::kWrite, PieceOf(staging).becomes.epoch);
  const Task task = it->task;
  EndRide(staging);
  EndPiece(task);
}

void SpillQueue::EndTransfer(const TierDone& done) {
  Ride& ride = rides_[done.staging];
  // It was not settled yet.
  const bool given_up = ride.state == State::kUnwritten && std::exchange(ride.out, false);
  TP_CHECK(ride.state == State::kReading || ride.state == State::kWriting || given_up,
           "a transfer ends once");
  // What failed ahead is read again when it is due.
  if (over_ || ride.ahead == Ahead::kGivenBack || (ride.ahead == Ahead::kYes && done.error != 0))
    return EndRide(done.staging);
  const bool read = done.kind == nvme::IoKind::kRead;
  if (done.error != 0 && read) {
    // The other slot never has this epoch.
    return Fail(done.staging,
                Status(ErrorId::kNvmeIoFailed, Where(ride) + " cannot be read at offset " +
                                                   std::to_string(done.offset) + ": " +
                                                   std::strerror(done.error))
                    .Where(tier_->directory(done.directory).path));
  }
  if (done.error != 0) {
    ride.state = State::kUnwritten;
    ride.error = done.error;
    ride.failed_at = done.offset;
    return;
  }
  if (!read) return EndWrite(done.staging);
  ride.state = State::kReady;
}

// The piece is where it will be looked for.
void SpillQueue::EndWrite(uint32_t staging) {
  const Ride& ride = rides_[staging];
  TP_POINT("server.piece_written");
  const Task task = ride.task;
  if (task.kind == Kind::kStore) {
    ProgressOf(states_->chunk(task.chunk), ride.piece)
        ->Store({0, 0, optim::Progress::State::kFinished});
    TP_POINT("server.piece_stored");
  }
  EndRide(staging);
  EndPiece(task);
}

bool SpillQueue::NextUnwritten(Unwritten* unwritten) const {
  const auto it = std::find_if(rides_.begin(), rides_.end(),
                               [](const Ride& ride) { return ride.state == State::kUnwritten; });
  if (it == rides_.end()) return false;
  *unwritten = {.staging = static_cast<uint32_t>(it - rides_.begin()),
                .chunk = it->task.chunk,
                .piece = it->piece,
                .directory = states_->chunk(it->task.chunk).spill.directory,
                .offset = it->failed_at,
                .error = it->error,
                .times = it->times_put_off,
                .out = it->out,
                .update = it->task.kind == Kind::kUpdate,
                .epoch = it->task.epoch + (it->task.kind == Kind::kUpdate ? 1 : 0)};
  return true;
}

bool SpillQueue::KeepInPool(const Unwritten& unwritten) {
  const Ride& ride = rides_[unwritten.staging];
  const StandIn at{.chunk = unwritten.chunk,
                   .piece = unwritten.piece,
                   .slot = static_cast<uint32_t>(unwritten.epoch % 2),
                   .error = unwritten.error,
                   .extent = {}};
  const auto image = tier_->Image(unwritten.staging, PayloadOf(ride));
  if (!states_->stand_ins().Add(at, image, states_->chunk(unwritten.chunk).record)) return false;
  EndWrite(unwritten.staging);
  return true;
}

void SpillQueue::GiveUp(const TierLate& late) {
  const uint32_t staging = late.transfer.staging;
  Ride& ride = rides_[staging];
  TP_CHECK(ride.state == State::kReading || ride.state == State::kWriting,
           "what is given up is out");
  ride.out = true;
  if (over_ || ride.ahead != Ahead::kNo) return EndRide(staging);
  if (ride.state == State::kReading) return FailStalled(staging, "read");
  // The system only reads of the memory: what is in it is whole.
  ride.state = State::kUnwritten;
  ride.error = ETIMEDOUT;
  ride.failed_at = late.offset;
}

void SpillQueue::FailUnwritten(const Unwritten& unwritten) {
  FailStalled(unwritten.staging, "written, and the pool has no room for it");
}

void SpillQueue::FailStalled(uint32_t staging, const char* what) {
  const Ride& ride = rides_[staging];
  const uint32_t directory = states_->chunk(ride.task.chunk).spill.directory;
  Fail(staging, Status(ErrorId::kNvmeStalled,
                       "the drive has not answered: " + Where(ride) + " cannot be " + what)
                    .Where(tier_->directory(directory).path));
}

void SpillQueue::PutOff(const Unwritten& unwritten, int64_t due_ns) {
  put_off_.push_back({unwritten, due_ns});
  EndRide(unwritten.staging);
}

void SpillQueue::EndRide(uint32_t staging) {
  Ride& ride = rides_[staging];
  ride.out ? tier_->Disown(staging) : tier_->ReturnStaging(staging);
  ahead_ -= ride.ahead == Ahead::kYes ? 1 : 0;
  ride.ahead = Ahead::kNo;
  ride.out = false;
  ride.state = State::kNone;
  --riding_;
}

void SpillQueue::EndPiece(const Task& task) {
  Chunk& chunk = states_->chunk(task.chunk);
  TP_CHECK(chunk.pieces_left > 0, "a piece ends once");
  if (--chunk.pieces_left > 0) return;
  // The upper halves of a split master are where they are fetched since they were put.
  const bool lacks_copy = chunk.planes.param16 != nullptr && !states_->is_split();
  if (task.kind == Kind::kStore && lacks_copy)
    return BeginTask({Kind::kUnstage, task.chunk, task.epoch});
  finished_.Push({task.chunk, task.kind == Kind::kUpdate});
}

bool SpillQueue::TakeFinished(Finished* finished) {
  if (over_ || finished_.empty()) return false;
  *finished = finished_.Front();
  finished_.Pop();
  return true;
}

std::string SpillQueue::Where(const Ride& ride) const {
  return "piece " + std::to_string(ride.piece) + " of chunk " + std::to_string(ride.task.chunk) +
         " of job " + std::to_string(job_) + " (" + states_->spec().name + ")";
}

void SpillQueue::Fail(uint32_t staging, Status why) {
  failure_ = std::move(why);
  EndRide(staging);
  Abandon();
}

bool SpillQueue::moving() const {
  return std::any_of(rides_.begin(), rides_.end(), [](const Ride& ride) {
    return ride.state == State::kReading || ride.state == State::kAtWorker ||
           ride.state == State::kWriting;
  });
}

void SpillQueue::Abandon() {
  over_ = true;
  put_off_.clear();
  for (uint32_t i = 0; i < rides_.size(); ++i) {
    if (rides_[i].state == State::kReady || rides_[i].state == State::kUnwritten) EndRide(i);
  }
}

}  // namespace tidepool::memserver
