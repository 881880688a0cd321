/* Gradient accumulation: memserver/update/gradient_intake.cpp (Accept, StartGradient, KeepStaged, EndWork, Drop, Recover, RecoverStaged),
 * memserver/loop/dispatcher.cpp (IsApplied), optim/undo_tile.cpp (TileUpdate::Add). Two ranks with a shard each, two workers; the server is
 * killed at most CRASHES times, between any two stores, also in recovery; the open step is dropped at most once, as when a rank dies.
 *
 * As in commit.pml, a d_step is one store to kept memory or one decision, and a crash forgets what is not kept. The ranks outlive the server:
 * they send what was not answered again, in order. The first micro-batch of a shard is copied straight into its slot; each later one goes to
 * the staging buffer of its rank, is recorded as pending, and is added tile by tile.
 *
 * Checked: a gradient word counts a micro-batch when the slot holds it whole and once; an answered micro-batch is never lost; a rank that
 * resends never looks like a violator; a worker adds only what it was given.
 *
 * Each TWIN_ below is one mistake, and must be found.
 */
#ifndef CRASHES
#define CRASHES 4
#endif
#ifndef DROPS
#define DROPS 1
#endif
#ifndef MICRO_BATCHES
#define MICRO_BATCHES 3
#endif
#ifndef TILES
#define TILES 2
#endif
#ifndef RANKS
#define RANKS 1
#endif
#define WORKERS 2
#define AREAS (2 * WORKERS)
#define NONE 255

/* ------------------------------------------------------------------------------------------------ kept memory */

/* What a half of a tile has in it: two bits a micro-batch, which count how often it was added. */
#define ADDEND(micro) (1 << (2 * (micro)))
#define SUM(count) ((ADDEND(count) - 1) / 3)
#define HALF(rank, tile, half) (2 * ((rank) * TILES + (tile)) + (half))
byte slot[2 * RANKS * TILES];
/* What the halves of a rank's staging buffer come from. */
#define GRADIENT(of_attempt, micro) (1 + 8 * (of_attempt) + (micro))
byte staging[2 * RANKS];

byte attempt;                                 /* open_step; the version never changes here */
byte word_attempt[RANKS], word_count[RANKS];  /* the gradient words: one store each */

#define CLOSED 0
#define OPEN 1
#define FINISHED 2
typedef StagingRecord {
  byte pending, of_attempt, micro, last_sequence;
  byte sequence, tile, state /* the progress word: one store */
};
StagingRecord staged[RANKS];

typedef Area {
  byte piece, sequence, tile, old0, old1
};
Area area[AREAS];

/* ------------------------------------------------------------------------------------------------ what a crash takes */

mtype = { kIdle, kSave, kSaveOld0, kSaveOld1, kName, kOpen, kAdd0, kAdd1, kFinish };
typedef Hand {
  mtype at;
  byte rank, sequence, tile, gradient
};
Hand worker[WORKERS];

mtype = { kCount, kRestore0, kRestore1, kClose, kForget, kClear, kTurn, kCopy0, kCopy1, kStored, kUnpend, kSequence, kSettle, kNote, kPend,
          kAnswer, kFree, kOff, kOver };
mtype loop_at = kOff;
byte loop_rank, loop_area;
byte arrived[RANKS];  /* requests that came in this life of the server; those before were answered */
byte accepted[RANKS], begun[RANKS], stored[RANKS];
bool busy[RANKS];     /* staging_busy_ */
bool due[RANKS];      /* an addition waits for a worker */
byte done[RANKS];     /* the gradient that a worker has added, and the loop has not heard of */
byte at_workers, stale_at_workers;
bool recovered;       /* the workers may begin */

/* ------------------------------------------------------------------------------------------------ the ranks; the search's own */

byte answered[RANKS]; /* micro-batches that the rank may forget */
byte crashes, drops;
hidden byte i;

inline CheckSum(of_rank, count) {
  i = 0;
  do
  :: i < 2 * TILES -> assert(slot[HALF(of_rank, 0, i)] == SUM(count)); i++
  :: else -> break
  od;
  i = 0
}

/* ------------------------------------------------------------------------------------------------ a worker: TileUpdate::Add */

#ifdef TWIN_ONE_AREA
#define MY_AREA area[2 * _pid]
#else
#define MY_AREA area[2 * _pid + worker[_pid].tile % 2]
#endif
#define MY_PROGRESS staged[worker[_pid].rank]
#define MY_SLOT(half) slot[HALF(worker[_pid].rank, worker[_pid].tile, half)]

inline StoreProgress(of_rank, of_sequence, of_tile, of_state) {
  staged[of_rank].sequence = of_sequence;
  staged[of_rank].tile = of_tile;
  staged[of_rank].state = of_state
}

