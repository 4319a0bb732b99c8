/* The watch notices ranks for which the others would wait without end: dead, stopped, late or cut off. A
 * thread of each rank sends a beat to every other rank in each interval, a tenth of the timeout and at most a
 * second: which calls the rank has entered and left, its phase and words. At each such tick the thread also
 * takes the beats that have come, and judges each peer for each call that its own rank is in:
 *
 *   1. a silent peer    No beat has come for more than the timeout, whatever its phase: the process is
 *                       stopped, its host is dead, or the network is cut.
 *   2. a late peer      Its beats say that it has not entered the call, for more than the timeout since this
 *                       rank's entry, and that it computes. While it reads, loads, saves or pins memory, or
 *                       is in another call which a peer in such a phase has not entered, its clock stands.
 *                       After each minute of that the watch calls `tell`.
 *
 * A peer whose part of the call is over is not judged, and one that has closed its channel neither: the
 * transfer itself notices connections that end.
 *
 * Time is counted in ticks, each of at most two intervals. So the time in which the machine, or all processes
 * of the run, were suspended counts for next to nothing. A peer's first beat may take as long as the start of
 * all ranks.
 *
 * The first rank that judges a peer fails its communicator, and the mesh's notice tells the others. The watch
 * can't notice a rank that has entered a call and moves no bytes although it is alive.
 *
 * The thread sends without waiting. It drops a beat for which the socket has no room, but finishes one that
 * it has begun to send, so the stream stays in step. */
#ifndef TIDE_COMM_WATCH_H
#define TIDE_COMM_WATCH_H

#include "src/comm/comm.h"
#include "src/comm/mesh.h"

enum {
    TIDE_WATCHED_CHANNELS = TIDE_CHANNEL_SIDE + 1,
    TIDE_WORDS_BYTES = 64 /* with the 0 byte */
};

/* The calls that a rank has entered and left last on a channel, by number. Equal: it is in none. */
typedef struct tide_beat_call {
    uint64_t entered, left;
} tide_beat_call;

typedef struct tide_beat {
    tide_beat_call calls[TIDE_WATCHED_CHANNELS];
    uint32_t phase; /* a tide_comm_phase */
    uint32_t reserved;
    char words[TIDE_WORDS_BYTES];
} tide_beat;

/* Used by the watch's thread alone. */
typedef struct tide_watch_peer {
    bool heard; /* a beat has come */
    bool ended; /* it has closed its watch channel */
    tide_beat last;
    tide_beat in, out; /* the beat that comes, and the one that goes */
    uint32_t in_bytes, out_left;
    int64_t silent_ns; /* since the last beat; below 0: the time left for the first one */
    uint64_t late_ns[TIDE_WATCHED_CHANNELS], stood_ns[TIDE_WATCHED_CHANNELS]; /* in this rank's call */
} tide_watch_peer;

typedef struct tide_watch {
    tide_comm *comm; /* that fails */
    tide_mesh *mesh;
    double timeout_seconds;
    uint64_t timeout_ns, interval_ns;
    int64_t first_beat_ns; /* that a peer's first beat may take */
    tide_comm_tell tell;   /* NULL: none */
    void *tell_context;

    pthread_mutex_t lock;
    pthread_cond_t stop;
    bool stops;                                              /* [lock] */
    tide_beat own;                                           /* [lock] */
    char texts[TIDE_WATCHED_CHANNELS][TIDE_CALL_TEXT_BYTES]; /* [lock] of the calls that are entered */
    atomic_bool *over; /* [TIDE_WATCHED_CHANNELS * ranks] the rank's part of the entered call is over */

    bool has_thread; /* the caller's thread */
    pthread_t thread;
    uint64_t ticked_ns; /* below: the watch's thread, or the caller's before there is one */
    uint64_t judged[TIDE_WATCHED_CHANNELS]; /* the number of the call for which late_ns and stood_ns count */
    tide_watch_peer *peers;                 /* [ranks] */
} tide_watch;

/* Make the watch of a comm whose mesh has no connections yet. NO_MEMORY: nothing was made. */
tide_status tide_watch_init(tide_watch *watch, tide_comm *comm, tide_mesh *mesh,
                            const tide_comm_socket_options *options);
/* The thread does not run. */
void tide_watch_fini(tide_watch *watch);

/* Start the thread; the mesh is complete. IO: there is none. */
tide_status tide_watch_start(tide_watch *watch);
/* End the thread, if it runs, and wait for its end. It may fail the comm or tell a line meanwhile. */
void tide_watch_stop(tide_watch *watch);

/* --- any thread --- */

void tide_watch_doing(tide_watch *watch, tide_comm_phase phase, const char *words);

/* --- the thread that makes the channel's calls --- */

/* This rank enters or leaves a call; `text` names it in messages. */
void tide_watch_enter(tide_watch *watch, tide_channel_name channel, uint64_t number, const char *text);
void tide_watch_leave(tide_watch *watch, tide_channel_name channel);
/* All bytes of the entered call have gone to the peer and come from it. */
void tide_watch_part_over(tide_watch *watch, tide_channel_name channel, uint32_t rank);

/* --- the watch's thread, and tests that bring their own clock --- */

void tide_watch_tick(tide_watch *watch, uint64_t now_ns);

#endif
