/* The hand-over through the two rings of one session: shm/channel_layout.h, shm/port.cpp, and ServeLoop::Sleep of memserver/loop/serve_loop.cpp.
 *
 * Memory is that of x86 (total store order): relaxed and release stores go into the store buffer of their process and reach memory later, in
 * order; sequentially consistent stores and read-modify-writes wait until the buffer is empty. No time-out of the real code is here, so a
 * wake-up that is lost leaves a process waiting for ever, which the search reports as an invalid end state. One wake-up for nothing, of
 * either side, stands for time-outs and signals.
 *
 * Checked: every request and completion is read once, after its words were written; an honest client never looks like a violator; nobody
 * waits for ever, also when the server ends the session at any moment.
 *
 * Each TWIN_ below is one mistake, and must be found.
 */
#define ENTRIES 2       /* kRingEntries */
#define TICKETS 2       /* requests in flight: the most that the layout allows */
#define PUBLISH_EVERY 2 /* kPublishEvery; more than its share of ENTRIES, so that a client can find its ring full */
#ifndef ITEMS
#define ITEMS 3         /* a lap and a half of both rings */
#endif

/* Shared memory, one cell a word; an item has one word. */
#define SUB_SEQUENCE(position) ((position) % ENTRIES)
#define SUB_WORD(position) (2 + (position) % ENTRIES)
#define COMP_SEQUENCE(position) (4 + (position) % ENTRIES)
#define COMP_WORD(position) (6 + (position) % ENTRIES)
#define COMPLETIONS_CONSUMED 8
#define CLIENT_WAITING 9
#define SUBMISSIONS_CONSUMED 10
#define SERVER_SLEEPING 11
#define WAKE_WORD 12
#define ENDED 13
byte mem[14];

/* Store buffers: address and value of what has not reached memory. */
chan client_stores = [3] of { byte, byte };
chan server_stores = [3] of { byte, byte };
#define BUFFERED(to, address, value) to ! address, value
#define SEQ_CST(to, address, value) atomic { empty(to) -> mem[address] = value }

/* What the kernel keeps: the futex queue, the edge that epoll reports for the doorbell, the level of the workers' event. */
bool client_in_futex, doorbell_edge, work_event;
bool woken_for_nothing;
byte rung; /* the client's rung_sleep_ */
/* Counters of the requests that a worker has in hand and has finished; 0: none. */
byte work_due, work_done;

active proctype ClientStoreBuffer() {
  byte address, value;
end:
  do
  :: atomic { client_stores ? address, value -> mem[address] = value; address = 0; value = 0 }
  od
}

active proctype ServerStoreBuffer() {
  byte address, value;
end:
  do
  :: atomic { server_stores ? address, value -> mem[address] = value; address = 0; value = 0 }
  od
}

/* A worker finishes a request and puts it into the done queue (base/event_queue.h): the event is written when the queue was empty. */
active proctype WorkerThread() {
end:
  do
  :: atomic { work_due > 0 -> work_done = work_due; work_due = 0 };
     work_event = true
  od
}

/* ------------------------------------------------------------------------------------------------ client */

/* ClientPort::RingForSleep: once for each sleep. One load of the word decides. */
inline RingDoorbell() {
  if
#ifdef TWIN_SLEEPS_NOT_NUMBERED
  :: d_step { mem[SERVER_SLEEPING] && !rung -> rung = 1 }; doorbell_edge = true
#else
  :: d_step { mem[SERVER_SLEEPING] && mem[SERVER_SLEEPING] != rung -> rung = mem[SERVER_SLEEPING] }; doorbell_edge = true
#endif
  :: else
  fi
}

#ifdef TWIN_SEQUENCE_RELEASE
#define PUBLISH(position) BUFFERED(client_stores, SUB_SEQUENCE(position), (position) + 1)
#else
#define PUBLISH(position) SEQ_CST(client_stores, SUB_SEQUENCE(position), (position) + 1)
#endif

/* ClientPort::PublishBatch: the first request of the batch, which is written last. */
inline PublishBatch() {
  if
  :: visible != pushed ->
#ifdef TWIN_DOORBELL_BEFORE_ITEM
     RingDoorbell();
#endif
#ifdef TWIN_SEQUENCE_FIRST
     PUBLISH(visible);
     BUFFERED(client_stores, SUB_WORD(visible), visible + 1);
#else
     BUFFERED(client_stores, SUB_WORD(visible), visible + 1);
     PUBLISH(visible);
#endif
#ifndef TWIN_DOORBELL_BEFORE_ITEM
     RingDoorbell();
#endif
     visible = pushed
  :: else
  fi
}