inline Add(half) {
  assert(staging[2 * worker[_pid].rank + half] == worker[_pid].gradient);
  MY_SLOT(half) = MY_SLOT(half) + ADDEND((worker[_pid].gradient - 1) % 8)
}

inline EndAddition() {
  done[worker[_pid].rank] = worker[_pid].gradient;
  worker[_pid].rank = 0;
  worker[_pid].sequence = 0;
  worker[_pid].tile = 0;
  worker[_pid].gradient = 0;
  worker[_pid].at = kIdle
}

/* FirstTile of undo_tile.cpp, with its three checks. */
inline TakeAddition() {
  worker[_pid].rank = (due[0] -> 0 : RANKS - 1);
  due[worker[_pid].rank] = false;
  at_workers++;
  assert(MY_PROGRESS.pending != 0 && MY_PROGRESS.of_attempt == attempt);
  worker[_pid].sequence = MY_PROGRESS.pending;
  worker[_pid].gradient = GRADIENT(MY_PROGRESS.of_attempt, MY_PROGRESS.micro);
  if
  :: MY_PROGRESS.sequence == worker[_pid].sequence && MY_PROGRESS.state == FINISHED -> EndAddition()
  :: else ->
     assert(MY_PROGRESS.state != OPEN);
     assert(MY_PROGRESS.sequence <= worker[_pid].sequence);
     assert(MY_PROGRESS.sequence == worker[_pid].sequence || MY_PROGRESS.state == FINISHED || MY_PROGRESS.tile == 0);
     worker[_pid].tile = (MY_PROGRESS.sequence == worker[_pid].sequence -> MY_PROGRESS.tile : 0);
     worker[_pid].at = kSave
  fi
}

active [WORKERS] proctype Worker() {
  do
  :: d_step { worker[_pid].at == kIdle && (due[0] || due[RANKS - 1]) && recovered -> TakeAddition() }
  :: d_step {
       worker[_pid].at == kSave ->
       MY_AREA.piece = 0;
       MY_AREA.sequence = worker[_pid].sequence;
       MY_AREA.tile = worker[_pid].tile;
       worker[_pid].at = kSaveOld0
     }
  :: d_step { worker[_pid].at == kSaveOld0 -> MY_AREA.old0 = MY_SLOT(0); worker[_pid].at = kSaveOld1 }
  :: d_step { worker[_pid].at == kSaveOld1 -> MY_AREA.old1 = MY_SLOT(1); worker[_pid].at = kName }
  :: d_step { worker[_pid].at == kName -> MY_AREA.piece = worker[_pid].rank + 1; worker[_pid].at = kOpen }
  :: d_step {
       worker[_pid].at == kOpen ->
       StoreProgress(worker[_pid].rank, worker[_pid].sequence, worker[_pid].tile, OPEN);
       worker[_pid].at = kAdd0
     }
  :: d_step { worker[_pid].at == kAdd0 -> Add(0); worker[_pid].at = kAdd1 }
  :: d_step {
       worker[_pid].at == kAdd1 ->
       Add(1);
       worker[_pid].tile++;
       worker[_pid].at = (worker[_pid].tile < TILES -> kSave : kFinish)
     }
  :: d_step { worker[_pid].at == kFinish -> StoreProgress(worker[_pid].rank, worker[_pid].sequence, 0, FINISHED); EndAddition() }
  :: loop_at == kOver -> break
  od
}

/* ------------------------------------------------------------------------------------------------ the serve loop, for one rank */

#define RANK (_pid - WORKERS)
#define MINE loop_rank == RANK
#define ME staged[RANK]

/* One half of all tiles. */
inline CopyStraight(half) {
  i = 0;
  do
  :: i < TILES -> slot[HALF(RANK, i, half)] = SUM(1); i++
  :: else -> break
  od;
  i = 0
}

/* StartGradient: the first half of the copy is its first store. */
inline Begin() {
  loop_rank = RANK;
  if
  :: begun[RANK] == 0 -> CopyStraight(0); loop_at = kCopy1
  :: else -> busy[RANK] = true;
#ifdef TWIN_PENDING_BEFORE_COPY
     loop_at = kUnpend
#else
     staging[2 * RANK] = GRADIENT(attempt, begun[RANK]);
     loop_at = kCopy1
#endif
  fi
}

/* JobStates::AddStored: one more micro-batch lies in the slot. */
inline StoreWord() {
  stored[RANK]++;
  CheckSum(RANK, stored[RANK]);
  word_attempt[RANK] = attempt;
  word_count[RANK] = stored[RANK]
}

inline EndTurn() {
  loop_rank = 0;
  loop_at = kTurn
}

