/* The rules by which a rank judges its peers, with a clock of the test and beats that the test sends. */
#include "src/comm/watch.h"
#include "tests/comm/socket_ranks.h"
#include "tests/support/assert_ok.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 4 };

static const uint64_t second_ns = 1000000000;

/* The watch of rank 0, with a timeout of 60 s, and the other sides of its connections. */
typedef struct fixture {
    tide_comm comm;
    tide_mesh mesh;
    tide_watch watch;
    int others[RANKS];
    tide_beat beats[RANKS]; /* that the others send */
    uint64_t now_ns;
    uint32_t aborts, told;
    char line[512]; /* told last */
} fixture;

static fixture *the; /* for the communicator's functions */

static void note_abort(tide_comm *comm, const char *reason)
{
    assert_ptr_equal(comm, &the->comm);
    assert_non_null(reason);
    the->aborts++;
}

static void note_line(void *context, const char *line)
{
    fixture *f = context;
    f->told++;
    snprintf(f->line, sizeof f->line, "%s", line);
}

static void make(fixture *f)
{
    static const tide_comm_ops ops = {.abort = note_abort};
    const tide_comm_socket_options options = {.tell = note_line, .tell_context = f};
    *f = (fixture){.now_ns = 1};
    the = f;
    tide_comm_init(&f->comm, &ops, 0, RANKS);
    assert_ok(tide_mesh_init(&f->mesh, 0, RANKS));
    for (uint32_t rank = 1; rank < RANKS; rank++) {
        int sides[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sides), 0);
        tide_mesh_keep(&f->mesh, TIDE_CHANNEL_WATCH, rank, sides[0]);
        f->others[rank] = sides[1];
        snprintf(f->mesh.hosts[rank].text, sizeof f->mesh.hosts[rank].text, "host %u", rank);
    }
    assert_ok(tide_watch_init(&f->watch, &f->comm, &f->mesh, &options));
    f->watch.ticked_ns = f->now_ns;
}

static void destroy(fixture *f)
{
    for (uint32_t rank = 1; rank < RANKS; rank++)
        close(f->others[rank]);
    tide_watch_fini(&f->watch);
    tide_mesh_fini(&f->mesh);
    tide_comm_fini(&f->comm);
}

static void say(fixture *f, uint32_t rank, tide_comm_phase phase, const char *words)
{
    f->beats[rank].phase = (uint32_t)phase;
    snprintf(f->beats[rank].words, sizeof f->beats[rank].words, "%s", words);
}

static void send_beat(const fixture *f, uint32_t rank)
{
    assert_int_equal(send(f->others[rank], &f->beats[rank], sizeof f->beats[rank], MSG_NOSIGNAL),
                     sizeof f->beats[rank]);
}

static void tick(fixture *f, uint64_t seconds)
{
    f->now_ns += seconds * second_ns;
    tide_watch_tick(&f->watch, f->now_ns);
}

/* Tick each second, with beats of all ranks but `silent`; 0: with all. */
static void pass(fixture *f, uint32_t seconds, uint32_t silent)
{
    for (uint32_t i = 0; i < seconds; i++) {
        for (uint32_t rank = 1; rank < RANKS; rank++) {
            if (rank != silent)
                send_beat(f, rank);
        }
        tick(f, 1);
    }
}

static void enter(fixture *f, uint64_t number)
{
    char text[64];
    snprintf(text, sizeof text, "reduce %u of block 3 backward", (unsigned)number);
    tide_watch_enter(&f->watch, TIDE_CHANNEL_DATA, number, text);
}

/* All ranks but `missing` have entered the call; 0: all. */
static void others_enter(fixture *f, uint64_t number, uint32_t missing)
{
    for (uint32_t rank = 1; rank < RANKS; rank++) {
        if (rank != missing)
            f->beats[rank].calls[TIDE_CHANNEL_DATA].entered = number;
    }
}

static void expect_running(fixture *f)
{
    assert_int_equal(tide_comm_failure(&f->comm), TIDE_OK);
    assert_int_equal(f->aborts, 0);
}

static void expect_failure(fixture *f, const char *message)
{
    assert_int_equal(tide_comm_failure(&f->comm), TIDE_ERROR_PEER);
    assert_string_equal(tide_message(), message);
    assert_int_equal(f->aborts, 1);
}

/* --- late peers --- */

