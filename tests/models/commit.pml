/* The commit rule, undo tiles and redo: memserver/update/seal.cpp, memserver/update/update_queue.cpp, memserver/residency/kept/kept_records.h,
 * optim/undo_tile.{h,cpp}. Two workers; the server is killed at most CRASHES times, between any two stores, also in recovery.
 *
 * Each d_step of the process below is one store to kept memory, or one decision that changes no kept memory; `worker_at` and `loop_at` say
 * which store comes next. A killed process leaves its stores behind in program order, so a crash only forgets everything that is not kept.
 * A tile has two halves, so that it can be torn; a half counts the updates that it took, so that a lost or a repeated one shows.
 *
 * Checked: a published version has every tile of its chunk whole and updated once a sealed step; a restart finds the sealed step and its
 * record whole and finishes it with the gradients of that step; nothing of an unsealed step is applied; an open tile has its old values.
 *
 * Each TWIN_ below is one mistake, and must be found.
 */
#ifndef CRASHES
#define CRASHES 4
#endif
#ifndef STEPS
#define STEPS 2
#endif
#define WORKERS 2
#define AREAS (2 * WORKERS)
/* Chunk 0 has pieces 0 and 1, chunk 1 has piece 2. The longest piece uses its first undo area twice. */
#define PIECES 3
#define CHUNKS 2
#define CHUNK_OF(piece) ((piece) / 2)
#ifndef TILES0
#define TILES0 3
#endif
#ifndef TILES1
#define TILES1 1
#endif
#ifndef TILES2
#define TILES2 2
#endif
#define TILES_OF(piece) ((piece) == 0 -> TILES0 : ((piece) == 1 -> TILES1 : TILES2))
#define FIRST_HALF_OF(piece) ((piece) == 0 -> 0 : ((piece) == 1 -> 2 * TILES0 : 2 * (TILES0 + TILES1)))
#define HALVES (2 * (TILES0 + TILES1 + TILES2))
#define HALF(piece, tile, half) (FIRST_HALF_OF(piece) + 2 * (tile) + (half))
#define NONE 255

/* ------------------------------------------------------------------------------------------------ kept memory */

#define VALUE(piece, updates) (16 * (piece) + (updates))
byte planes[HALVES];

/* Progress words: one 64-bit value each. */
#define PROGRESS(piece, version, tile, state) (64 * (piece) + 16 * (version) + 4 * (tile) + (state))
#define PIECE_AT(word) ((word) / 64)
#define VERSION_AT(word) (((word) / 16) % 4)
#define TILE_AT(word) (((word) / 4) % 4)
#define STATE_AT(word) ((word) % 4)
#define CLOSED 0
#define OPEN 1
#define FINISHED 2
byte progress[PIECES];

/* Undo areas, two a worker. `piece` is the identity, piece + 1; 0: empty or being written. */
typedef Area {
  byte piece, version, tile, old0, old1
};
Area area[AREAS];

/* A step record has two parts, so that it can be torn; a CRC tells whether they belong together. */
byte record_version[2], record_scalars[2];
byte sealed_version;
byte chunk_version[CHUNKS];
byte gradient[CHUNKS];      /* the version that the gradient in the slot makes */
byte gradient_word[CHUNKS]; /* the version for which it is stored whole */

/* ------------------------------------------------------------------------------------------------ what a crash takes */

mtype = { kIdle, kSave, kSaveOld0, kSaveOld1, kName, kOpen, kWrite0, kWrite1, kFinish };
typedef Hand {
  mtype at;
  byte piece, tile;
};
Hand worker[WORKERS];

mtype = { kRestore0, kRestore1, kClose, kReady, kTurn, kStoreGradient, kSeal1, kSeal2, kOff, kOver };
mtype loop_at = kOff;
byte loop_piece, loop_chunk, loop_area;
byte due, done;        /* a bit a piece that waits for a worker; that a worker has finished and the loop has not heard of */
byte left_of[CHUNKS];  /* pieces_left of the running update */

/* ------------------------------------------------------------------------------------------------ the search's own */

byte crashes;
byte told; /* the sealed step that rank 0 has heard of */
hidden byte i, p, at, word;

/* Every half of the chunk took `version` updates. */
inline CheckWhole(chunk, version) {
  i = 0;
  do
  :: i < HALVES ->
     p = (i < 2 * TILES0 -> 0 : (i < 2 * (TILES0 + TILES1) -> 1 : 2));
     assert(CHUNK_OF(p) != chunk || planes[i] == VALUE(p, version));
     i++
  :: else -> break
  od;
  i = 0
}