/* ClientPort::Push, when there is room. Any request but the last that may be in flight can be one of a batch: then another Push follows. */
inline ClientPush() {
  if
  :: more = false
  :: pushed + 1 < ITEMS && tickets + 1 < TICKETS -> more = true
  fi;
  if
  :: pushed != visible ->
#ifdef TWIN_BATCH_PUBLISHED_EARLY
     BUFFERED(client_stores, SUB_WORD(visible), visible + 1);
     PUBLISH(visible);
     BUFFERED(client_stores, SUB_SEQUENCE(pushed), pushed + 1);
     BUFFERED(client_stores, SUB_WORD(pushed), pushed + 1)
#else
     BUFFERED(client_stores, SUB_WORD(pushed), pushed + 1);
     BUFFERED(client_stores, SUB_SEQUENCE(pushed), pushed + 1)
#endif
  :: else
  fi;
  d_step { in_flight = in_flight | (1 << pushed); tickets++; pushed++ };
  if
  :: !more -> PublishBatch()
  :: more
  fi
}

/* ClientPort::Push that finds no room: the batch before it is handed over. */
inline PublishWhatIsHeldBack() {
#ifndef TWIN_BATCH_NOT_PUBLISHED
  PublishBatch();
#endif
  more = false
}

/* ClientPort::Pop until it finds nothing, with what MemClient::TakeCompletions checks. */
inline TakeCompletions() {
  do
  :: mem[COMP_SEQUENCE(taken)] == taken + 1 ->
     d_step {
       counter = mem[COMP_WORD(taken)];
       assert(counter >= 1 && counter <= ITEMS && (in_flight & (1 << (counter - 1)))); /* of a request that waits for its answer */
       in_flight = in_flight & ~(1 << (counter - 1));
       counter = 0;
       tickets--;
       taken++
     };
     BUFFERED(client_stores, COMPLETIONS_CONSUMED, taken)
  :: else -> break
  od
}

/* `found` := CompletionThere() || Ended(). */
inline Look() {
  found = mem[COMP_SEQUENCE(taken)] == taken + 1;
  if
  :: !found -> d_step { ended = mem[ENDED]; found = ended }
  :: found
  fi
}

/* ClientPort::WaitForCompletion without its spinning, which only looks more often. */
inline WaitForCompletion() {
#ifdef TWIN_WORD_REMEMBERED_LATE
  Look();
  seen = mem[WAKE_WORD];
#else
  seen = mem[WAKE_WORD];
  Look();
#endif
  if
  :: found
  :: !found ->
#ifdef TWIN_WAITING_RELAXED
     BUFFERED(client_stores, CLIENT_WAITING, 1);
#else
     SEQ_CST(client_stores, CLIENT_WAITING, 1);
#endif
     if
     :: mem[WAKE_WORD] == seen ->
        d_step { /* the kernel looks once more while it holds the queue */
          if
          :: mem[WAKE_WORD] == seen -> client_in_futex = true
          :: else
          fi
        };
        if
        :: !client_in_futex
        :: d_step { client_in_futex && !woken_for_nothing -> woken_for_nothing = true; client_in_futex = false }
        fi
     :: else
     fi;
     BUFFERED(client_stores, CLIENT_WAITING, 0)
  fi;
  d_step { seen = 0; found = false }
}

active proctype Client() {
  byte pushed, taken; /* submissions_pushed_, completions_popped_ */
  byte visible;       /* submissions_published_ */
  byte tickets;       /* requests without an answer, and which: a bit each */
  byte in_flight;
  byte counter, seen;
  bool found, ended, more;
  do
  :: !ended && pushed < ITEMS && tickets < TICKETS ->
     if /* an older value, where it shows room, decides the same */
     :: pushed - mem[SUBMISSIONS_CONSUMED] < ENTRIES -> ClientPush()
     :: else -> PublishWhatIsHeldBack(); WaitForCompletion(); TakeCompletions() /* MemClient::PushWhenRoom */
     fi
  :: !ended && tickets > 0 && !more -> WaitForCompletion(); TakeCompletions()
  :: !ended && pushed == ITEMS && tickets == 0 -> assert(taken == ITEMS && in_flight == 0); break
  :: ended -> break
  od
}

/* ------------------------------------------------------------------------------------------------ server */

inline PublishPopped() {
  if
  :: popped != published -> BUFFERED(server_stores, SUBMISSIONS_CONSUMED, popped); published = popped
  :: else
  fi
}

inline ReadConsumed() {
  d_step {
    assert(mem[COMPLETIONS_CONSUMED] >= consumed && mem[COMPLETIONS_CONSUMED] <= answered);
    consumed = mem[COMPLETIONS_CONSUMED]
  }
}