static void a_late_peer_is_named_with_its_words(void **state)
{
    fixture f;
    make(&f);
    say(&f, 2, TIDE_PHASE_COMPUTING, "computes block 5 backward");
    pass(&f, 200, 0); /* in no call */
    enter(&f, 17);
    others_enter(&f, 17, 2);
    pass(&f, 61, 0);
    expect_running(&f);
    pass(&f, 1, 0);
    expect_failure(&f, "rank 2 (host 2) has not come to reduce 17 of block 3 backward for 60 s; it says: "
                       "computes block 5 backward");
    destroy(&f);
}

static void a_peer_that_says_nothing_is_named(void **state)
{
    fixture f;
    make(&f);
    tide_watch_enter(&f.watch, TIDE_CHANNEL_SIDE, 4, "exchange 4");
    for (uint32_t rank = 1; rank < RANKS; rank++)
        f.beats[rank].calls[TIDE_CHANNEL_SIDE].entered = rank == 3 ? 3 : 4;
    pass(&f, 62, 0);
    expect_failure(&f, "rank 3 (host 3) has not come to exchange 4 for 60 s");
    destroy(&f);
}

static void each_call_has_a_time_of_its_own(void **state)
{
    fixture f;
    make(&f);
    for (uint64_t number = 1; number <= 5; number++) {
        enter(&f, number);
        others_enter(&f, number, 1);
        pass(&f, 50, 0);
        f.beats[1].calls[TIDE_CHANNEL_DATA].entered = number;
        pass(&f, 100, 0); /* a call that all have entered may take any time */
        tide_watch_leave(&f.watch, TIDE_CHANNEL_DATA);
    }
    expect_running(&f);
    destroy(&f);
}

static void a_peer_s_clock_stands_while_it_saves(void **state)
{
    fixture f;
    make(&f);
    enter(&f, 17);
    others_enter(&f, 17, 2);
    pass(&f, 41, 0);
    say(&f, 2, TIDE_PHASE_SAVING, "step 100");
    pass(&f, 59, 0);
    assert_int_equal(f.told, 0);
    pass(&f, 1, 0);
    assert_int_equal(f.told, 1);
    assert_string_equal(f.line, "rank 2 (host 2) saves (step 100); rank 0 has waited 100 s in reduce 17 of "
                                "block 3 backward");
    pass(&f, 60, 0);
    assert_int_equal(f.told, 2);
    say(&f, 2, TIDE_PHASE_LOADING, "");
    pass(&f, 60, 0);
    assert_int_equal(f.told, 3);
    assert_string_equal(f.line, "rank 2 (host 2) loads; rank 0 has waited 220 s in reduce 17 of block 3 "
                                "backward");
    say(&f, 2, TIDE_PHASE_COMPUTING, "");
    pass(&f, 20, 0);
    expect_running(&f);
    pass(&f, 1, 0);
    expect_failure(&f, "rank 2 (host 2) has not come to reduce 17 of block 3 backward for 60 s");
    destroy(&f);
}

/* Rank 1 waits for rank 2 in an exchange, rank 0 for both in a reduce. */
static void wait_in_two_calls(fixture *f, tide_comm_phase phase)
{
    enter(f, 17);
    f->beats[1].calls[TIDE_CHANNEL_SIDE] = (tide_beat_call){5, 4};
    f->beats[2].calls[TIDE_CHANNEL_SIDE] = (tide_beat_call){4, 4};
    f->beats[3].calls[TIDE_CHANNEL_DATA] = (tide_beat_call){17, 16};
    say(f, 2, phase, "block 1");
}

static void a_peer_that_waits_for_one_that_loads_is_not_late(void **state)
{
    fixture f;
    make(&f);
    wait_in_two_calls(&f, TIDE_PHASE_LOADING);
    pass(&f, 300, 0);
    expect_running(&f);
    f.beats[2].calls[TIDE_CHANNEL_SIDE] = (tide_beat_call){5, 5}; /* now rank 1 waits for no such rank */
    pass(&f, 61, 0);
    expect_failure(&f, "rank 1 (host 1) has not come to reduce 17 of block 3 backward for 60 s");
    destroy(&f);
}

static void the_peer_for_which_another_waits_is_named(void **state)
{
    fixture f;
    make(&f);
    wait_in_two_calls(&f, TIDE_PHASE_COMPUTING);
    pass(&f, 62, 0);
    expect_failure(&f, "rank 2 (host 2) has not come to reduce 17 of block 3 backward for 60 s; it says: "
                       "block 1");
    destroy(&f);
}

/* --- silent peers --- */