#ifdef TWIN_STALE_NOT_AWAITED
#define MAY_BEGIN (begun[RANK] < accepted[RANK] && (begun[RANK] == 0 || !busy[RANK]))
#else
#define MAY_BEGIN (begun[RANK] < accepted[RANK] && (begun[RANK] == 0 || !busy[RANK]) && stale_at_workers == 0)
#endif

/* GradientIntake::Drop. The ranks begin the step again. */
inline Drop() {
  drops++;
  attempt++;
  stale_at_workers = stale_at_workers + at_workers;
  at_workers = 0;
  i = 0;
  do
  :: i < RANKS ->
     arrived[i] = 0; accepted[i] = 0; begun[i] = 0; stored[i] = 0; answered[i] = 0;
     busy[i] = false; due[i] = false;
     i++
  :: else -> break
  od;
  i = 0
}

active [RANKS] proctype ServeRank() {
  do
  /* A request comes: again, when it was sent to the last server and not answered (IsApplied), or for the first time (Accept). */
  :: d_step {
       loop_at == kTurn && arrived[RANK] < MICRO_BATCHES ->
       assert(arrived[RANK] <= accepted[RANK]); /* else an answered one was lost */
       if
       :: arrived[RANK] < accepted[RANK] ->
#ifdef TWIN_RESENT_APPLIED
          begun[RANK] = arrived[RANK]
#else
          answered[RANK]++
#endif
       :: else -> accepted[RANK]++
       fi;
       arrived[RANK]++
     }
  :: d_step { loop_at == kTurn && MAY_BEGIN -> Begin() }
  :: d_step {
       loop_at == kCopy1 && MINE ->
       if
       :: begun[RANK] == 0 -> CopyStraight(1); loop_at = kStored
#ifdef TWIN_PENDING_BEFORE_COPY
       :: else -> staging[2 * RANK + 1] = GRADIENT(attempt, begun[RANK]); due[RANK] = true; loop_at = kAnswer
#else
       :: else -> staging[2 * RANK + 1] = GRADIENT(attempt, begun[RANK]); loop_at = kUnpend
#endif
       fi
     }
  /* EndGradient, straight: AddStored, then the answer. */
  :: d_step {
       loop_at == kStored && MINE ->
       StoreWord();
       loop_at = kAnswer
     }
  /* KeepStaged, then the answer. The progress word may have been left in the middle of an addition that a drop forgot: it is closed first. */
  :: d_step {
       loop_at == kUnpend && MINE ->
       ME.pending = 0;
#ifdef TWIN_ANSWERED_BEFORE_PENDING
       answered[RANK]++;
#endif
       loop_at = kSequence
     }
#if defined(TWIN_DROPPED_LEFT_OPEN)
  :: d_step { loop_at == kSequence && MINE -> ME.last_sequence++; loop_at = kNote }
#elif defined(TWIN_SEQUENCE_USED_AGAIN)
  :: d_step { loop_at == kSequence && MINE -> ME.last_sequence = 1; loop_at = kSettle }
#else
  :: d_step { loop_at == kSequence && MINE -> ME.last_sequence++; loop_at = kSettle }
#endif
#ifndef TWIN_DROPPED_LEFT_OPEN
  :: d_step { loop_at == kSettle && MINE -> StoreProgress(RANK, ME.last_sequence - 1, 0, FINISHED); loop_at = kNote }
#endif
  :: d_step { loop_at == kNote && MINE -> ME.of_attempt = attempt; ME.micro = begun[RANK]; loop_at = kPend }
#ifdef TWIN_PENDING_BEFORE_COPY
  :: d_step { loop_at == kPend && MINE -> ME.pending = ME.last_sequence; loop_at = kCopy0 }
  :: d_step { loop_at == kCopy0 && MINE -> staging[2 * RANK] = GRADIENT(attempt, begun[RANK]); loop_at = kCopy1 }
#else
  :: d_step { loop_at == kPend && MINE -> ME.pending = ME.last_sequence; due[RANK] = true; loop_at = kAnswer }
#endif
  :: d_step {
       loop_at == kAnswer && MINE ->
#ifdef TWIN_ANSWERED_BEFORE_PENDING
       if
       :: begun[RANK] == 0 -> answered[RANK]++
       :: else
       fi;
#else
       answered[RANK]++;
#endif
       begun[RANK]++;
       EndTurn()
     }
  /* EndWork: the gradient word, then the staging buffer is free. */
  :: d_step {
       loop_at == kTurn && done[RANK] != 0 ->
       if
       :: (done[RANK] - 1) / 8 != attempt -> stale_at_workers--
       :: else ->
          at_workers--;
          busy[RANK] = false;
          loop_rank = RANK;
#ifdef TWIN_FREE_BEFORE_WORD
          ME.pending = 0;
#else
          StoreWord();
#endif
          loop_at = kFree
       fi;
       done[RANK] = 0
     }
  :: d_step {
       loop_at == kFree && MINE ->
#ifdef TWIN_FREE_BEFORE_WORD
       StoreWord();
#else
       ME.pending = 0;
#endif
       EndTurn()
     }
  :: d_step { loop_at == kTurn && RANK == 0 && drops < DROPS -> Drop() }
  :: loop_at == kOver -> break
  od
}