/* Which progress word speaks of a piece. The twin keeps one a worker, with the piece in it, and believes the one that is furthest. */
inline FindProgress(which) {
#ifdef TWIN_PROGRESS_PER_WORKER
  word = NONE;
  at = 0;
  if
  :: PIECE_AT(progress[0]) == which && (PIECE_AT(progress[1]) != which || progress[0] >= progress[1]) -> word = 0; at = progress[0]
  :: PIECE_AT(progress[1]) == which && (PIECE_AT(progress[0]) != which || progress[0] < progress[1]) -> word = 1; at = progress[1]
  :: else
  fi
#else
  word = which;
  at = progress[word]
#endif
}

/* ------------------------------------------------------------------------------------------------ a worker: optim/undo_tile.cpp */

#ifdef TWIN_PROGRESS_PER_WORKER
#define WORD_OF(w) w
#else
#define WORD_OF(w) worker[w].piece
#endif
#ifdef TWIN_ONE_AREA
#define AREA_OF(w) area[2 * w]
#else
#define AREA_OF(w) area[2 * w + worker[w].tile % 2]
#endif

/* `loop_area` := the first area that names the open tile of the piece, or NONE when no tile is open. */
inline FindUndo(which) {
  FindProgress(which);
  loop_area = NONE;
  if
  :: STATE_AT(at) == OPEN ->
     assert(VERSION_AT(at) == sealed_version && chunk_version[CHUNK_OF(which)] < sealed_version);
     loop_area = 0;
     do
     :: loop_area < AREAS && area[loop_area].piece == which + 1 && area[loop_area].version == VERSION_AT(at) &&
        area[loop_area].tile == TILE_AT(at) -> break
     :: else -> loop_area++; assert(loop_area < AREAS) /* else the old values are lost */
     od
  :: else
  fi
}

#define OPEN_HALF(which, half) planes[HALF(which, TILE_AT(at), half)]
#define CLOSED_WORD(which) PROGRESS(which, VERSION_AT(at), TILE_AT(at), CLOSED)

/* WorkerTeam::RunThread takes the piece, TileUpdate::Run finds where to begin. */
inline TakePiece(w) {
  worker[w].piece = (due & 1 -> 0 : (due & 2 -> 1 : 2));
  due = due & ~(1 << worker[w].piece);
#ifdef TWIN_RESTORE_BY_WORKERS
  FindUndo(worker[w].piece);
  if
  :: loop_area != NONE ->
     OPEN_HALF(worker[w].piece, 0) = area[loop_area].old0;
     OPEN_HALF(worker[w].piece, 1) = area[loop_area].old1;
     progress[word] = CLOSED_WORD(worker[w].piece)
  :: else
  fi;
  loop_area = 0;
#endif
  FindProgress(worker[w].piece);
  assert(VERSION_AT(at) <= sealed_version && (VERSION_AT(at) != sealed_version || STATE_AT(at) != OPEN));
  worker[w].tile = (VERSION_AT(at) == sealed_version -> TILE_AT(at) : 0);
  if
  :: VERSION_AT(at) == sealed_version && STATE_AT(at) == FINISHED -> EndPiece(w)
  :: else -> worker[w].at = kSave
  fi
}

inline EndPiece(w) {
  done = done | (1 << worker[w].piece);
  worker[w].piece = 0;
  worker[w].tile = 0;
  worker[w].at = kIdle
}

inline WriteHalf(w, half) {
  assert(gradient[CHUNK_OF(worker[w].piece)] == sealed_version);
  planes[HALF(worker[w].piece, worker[w].tile, half)] = planes[HALF(worker[w].piece, worker[w].tile, half)] + 1
}

#define IS_LAST_TILE(w) (worker[w].tile + 1 == TILES_OF(worker[w].piece))
#define OLD(w, half) planes[HALF(worker[w].piece, worker[w].tile, half)]

