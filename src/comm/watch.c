#include "src/comm/watch.h"

#include "base/clock.h"
#include "base/minmax.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static const uint64_t second_ns = 1000000000;

/* The least timeout keeps ticks a millisecond apart; the largest fits into int64_t, and sums of two do. */
static const double least_seconds = 0.01, most_seconds = 1e9;

enum { DEFAULT_SECONDS = 60, TICKS = 10 /* a timeout */, TELL_SECONDS = 60 };

static_assert(sizeof(tide_beat) == 32 + 8 + TIDE_WORDS_BYTES, "a beat has no padding");
static_assert(TIDE_CHANNEL_DATA == 0 && TIDE_WATCHED_CHANNELS == 2, "the watched channels are the first");

/* --- create --- */

static double in_bounds(double seconds)
{
    return tide_min_f64(seconds == 0 ? DEFAULT_SECONDS : tide_max_f64(seconds, least_seconds), most_seconds);
}

tide_status tide_watch_init(tide_watch *watch, tide_comm *comm, tide_mesh *mesh,
                            const tide_comm_socket_options *options)
{
    const double seconds = in_bounds(options->collective_timeout_seconds);
    *watch = (tide_watch){
        .comm = comm,
        .mesh = mesh,
        .timeout_seconds = seconds,
        .timeout_ns = (uint64_t)(seconds * 1e9),
        .first_beat_ns = (int64_t)(in_bounds(options->timeout_seconds) * 1e9),
        .tell = options->tell,
        .tell_context = options->tell_context,
        .over = calloc((size_t)TIDE_WATCHED_CHANNELS * mesh->ranks, sizeof *watch->over),
        .peers = calloc(mesh->ranks, sizeof *watch->peers),
    };
    watch->interval_ns = tide_min_u64(second_ns, watch->timeout_ns / TICKS);
    if (watch->over == NULL || watch->peers == NULL) {
        free(watch->peers);
        free(watch->over);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to watch %u ranks", mesh->ranks);
    }
    for (uint32_t rank = 0; rank < mesh->ranks; rank++)
        watch->peers[rank].silent_ns = -watch->first_beat_ns;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->stop, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&watch->lock, NULL);
    return TIDE_OK;
}

void tide_watch_fini(tide_watch *watch)
{
    assert(!watch->has_thread);
    pthread_cond_destroy(&watch->stop);
    pthread_mutex_destroy(&watch->lock);
    free(watch->peers);
    free(watch->over);
}

/* --- this rank's calls and words --- */

void tide_watch_doing(tide_watch *watch, tide_comm_phase phase, const char *words)
{
    const size_t length = strnlen(words, TIDE_WORDS_BYTES - 1);
    pthread_mutex_lock(&watch->lock);
    watch->own.phase = (uint32_t)phase;
    memset(watch->own.words, 0, sizeof watch->own.words);
    memcpy(watch->own.words, words, length);
    pthread_mutex_unlock(&watch->lock);
}

static atomic_bool *over_at(const tide_watch *watch, uint32_t channel, uint32_t rank)
{
    assert(channel < TIDE_WATCHED_CHANNELS && rank < watch->mesh->ranks);
    return &watch->over[channel * watch->mesh->ranks + rank];
}

void tide_watch_enter(tide_watch *watch, tide_channel_name channel, uint64_t number, const char *text)
{
    pthread_mutex_lock(&watch->lock);
    tide_beat_call *call = &watch->own.calls[channel];
    assert(call->entered == call->left && number > call->left);
    call->entered = number;
    snprintf(watch->texts[channel], sizeof watch->texts[channel], "%s", text);
    for (uint32_t rank = 0; rank < watch->mesh->ranks; rank++)
        atomic_store_explicit(over_at(watch, channel, rank), false, memory_order_relaxed);
    pthread_mutex_unlock(&watch->lock);
}

void tide_watch_leave(tide_watch *watch, tide_channel_name channel)
{
    pthread_mutex_lock(&watch->lock);
    assert(watch->own.calls[channel].left < watch->own.calls[channel].entered);
    watch->own.calls[channel].left = watch->own.calls[channel].entered;
    pthread_mutex_unlock(&watch->lock);
}