/* ------------------------------------------------------------------------------------------------ recovery */

#define IT staged[loop_rank]
#define OPEN_HALF(half) slot[HALF(loop_rank, IT.tile, half)]

inline NextRank() {
  loop_area = 0;
  loop_rank++;
  loop_at = kCount;
  if
  :: loop_rank == RANKS -> loop_rank = 0; recovered = true; loop_at = kTurn
  :: else
  fi
}

/* RecoverStaged, when the addition goes on. */
inline Resume() {
  busy[loop_rank] = true;
  accepted[loop_rank]++;
  begun[loop_rank]++;
  due[loop_rank] = true
}

inline CountRank() {
  stored[loop_rank] = (word_attempt[loop_rank] == attempt -> word_count[loop_rank] : 0);
  accepted[loop_rank] = stored[loop_rank];
  begun[loop_rank] = stored[loop_rank];
  arrived[loop_rank] = answered[loop_rank];
  if
#ifdef TWIN_ATTEMPT_FORGOTTEN
  :: IT.pending == 0 || IT.micro != stored[loop_rank] -> loop_at = kForget
#else
  :: IT.pending == 0 || IT.of_attempt != attempt || IT.micro != stored[loop_rank] -> loop_at = kForget
#endif
  :: else ->
     Resume();
     if
     :: IT.state != OPEN -> NextRank()
     :: else ->
        assert(IT.sequence == IT.pending);
        loop_area = 0;
        do
        :: area[loop_area].piece == loop_rank + 1 && area[loop_area].sequence == IT.sequence && area[loop_area].tile == IT.tile -> break
        :: else -> loop_area++; assert(loop_area < AREAS) /* else the old values are lost */
        od;
#ifdef TWIN_NOT_RESTORED
        loop_at = kClose
#else
        loop_at = kRestore0
#endif
     fi
  fi
}

#define IS_COMPLETE(rank) (answered[rank] == MICRO_BATCHES && word_attempt[rank] == attempt && word_count[rank] == MICRO_BATCHES)

active proctype Recovery() {
  do
  :: d_step { loop_at == kCount -> CountRank() }
  :: d_step { loop_at == kRestore0 -> OPEN_HALF(0) = area[loop_area].old0; loop_at = kRestore1 }
  :: d_step { loop_at == kRestore1 -> OPEN_HALF(1) = area[loop_area].old1; loop_at = kClose }
  :: d_step { loop_at == kClose -> IT.state = CLOSED; NextRank() }
  :: d_step { loop_at == kForget -> StoreProgress(loop_rank, IT.last_sequence, 0, FINISHED); loop_at = kClear }
  :: d_step { loop_at == kClear -> IT.pending = 0; NextRank() }
  :: d_step {
       loop_at == kTurn && IS_COMPLETE(0) && IS_COMPLETE(RANKS - 1) -> loop_at = kOver
     } -> break
  od
}

/* kill -9. What lies in an area that is marked as empty is written before it is read: forgotten here, so that equal states look equal. */
active proctype Crash() {
  do
  :: d_step {
       loop_at != kOff && loop_at != kOver && crashes < CRASHES ->
       crashes++;
       i = 0;
       do
       :: i < RANKS ->
          arrived[i] = 0; accepted[i] = 0; begun[i] = 0; stored[i] = 0;
          busy[i] = false; due[i] = false; done[i] = 0;
          i++
       :: else -> break
       od;
       i = 0;
       do
       :: i < WORKERS -> worker[i].at = kIdle; worker[i].rank = 0; worker[i].sequence = 0; worker[i].tile = 0; worker[i].gradient = 0; i++
       :: else -> break
       od;
       i = 0;
       do
       :: i < AREAS ->
          if
          :: area[i].piece == 0 -> area[i].sequence = 0; area[i].tile = 0; area[i].old0 = 0; area[i].old1 = 0
          :: else
          fi;
          i++
       :: else -> break
       od;
       i = 0;
       at_workers = 0; stale_at_workers = 0; recovered = false;
       loop_rank = 0; loop_area = 0;
       loop_at = kCount
     }
  :: loop_at == kOver -> break
  od
}

init {
  d_step {
    worker[0].at = kIdle; worker[1].at = kIdle;
    staged[0].state = FINISHED; staged[RANKS - 1].state = FINISHED;
    recovered = true;
    loop_at = kTurn
  }
}