active [WORKERS] proctype Worker() {
  do
  :: d_step { worker[_pid].at == kIdle && due != 0 -> TakePiece(_pid) }
  /* SaveTile */
  :: d_step {
       worker[_pid].at == kSave ->
#ifndef TWIN_AREA_NOT_EMPTIED
       AREA_OF(_pid).piece = 0;
#endif
       AREA_OF(_pid).version = sealed_version;
       AREA_OF(_pid).tile = worker[_pid].tile;
       worker[_pid].at = kSaveOld0
     }
  :: d_step { worker[_pid].at == kSaveOld0 -> AREA_OF(_pid).old0 = OLD(_pid, 0); worker[_pid].at = kSaveOld1 }
  :: d_step { worker[_pid].at == kSaveOld1 -> AREA_OF(_pid).old1 = OLD(_pid, 1); worker[_pid].at = kName }
  :: d_step {
       worker[_pid].at == kName ->
       AREA_OF(_pid).piece = worker[_pid].piece + 1;
#ifdef TWIN_PROGRESS_AFTER_WRITE
       worker[_pid].at = kWrite0
#else
       worker[_pid].at = kOpen
#endif
     }
  :: d_step {
       worker[_pid].at == kOpen ->
       progress[WORD_OF(_pid)] = PROGRESS(worker[_pid].piece, sealed_version, worker[_pid].tile, OPEN);
#ifdef TWIN_PROGRESS_AFTER_WRITE
       worker[_pid].at = kWrite1
#else
       worker[_pid].at = kWrite0;
#endif
#ifdef TWIN_PUBLISH_BEFORE_WRITE
       if
       :: IS_LAST_TILE(_pid) -> done = done | (1 << worker[_pid].piece)
       :: else
       fi
#endif
     }
  /* UpdateTile */
  :: d_step {
       worker[_pid].at == kWrite0 ->
       WriteHalf(_pid, 0);
#ifdef TWIN_PROGRESS_AFTER_WRITE
       worker[_pid].at = kOpen
#else
       worker[_pid].at = kWrite1
#endif
     }
  :: d_step {
       worker[_pid].at == kWrite1 ->
       WriteHalf(_pid, 1);
       if
       :: IS_LAST_TILE(_pid) -> worker[_pid].at = kFinish
       :: else -> worker[_pid].tile++; worker[_pid].at = kSave
       fi
     }
  :: d_step {
       worker[_pid].at == kFinish ->
       progress[WORD_OF(_pid)] = PROGRESS(worker[_pid].piece, sealed_version, 0, FINISHED);
#ifdef TWIN_PUBLISH_BEFORE_WRITE
       done = done & ~(1 << worker[_pid].piece);
#endif
       EndPiece(_pid)
     }
  :: loop_at == kOver -> break
  od
}

/* ------------------------------------------------------------------------------------------------ recovery and the serve loop */

inline NextToRestore() {
  loop_area = 0;
  loop_piece++;
  loop_at = kRestore0
}

#ifdef TWIN_ONE_RECORD
#define RECORD_OF(version) 0
#else
#define RECORD_OF(version) ((version) % 2)
#endif

/* What a restart demands of the step record (else it drops the job), then UpdateQueue::Begin for the chunks below the sealed version. */
inline BeginUpdate() {
  assert(record_version[RECORD_OF(sealed_version)] == sealed_version && record_scalars[RECORD_OF(sealed_version)] == sealed_version);
  p = 0;
  do
  :: p < PIECES && chunk_version[CHUNK_OF(p)] != sealed_version ->
     assert(chunk_version[CHUNK_OF(p)] + 1 == sealed_version);
     due = due | (1 << p);
     left_of[CHUNK_OF(p)]++;
     p++
  :: p < PIECES && chunk_version[CHUNK_OF(p)] == sealed_version -> p++
  :: else -> break
  od;
  loop_at = kTurn
}

#define IS_COMPLETE(chunk) (gradient_word[chunk] == sealed_version + 1)
#define IS_PUBLISHED(chunk) (chunk_version[chunk] == sealed_version)
#ifdef TWIN_GRADIENT_EARLY
#define MAY_STORE(chunk) (sealed_version < STEPS && !IS_COMPLETE(chunk))
#else
#define MAY_STORE(chunk) (sealed_version < STEPS && !IS_COMPLETE(chunk) && IS_PUBLISHED(chunk))
#endif

/* A rank has fetched the chunk, and sends its gradient; again after a crash, because it has no answer. */
inline StoreGradient(chunk) {
#ifndef TWIN_GRADIENT_EARLY
  CheckWhole(chunk, sealed_version);
#endif
#ifdef TWIN_GRADIENT_WORD_FIRST
  gradient_word[chunk] = sealed_version + 1;
#else
  gradient[chunk] = sealed_version + 1;
#endif
  loop_chunk = chunk;
  loop_at = kStoreGradient
}