/* ServerPort::Push of the answer to the request `item`. */
inline ServerPush() {
  if
  :: answered - consumed >= ENTRIES -> ReadConsumed(); assert(answered - consumed < ENTRIES)
  :: else
  fi;
#ifdef TWIN_ANSWER_SEQUENCE_FIRST
  BUFFERED(server_stores, COMP_SEQUENCE(answered), answered + 1);
  BUFFERED(server_stores, COMP_WORD(answered), item);
#else
  BUFFERED(server_stores, COMP_WORD(answered), item);
  BUFFERED(server_stores, COMP_SEQUENCE(answered), answered + 1);
#endif
  d_step { answered++; wake_due = true }
}

/* ServerPort::Wake. */
inline Wake() {
#ifdef TWIN_WAITING_LOOKED_FIRST
  waiting = mem[CLIENT_WAITING];
  SEQ_CST(server_stores, WAKE_WORD, mem[WAKE_WORD] + 1);
#else
  SEQ_CST(server_stores, WAKE_WORD, mem[WAKE_WORD] + 1);
  waiting = mem[CLIENT_WAITING];
#endif
  if
  :: waiting -> client_in_futex = false
  :: !waiting
  fi;
  d_step { waiting = false; wake_due = false }
}

/* ServerPort::End: wakes whatever the client says. */
inline End() {
#ifdef TWIN_END_MARKED_LATE
  SEQ_CST(server_stores, WAKE_WORD, mem[WAKE_WORD] + 1);
  client_in_futex = false;
  BUFFERED(server_stores, ENDED, 1)
#else
  BUFFERED(server_stores, ENDED, 1);
  SEQ_CST(server_stores, WAKE_WORD, mem[WAKE_WORD] + 1);
  client_in_futex = false
#endif
}

/* ServerPort::Pop: one load of the sequence decides. */
inline Pop() {
  d_step { sequence = mem[SUB_SEQUENCE(popped)]; has_item = sequence == popped + 1 };
  if
  :: has_item ->
     d_step {
       item = mem[SUB_WORD(popped)];
       assert(item == popped + 1); /* in order: none lost, none twice, none read before it was written */
       popped++
     };
     if
     :: popped - published >= PUBLISH_EVERY -> PublishPopped()
     :: else
     fi
  :: !has_item ->
     assert(sequence == (popped >= ENTRIES -> popped + 1 - ENTRIES : 0)); /* else an honest client would pass for a violator */
     assert(mem[COMPLETIONS_CONSUMED] >= consumed && mem[COMPLETIONS_CONSUMED] <= answered); /* looked at now and then */
     PublishPopped()
  fi;
  sequence = 0
}

/* ServeLoop::Turn: takes what a worker finished and the requests that are there; sets `worked`. */
inline Turn() {
  worked = false;
  if
  :: d_step { work_done > 0 -> item = work_done; work_done = 0; worked = true }; ServerPush()
  :: work_done == 0
  fi;
  do
  :: Pop();
     if
     :: !has_item -> break
     :: has_item -> worked = true; has_item = false;
        if
        :: ServerPush()
        :: d_step { work_due == 0 && work_done == 0 -> work_due = item } /* answered later */
        fi
     fi
  od;
  if
  :: wake_due -> Wake()
  :: !wake_due
  fi;
  item = 0
}

/* ServerPort::SetSleeping: each sleep has a number that was never used before. Numbers are only compared with the one that the client has
 * rung for, so any other stands for it. */
#define NEW_NUMBER (rung == 1 -> 2 : 1)
inline SetSleeping() {
#ifdef TWIN_SLEEPING_RELAXED
  BUFFERED(server_stores, SERVER_SLEEPING, NEW_NUMBER)
#else
  SEQ_CST(server_stores, SERVER_SLEEPING, NEW_NUMBER)
#endif
}

inline Sleep() {
#if defined(TWIN_SERVER_LOOKS_FIRST)
  work_event = false; Turn(); SetSleeping();
#elif defined(TWIN_EVENT_CLEARED_LATE)
  SetSleeping(); Turn(); work_event = false;
#else
  SetSleeping(); work_event = false; Turn();
#endif
  if
  :: worked
  :: !worked ->
end_asleep:
     if
     :: d_step { doorbell_edge -> doorbell_edge = false }
     :: work_event
     :: d_step { !woken_for_nothing -> woken_for_nothing = true }
     fi
  fi;
  BUFFERED(server_stores, SERVER_SLEEPING, 0)
}

active proctype Server() {
  byte popped, published;  /* submissions_popped_, submissions_published_ */
  byte answered, consumed; /* completions_pushed_, completions_consumed_ */
  byte item, sequence;
  bool has_item, worked, waiting, wake_due;
  do
  :: Turn();
     if
     :: worked
     :: !worked -> Sleep()
     fi;
     worked = false
  :: End(); break
  od
}