/* No other thread reads the flag for data behind it, so its order among other stores does not matter. */
void tide_watch_part_over(tide_watch *watch, tide_channel_name channel, uint32_t rank)
{
    atomic_store_explicit(over_at(watch, channel, rank), true, memory_order_relaxed);
}

/* --- beats --- */

/* The beat comes from another machine: keep its numbers in bounds and its words a line. */
static void take_beat(tide_watch_peer *peer)
{
    peer->last = peer->in;
    peer->in_bytes = 0;
    peer->heard = true;
    peer->silent_ns = 0;
    if (peer->last.phase >= TIDE_PHASE_COUNT)
        peer->last.phase = TIDE_PHASE_COMPUTING;
    peer->last.words[TIDE_WORDS_BYTES - 1] = '\0';
    for (char *letter = peer->last.words; *letter != '\0'; letter++) {
        if ((unsigned char)*letter < ' ')
            *letter = ' ';
    }
}

/* Take all that has come. An error of the connection is silence: the peer's host may be gone. */
static void receive_beats(tide_watch_peer *peer, int connection)
{
    while (!peer->ended) {
        const ssize_t got =
            recv(connection, (char *)&peer->in + peer->in_bytes, sizeof peer->in - peer->in_bytes, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return;
        peer->ended = got == 0;
        peer->in_bytes += (uint32_t)got;
        if (peer->in_bytes == sizeof peer->in)
            take_beat(peer);
    }
}

static void send_beat(tide_watch_peer *peer, int connection, const tide_beat *own)
{
    const bool is_begun = peer->out_left > 0;
    if (!is_begun) {
        peer->out = *own;
        peer->out_left = sizeof peer->out;
    }
    while (peer->out_left > 0) {
        const char *next = (const char *)(&peer->out + 1) - peer->out_left;
        const ssize_t sent = send(connection, next, peer->out_left, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            break;
        peer->out_left -= (uint32_t)sent;
    }
    if (peer->out_left == sizeof peer->out)
        peer->out_left = 0; /* nothing of it has gone: it is dropped */
}

static void exchange_beats(tide_watch *watch, const tide_beat *own, uint64_t passed_ns)
{
    for (uint32_t rank = 0; rank < watch->mesh->ranks; rank++) {
        tide_watch_peer *peer = &watch->peers[rank];
        if (rank == watch->mesh->rank || peer->ended)
            continue;
        const int connection = tide_mesh_connection(watch->mesh, TIDE_CHANNEL_WATCH, rank);
        peer->silent_ns += (int64_t)passed_ns;
        receive_beats(peer, connection);
        send_beat(peer, connection, own);
    }
}

/* --- predicates --- */

static bool is_in(const tide_beat_call *call)
{
    return call->entered != call->left;
}

static bool is_in_any(const tide_beat *beat)
{
    return is_in(&beat->calls[TIDE_CHANNEL_DATA]) || is_in(&beat->calls[TIDE_CHANNEL_SIDE]);
}

/* Does this rank, which is in a call of the channel, wait for the peer? */
static bool waits_for(const tide_watch *watch, uint32_t channel, uint32_t rank)
{
    return rank != watch->mesh->rank && !watch->peers[rank].ended &&
           !atomic_load_explicit(over_at(watch, channel, rank), memory_order_relaxed);
}

static bool is_missing(const tide_watch_peer *peer, uint32_t channel, uint64_t number)
{
    return peer->heard && peer->last.calls[channel].entered < number;
}

/* Is the peer in a call that another one, in a phase which may take any time, has not entered? */
static bool is_excused(const tide_watch *watch, uint32_t peer)
{
    const tide_beat *last = &watch->peers[peer].last;
    for (uint32_t channel = 0; channel < TIDE_WATCHED_CHANNELS; channel++) {
        for (uint32_t rank = 0; rank < watch->mesh->ranks && is_in(&last->calls[channel]); rank++) {
            const tide_watch_peer *other = &watch->peers[rank];
            if (rank != watch->mesh->rank && other->last.phase != TIDE_PHASE_COMPUTING &&
                is_missing(other, channel, last->calls[channel].entered))
                return true;
        }
    }
    return false;
}

/* --- messages --- */

static const char *const phase_verbs[] = {[TIDE_PHASE_COMPUTING] = "computes",
                                          [TIDE_PHASE_READING] = "reads data",
                                          [TIDE_PHASE_LOADING] = "loads",
                                          [TIDE_PHASE_SAVING] = "saves",
                                          [TIDE_PHASE_PINNING] = "pins memory"};

static_assert(sizeof phase_verbs / sizeof phase_verbs[0] == TIDE_PHASE_COUNT, "each phase has a verb");

typedef struct end_of_line {
    char text[TIDE_WORDS_BYTES + 32];
} end_of_line;

/* "; it says: computes block 3", "" if the peer has said nothing. */
static end_of_line words_of(const tide_watch_peer *peer, const char *says)
{
    end_of_line end = {""};
    const char *words = peer->last.words[0] == '\0' ? phase_verbs[peer->last.phase] : peer->last.words;
    if (peer->last.words[0] != '\0' || peer->last.phase != TIDE_PHASE_COMPUTING)
        snprintf(end.text, sizeof end.text, "; it %s: %s", says, words);
    return end;
}

static tide_status fail_silent(const tide_watch *watch, uint32_t rank, const char *call)
{
    return tide_fail(TIDE_ERROR_PEER, "nothing has been heard of rank %u (%s) for %.3g s, in %s%s", rank,
                     watch->mesh->hosts[rank].text, watch->timeout_seconds, call,
                     words_of(&watch->peers[rank], "last said").text);
}

/* A peer that was stopped after this rank's entry is late before it has been silent for the timeout. */
static tide_status fail_late(const tide_watch *watch, uint32_t rank, const char *call)
{
    const tide_watch_peer *peer = &watch->peers[rank];
    char silence[64] = "";
    const bool is_silent = peer->silent_ns > 3 * (int64_t)watch->interval_ns;
    if (is_silent)
        snprintf(silence, sizeof silence, ", nothing has been heard of it for %.3g s",
                 (double)peer->silent_ns * 1e-9);
    return tide_fail(TIDE_ERROR_PEER, "rank %u (%s) has not come to %s for %.3g s%s%s", rank,
                     watch->mesh->hosts[rank].text, call, watch->timeout_seconds, silence,
                     words_of(peer, is_silent ? "last said" : "says").text);
}

static void tell(const tide_watch *watch, uint32_t rank, const char *call, uint64_t waited_ns)
{
    const tide_watch_peer *peer = &watch->peers[rank];
    char line[512], words[TIDE_WORDS_BYTES + 4] = "";
    if (watch->tell == NULL)
        return;
    if (peer->last.words[0] != '\0')
        snprintf(words, sizeof words, " (%s)", peer->last.words);
    snprintf(line, sizeof line, "rank %u (%s) %s%s; rank %u has waited %" PRIu64 " s in %s", rank,
             watch->mesh->hosts[rank].text, phase_verbs[peer->last.phase], words, watch->mesh->rank,
             waited_ns / second_ns, call);
    watch->tell(watch->tell_context, line);
}

/* --- judgement --- */

/* Count the time for a peer that has not entered the call. */
static void age(tide_watch *watch, uint32_t channel, uint32_t rank, uint64_t passed_ns, const char *call)
{
    static const uint64_t period_ns = TELL_SECONDS * second_ns;
    tide_watch_peer *peer = &watch->peers[rank];
    if (peer->last.phase == TIDE_PHASE_COMPUTING) {
        peer->late_ns[channel] += is_excused(watch, rank) ? 0 : passed_ns;
        return;
    }
    const uint64_t told = peer->stood_ns[channel] / period_ns;
    peer->stood_ns[channel] += passed_ns;
    if (peer->stood_ns[channel] / period_ns > told)
        tell(watch, rank, call, peer->stood_ns[channel] + peer->late_ns[channel]);
}

/* The peer that this rank's call can't wait for any longer; -1: none. Of several a silent one, else one that
 * is in no call: a late peer in a call waits for another itself. */
static int64_t find_lost(const tide_watch *watch, uint32_t channel, bool *is_silent)
{
    int64_t late = -1;
    *is_silent = true;
    for (uint32_t rank = 0; rank < watch->mesh->ranks; rank++) {
        if (waits_for(watch, channel, rank) && watch->peers[rank].silent_ns > (int64_t)watch->timeout_ns)
            return rank;
    }
    *is_silent = false;
    for (uint32_t rank = 0; rank < watch->mesh->ranks; rank++) {
        const tide_watch_peer *peer = &watch->peers[rank];
        if (!waits_for(watch, channel, rank) || peer->late_ns[channel] <= watch->timeout_ns)
            continue;
        if (!is_in_any(&peer->last))
            return rank;
        late = late < 0 ? rank : late;
    }
    return late;
}

static void forget_call(tide_watch *watch, uint32_t channel, uint64_t number)
{
    watch->judged[channel] = number;
    for (uint32_t rank = 0; rank < watch->mesh->ranks; rank++)
        watch->peers[rank].late_ns[channel] = watch->peers[rank].stood_ns[channel] = 0;
}

/* Judge all peers for the call that this rank is in. Returns whether the comm has failed. */
static bool judge(tide_watch *watch, uint32_t channel, uint64_t number, const char *call, uint64_t passed_ns)
{
    bool is_silent;
    if (watch->judged[channel] != number) {
        forget_call(watch, channel, number);
        passed_ns = 0; /* this rank has entered the call since the last tick */
    }
    for (uint32_t rank = 0; rank < watch->mesh->ranks; rank++) {
        if (waits_for(watch, channel, rank) && is_missing(&watch->peers[rank], channel, number))
            age(watch, channel, rank, passed_ns, call);
    }
    const int64_t lost = find_lost(watch, channel, &is_silent);
    if (lost < 0)
        return false;
    (void)tide_comm_fail(watch->comm, (is_silent ? fail_silent : fail_late)(watch, (uint32_t)lost, call));
    return true;
}

void tide_watch_tick(tide_watch *watch, uint64_t now_ns)
{
    char texts[TIDE_WATCHED_CHANNELS][TIDE_CALL_TEXT_BYTES];
    assert(now_ns >= watch->ticked_ns);
    const uint64_t passed_ns = tide_min_u64(now_ns - watch->ticked_ns, 2 * watch->interval_ns);
    watch->ticked_ns = now_ns;
    pthread_mutex_lock(&watch->lock);
    const tide_beat own = watch->own;
    memcpy(texts, watch->texts, sizeof texts);
    pthread_mutex_unlock(&watch->lock);
    exchange_beats(watch, &own, passed_ns);
    bool has_failed = false;
    for (uint32_t channel = 0; channel < TIDE_WATCHED_CHANNELS && !has_failed; channel++) {
        if (is_in(&own.calls[channel]))
            has_failed = judge(watch, channel, own.calls[channel].entered, texts[channel], passed_ns);
    }
}

/* --- the thread --- */

/* Returns whether the watch goes on. */
static bool sleep_until(tide_watch *watch, uint64_t time_ns)
{
    const struct timespec time = {(time_t)(time_ns / second_ns), (long)(time_ns % second_ns)};
    pthread_mutex_lock(&watch->lock);
    while (!watch->stops && pthread_cond_timedwait(&watch->stop, &watch->lock, &time) == 0)
        continue;
    const bool goes_on = !watch->stops;
    pthread_mutex_unlock(&watch->lock);
    return goes_on && !atomic_load(&watch->mesh->given_up);
}

static void *watch_main(void *argument)
{
    tide_watch *watch = argument;
    do
        tide_watch_tick(watch, tide_clock_ns());
    while (sleep_until(watch, watch->ticked_ns + watch->interval_ns));
    return NULL;
}

tide_status tide_watch_start(tide_watch *watch)
{
    sigset_t all, before;
    sigfillset(&all);
    watch->ticked_ns = tide_clock_ns();
    /* the program's handlers run on threads of its own */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&watch->thread, NULL, watch_main, watch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return tide_fail(TIDE_ERROR_IO, "rank %u can't start the thread that watches the other ranks: %s",
                         watch->mesh->rank, strerror(error));
    watch->has_thread = true;
    return TIDE_OK;
}

void tide_watch_stop(tide_watch *watch)
{
    if (!watch->has_thread)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->stops = true;
    pthread_cond_signal(&watch->stop);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    watch->has_thread = false;
}
