/* Copies that several threads make together: device/host/copy_team.cpp (Copy, Open, DoOne, Main). Two callers, copies of one and of three
 * pieces, two helpers that spin and sleep, and the end of the team.
 *
 * Memory is sequentially consistent: every store of the hand-over is published by the release of the ticket; what is searched is which of
 * them a late thread has seen.
 *
 * Checked: when Copy returns, each of its pieces was copied once by somebody who knew what to copy, and nobody is still at it; no piece is
 * claimed that is not there; a copy ends; helpers hear the end of the team.
 *
 * Each TWIN_ below is one mistake, and must be found.
 */
#ifndef COPIES
#define COPIES 3 /* in all; any caller makes any of them */
#endif
#define CALLERS 2
#define HELPERS 2
#define PIECES_MAX 3
#define NOBODY 255

/* ticket_: one word. */
byte ticket_pieces, ticket_next;
#ifdef TWIN_COUNT_BESIDE_TICKET
byte generation;      /* the other half of the ticket where the count of pieces is a word of its own: ticket_pieces here */
#endif
byte counted;         /* done_ */
byte task_owner = NOBODY, task_pieces;  /* dst_ and src_; bytes_: two stores */
bool busy, stop;
byte bell;

/* What the copies are to make true, by caller. */
byte copied[CALLERS];   /* bits: pieces that are there */
byte at_work[CALLERS];  /* threads that are copying one */
byte copies, callers_left = CALLERS;

/* DoOne: `mine` is false when there was none. Copying begins and ends in two steps. */
inline DoOne() {
  mine = false;
#ifdef TWIN_COUNT_BESIDE_TICKET
  d_step { seen_generation = generation; seen_next = ticket_next };
  do
  :: d_step { seen_next >= ticket_pieces -> seen_next = 0; seen_generation = 0 }; break
  :: d_step { seen_next < ticket_pieces -> skip };
     if
     :: d_step {
          generation == seen_generation && ticket_next == seen_next ->
          ticket_next++; mine = true; piece = seen_next; seen_next = 0; seen_generation = 0
        };
        break
     :: d_step {
          generation != seen_generation || ticket_next != seen_next ->
          seen_generation = generation; seen_next = ticket_next
        }
     fi
  od;
#else
  d_step { seen_pieces = ticket_pieces; seen_next = ticket_next };
  do
  :: d_step { seen_next >= seen_pieces -> seen_next = 0; seen_pieces = 0 }; break
  :: d_step { seen_next < seen_pieces -> skip };
#ifdef TWIN_FIELDS_BEFORE_CLAIM
     d_step { owner = task_owner; pieces = task_pieces };
#endif
     if
#ifdef TWIN_CLAIM_NOT_COMPARED
     :: d_step {
          ticket_next = seen_next + 1; ticket_pieces = seen_pieces;
          mine = true; piece = seen_next; seen_next = 0; seen_pieces = 0
        };
        break
#else
     :: d_step {
          ticket_pieces == seen_pieces && ticket_next == seen_next ->
          ticket_next++; mine = true; piece = seen_next; seen_next = 0; seen_pieces = 0
        };
        break
     :: d_step {
          ticket_pieces != seen_pieces || ticket_next != seen_next ->
          seen_pieces = ticket_pieces; seen_next = ticket_next
        }
#endif
     fi
  od;
#endif
  if
  :: mine ->
#ifdef TWIN_COUNTED_BEFORE_COPIED
     counted++;
#endif
#ifndef TWIN_FIELDS_BEFORE_CLAIM
     d_step { owner = task_owner; pieces = task_pieces };
#endif
     d_step { assert(owner != NOBODY && piece < pieces); at_work[owner]++ };
     d_step {
       assert((copied[owner] & (1 << piece)) == 0);
       copied[owner] = copied[owner] | (1 << piece);
       at_work[owner]--;
       owner = 0; pieces = 0; piece = 0
     };
#ifndef TWIN_COUNTED_BEFORE_COPIED
     counted++
#endif
  :: else
  fi
}

/* Open: the fields, the count of what is done, the ticket. */
inline Open() {
#ifdef TWIN_COUNT_BESIDE_TICKET
  task_owner = _pid;
  task_pieces = wanted;
  ticket_pieces = wanted;
  counted = 0;
  d_step { generation++; ticket_next = 0 }
#else
#ifdef TWIN_TICKET_FIRST
  d_step { ticket_pieces = wanted; ticket_next = 0 };
#endif
  task_owner = _pid;
  task_pieces = wanted;
#ifndef TWIN_DONE_CLEARED_LATE
  counted = 0;
#endif
#ifndef TWIN_TICKET_FIRST
  d_step { ticket_pieces = wanted; ticket_next = 0 };
#endif
#ifdef TWIN_DONE_CLEARED_LATE
  counted = 0
#endif
#endif
}

active [CALLERS] proctype Caller() {
  byte seen_pieces, seen_next, owner, pieces, piece, wanted;
#ifdef TWIN_COUNT_BESIDE_TICKET
  byte seen_generation;
#endif
  bool mine;
  do
  :: d_step { copies < COPIES -> copies++; wanted = 1 };
     if
     :: wanted = PIECES_MAX
     :: skip
     fi;
     if
#ifdef TWIN_BUSY_LOOKED_AT
     :: !busy -> busy = true;
#else
     :: d_step { !busy -> busy = true };
#endif
        Open();
        bell++;
        do
        :: DoOne();
           if
           :: mine
           :: else -> break
           fi
        od;
#ifdef TWIN_NOT_AWAITED
        skip;
#else
        (counted == wanted);
#endif
        d_step {
          assert(copied[_pid] == (1 << wanted) - 1 && at_work[_pid] == 0);
          copied[_pid] = 0
        };
        busy = false
     :: busy /* copies alone */
     fi;
     wanted = 0
  :: copies == COPIES -> break
  od;
  callers_left--;
  /* The destructor, by the last. */
  if
  :: callers_left == 0 && !stop -> stop = true; bell++
  :: else
  fi
}

/* Main. A helper that finds nothing sleeps until the bell has changed; one that spins first does no more than that. */
active [HELPERS] proctype Helper() {
  byte seen_pieces, seen_next, owner, pieces, piece, heard;
#ifdef TWIN_COUNT_BESIDE_TICKET
  byte seen_generation;
#endif
  bool mine;
  do
  :: heard = bell;
     if
     :: stop -> break
     :: else
     fi;
     DoOne();
#ifdef TWIN_BELL_READ_LATE
     heard = bell;
#endif
     if
     :: mine
     :: !mine -> (bell != heard)
     fi
  od
}