active proctype ServeLoop() {
  do
  /* Recovery: RestoreOpenTile for every piece, then the workers begin. */
  :: d_step {
       loop_at == kRestore0 && loop_piece < PIECES ->
       assert(sealed_version >= told);
#ifdef TWIN_RESTORE_BY_WORKERS
       loop_area = NONE;
#else
       FindUndo(loop_piece);
#endif
       if
       :: loop_area == NONE -> NextToRestore()
       :: else ->
#ifdef TWIN_CLOSED_BEFORE_RESTORED
          progress[word] = CLOSED_WORD(loop_piece);
#endif
#ifdef TWIN_NOT_RESTORED
          loop_at = kClose
#else
          OPEN_HALF(loop_piece, 0) = area[loop_area].old0;
          loop_at = kRestore1
#endif
       fi
     }
  :: d_step { loop_at == kRestore1 -> FindProgress(loop_piece); OPEN_HALF(loop_piece, 1) = area[loop_area].old1; loop_at = kClose }
  :: d_step { loop_at == kClose -> FindProgress(loop_piece); progress[word] = CLOSED_WORD(loop_piece); NextToRestore() }
  :: d_step { loop_at == kRestore0 && loop_piece == PIECES -> loop_piece = 0; loop_at = kReady }
  :: d_step {
       loop_at == kReady ->
       if
       :: IS_PUBLISHED(0) -> CheckWhole(0, sealed_version)
       :: else
       fi;
       if
       :: IS_PUBLISHED(1) -> CheckWhole(1, sealed_version)
       :: else
       fi;
       BeginUpdate()
     }
  /* UpdateQueue::EndWork; Publish is one store. */
  :: d_step {
       loop_at == kTurn && done != 0 ->
       p = (done & 1 -> 0 : (done & 2 -> 1 : 2));
       done = done & ~(1 << p);
       left_of[CHUNK_OF(p)]--;
       if
       :: left_of[CHUNK_OF(p)] == 0 -> at = CHUNK_OF(p); CheckWhole(at, sealed_version); chunk_version[at] = sealed_version
       :: else
       fi
     }
  /* GradientIntake: the bytes, then the gradient word. */
  :: d_step { loop_at == kTurn && MAY_STORE(0) -> StoreGradient(0) }
  :: d_step { loop_at == kTurn && MAY_STORE(1) -> StoreGradient(1) }
  :: d_step {
       loop_at == kStoreGradient ->
#ifdef TWIN_GRADIENT_WORD_FIRST
       gradient[loop_chunk] = sealed_version + 1;
#else
       gradient_word[loop_chunk] = sealed_version + 1;
#endif
       loop_chunk = 0;
       loop_at = kTurn
     }
  /* SealStep: the record, then the sealed version. */
  :: d_step {
       loop_at == kTurn && IS_COMPLETE(0) && IS_COMPLETE(1) && IS_PUBLISHED(0) && IS_PUBLISHED(1) ->
#ifdef TWIN_SEALED_BEFORE_RECORD
       sealed_version++;
#else
       record_version[RECORD_OF(sealed_version + 1)] = sealed_version + 1;
#endif
       loop_at = kSeal1
     }
  :: d_step {
       loop_at == kSeal1 ->
#ifdef TWIN_SEALED_BEFORE_RECORD
       record_version[RECORD_OF(sealed_version)] = sealed_version;
#else
       record_scalars[RECORD_OF(sealed_version + 1)] = sealed_version + 1;
#endif
       loop_at = kSeal2
     }
  :: d_step {
       loop_at == kSeal2 ->
#ifdef TWIN_SEALED_BEFORE_RECORD
       record_scalars[RECORD_OF(sealed_version)] = sealed_version;
#else
       sealed_version++;
#endif
       told = sealed_version;
       BeginUpdate()
     }
  :: d_step { loop_at == kTurn && sealed_version == STEPS && IS_PUBLISHED(0) && IS_PUBLISHED(1) -> loop_at = kOver } -> break
  od
}

/* kill -9. What lies in an area that is marked as empty is written before it is read: forgotten here, so that equal states look equal. */
active proctype Crash() {
  do
  :: d_step {
       loop_at != kOff && loop_at != kOver && crashes < CRASHES ->
       crashes++;
       due = 0; done = 0; left_of[0] = 0; left_of[1] = 0;
       worker[0].at = kIdle; worker[0].piece = 0; worker[0].tile = 0;
       worker[1].at = kIdle; worker[1].piece = 0; worker[1].tile = 0;
       loop_piece = 0; loop_chunk = 0; loop_area = 0;
       loop_at = kRestore0;
       i = 0;
       do
       :: i < AREAS ->
          if
          :: area[i].piece == 0 -> area[i].version = 0; area[i].tile = 0; area[i].old0 = 0; area[i].old1 = 0
          :: else
          fi;
          i++
       :: else -> break
       od;
       i = 0
     }
  :: loop_at == kOver -> break
  od
}

init {
  d_step {
    i = 0;
    do
    :: i < HALVES -> planes[i] = VALUE((i < 2 * TILES0 -> 0 : (i < 2 * (TILES0 + TILES1) -> 1 : 2)), 0); i++
    :: else -> break
    od;
    worker[0].at = kIdle; worker[1].at = kIdle;
    progress[0] = PROGRESS(0, 0, 0, FINISHED); progress[1] = PROGRESS(1, 0, 0, FINISHED);
#ifndef TWIN_PROGRESS_PER_WORKER
    progress[2] = PROGRESS(2, 0, 0, FINISHED);
#endif
    loop_at = kReady
  }
}