static void a_silent_peer_is_named_whatever_its_phase(void **state)
{
    for (uint32_t phase = 0; phase < TIDE_PHASE_COUNT; phase++) {
        fixture f;
        make(&f);
        say(&f, 3, phase, "step 100");
        enter(&f, 17);
        others_enter(&f, 17, phase % 2 == 0 ? 0 : 3);
        pass(&f, 10, 0);
        if (phase == TIDE_PHASE_COMPUTING)
            f.beats[3].calls[TIDE_CHANNEL_DATA].entered = 17;
        pass(&f, 60, 3);
        expect_running(&f);
        pass(&f, 1, 3);
        expect_failure(&f, "nothing has been heard of rank 3 (host 3) for 60 s, in reduce 17 of block 3 "
                           "backward; it last said: step 100");
        destroy(&f);
    }
}

static void a_late_peer_s_silence_is_named(void **state)
{
    fixture f;
    make(&f);
    say(&f, 1, TIDE_PHASE_COMPUTING, "block 2");
    enter(&f, 17);
    others_enter(&f, 17, 1);
    pass(&f, 41, 0);
    pass(&f, 21, 1);
    expect_failure(&f, "rank 1 (host 1) has not come to reduce 17 of block 3 backward for 60 s, nothing has "
                       "been heard of it for 21 s; it last said: block 2");
    destroy(&f);
}

static void a_silent_peer_is_not_missed_outside_calls(void **state)
{
    fixture f;
    make(&f);
    pass(&f, 1, 0);
    pass(&f, 300, 1);
    expect_running(&f);
    enter(&f, 1);
    send_beat(&f, 1); /* it comes together with the call */
    pass(&f, 60, 1);
    expect_running(&f);
    destroy(&f);
}

static void a_silent_peer_whose_part_is_over_is_not_missed(void **state)
{
    fixture f;
    make(&f);
    enter(&f, 17);
    others_enter(&f, 17, 0);
    pass(&f, 1, 0);
    tide_watch_part_over(&f.watch, TIDE_CHANNEL_DATA, 1);
    pass(&f, 300, 1);
    expect_running(&f);
    tide_watch_leave(&f.watch, TIDE_CHANNEL_DATA);
    enter(&f, 18);
    tick(&f, 1);
    expect_failure(&f, "nothing has been heard of rank 1 (host 1) for 60 s, in reduce 18 of block 3 "
                       "backward");
    destroy(&f);
}

static void a_peer_that_closes_its_channel_is_left_to_the_transfer(void **state)
{
    fixture f;
    make(&f);
    enter(&f, 17);
    others_enter(&f, 17, 2);
    pass(&f, 1, 0);
    shutdown(f.others[2], SHUT_WR);
    pass(&f, 300, 2);
    expect_running(&f);
    destroy(&f);
}

static void the_first_beat_may_take_as_long_as_the_start(void **state)
{
    fixture f;
    make(&f);
    enter(&f, 1);
    others_enter(&f, 1, 0);
    pass(&f, 120, 2);
    expect_running(&f);
    pass(&f, 1, 2);
    expect_failure(&f, "nothing has been heard of rank 2 (host 2) for 60 s, in reduce 1 of block 3 "
                       "backward");
    destroy(&f);
}

static void time_without_ticks_counts_for_two_intervals(void **state)
{
    fixture f;
    make(&f);
    enter(&f, 17);
    others_enter(&f, 17, 2);
    pass(&f, 2, 0);
    for (uint32_t i = 0; i < 29; i++)
        tick(&f, 3600);
    expect_running(&f);
    tick(&f, 3600);
    tick(&f, 1);
    assert_int_equal(tide_comm_failure(&f.comm), TIDE_ERROR_PEER);
    destroy(&f);
}

/* --- the stream of beats --- */

static void a_beat_may_come_in_pieces(void **state)
{
    fixture f;
    make(&f);
    memset(f.beats[1].words, 'x', sizeof f.beats[1].words); /* no 0 byte, and a phase that does not exist */
    f.beats[1].phase = 77;
    f.beats[1].words[5] = '\n';
    enter(&f, 2);
    for (size_t i = 0; i < sizeof f.beats[1]; i++) {
        assert_int_equal(send(f.others[1], (const char *)&f.beats[1] + i, 1, MSG_NOSIGNAL), 1);
        tide_watch_tick(&f.watch, ++f.now_ns);
    }
    others_enter(&f, 2, 1);
    pass(&f, 62, 0);
    expect_failure(&f, "rank 1 (host 1) has not come to reduce 2 of block 3 backward for 60 s; it says: "
                       "xxxxx xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
    destroy(&f);
}

/* Tick with words that name the tick. */
static void tick_with_number(fixture *f, uint64_t number)
{
    char words[32];
    snprintf(words, sizeof words, "tick %u", (unsigned)number);
    enter(f, number);
    tide_watch_doing(&f->watch, TIDE_PHASE_SAVING, words);
    tide_watch_tick(&f->watch, ++f->now_ns);
    tide_watch_leave(&f->watch, TIDE_CHANNEL_DATA);
}

static void a_peer_that_reads_late_gets_whole_beats(void **state)
{
    enum { READS = 300, TICKS = 2000 };
    fixture f;
    uint64_t ticks = 0, last = 0;
    make(&f);
    for (uint32_t reads = 0; reads < READS; reads++) {
        tide_beat beat;
        char words[32];
        for (uint32_t i = 0; i < (reads % 100 == 0 ? TICKS : 1); i++)
            tick_with_number(&f, ++ticks);
        assert_true(tide_tcp_receive(f.others[1], &beat, sizeof beat, UINT64_MAX));
        snprintf(words, sizeof words, "tick %u", (unsigned)beat.calls[TIDE_CHANNEL_DATA].entered);
        assert_string_equal(beat.words, words);
        assert_int_equal(beat.calls[TIDE_CHANNEL_DATA].left + 1, beat.calls[TIDE_CHANNEL_DATA].entered);
        assert_true(beat.calls[TIDE_CHANNEL_DATA].entered > last);
        last = beat.calls[TIDE_CHANNEL_DATA].entered;
    }
    assert_in_range(last, 10, ticks - 1); /* beats were dropped */
    destroy(&f);
}

/* These sockets take small messages whole or not at all, so the test sends a beat's first part. */
static void a_beat_that_has_begun_is_finished_first(void **state)
{
    fixture f;
    tide_beat begun = {.words = "begun"}, beat;
    make(&f);
    tide_watch_peer *peer = &f.watch.peers[1];
    peer->out = begun;
    peer->out_left = sizeof begun - 30;
    assert_int_equal(send(tide_mesh_connection(&f.mesh, TIDE_CHANNEL_WATCH, 1), &begun, 30, MSG_NOSIGNAL),
                     30);
    tick_with_number(&f, 1);
    tick_with_number(&f, 2);
    assert_true(tide_tcp_receive(f.others[1], &beat, sizeof beat, UINT64_MAX));
    assert_memory_equal(&beat, &begun, sizeof beat);
    assert_true(tide_tcp_receive(f.others[1], &beat, sizeof beat, UINT64_MAX));
    assert_string_equal(beat.words, "tick 2");
    destroy(&f);
}

static void long_words_are_cut(void **state)
{
    fixture f;
    tide_beat beat;
    char words[200];
    make(&f);
    memset(words, 'x', sizeof words - 1);
    words[sizeof words - 1] = '\0';
    tide_watch_doing(&f.watch, TIDE_PHASE_PINNING, words);
    tick(&f, 1);
    assert_int_equal(recv(f.others[2], &beat, sizeof beat, 0), sizeof beat);
    words[63] = '\0';
    assert_string_equal(beat.words, words);
    assert_int_equal(beat.phase, TIDE_PHASE_PINNING);
    destroy(&f);
}

#define test(name) cmocka_unit_test_setup_teardown(name, count_files, expect_no_new_files)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(a_late_peer_is_named_with_its_words),
        test(a_peer_that_says_nothing_is_named),
        test(each_call_has_a_time_of_its_own),
        test(a_peer_s_clock_stands_while_it_saves),
        test(a_peer_that_waits_for_one_that_loads_is_not_late),
        test(the_peer_for_which_another_waits_is_named),
        test(a_silent_peer_is_named_whatever_its_phase),
        test(a_late_peer_s_silence_is_named),
        test(a_silent_peer_is_not_missed_outside_calls),
        test(a_silent_peer_whose_part_is_over_is_not_missed),
        test(a_peer_that_closes_its_channel_is_left_to_the_transfer),
        test(the_first_beat_may_take_as_long_as_the_start),
        test(time_without_ticks_counts_for_two_intervals),
        test(a_beat_may_come_in_pieces),
        test(a_peer_that_reads_late_gets_whole_beats),
        test(a_beat_that_has_begun_is_finished_first),
        test(long_words_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
