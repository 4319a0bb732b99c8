/* Collectives over sockets, against plain loops. */
#include "base/bf16.h"
#include "src/comm/comm.h"
#include "tests/comm/socket_ranks.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"

#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANGES_MAX = 300, GUARD_BYTES = 8, EXCHANGES = 60 };

static const uint8_t guard = 0xab;

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return value ^ value >> 31;
}

static uint64_t next_random(uint64_t *state)
{
    return mix(*state += 0x9E3779B97F4A7C15u);
}

/* --- the ranges of one call, the same on all ranks --- */

typedef struct call_layout {
    uint32_t count;
    uint64_t bytes[RANGES_MAX];
    uint32_t owners[RANGES_MAX];
} call_layout;

typedef enum range_shape { MIXED, TINY, LARGE, ONE_OWNER, EMPTY, SHAPES } range_shape;

static uint64_t draw_bytes(range_shape shape, uint64_t *state)
{
    const uint64_t draw = next_random(state);
    switch (shape) {
    case TINY:
        return draw % 13;
    case LARGE:
        return 20000 + draw % 200000;
    case EMPTY:
        return 0;
    default:
        return draw % 8 == 0 ? 0 : draw % 8 == 1 ? draw / 8 % 60000 : draw / 8 % 900;
    }
}

/* `unit` divides the ranges' bytes. */
static call_layout draw_layout(uint32_t ranks, uint32_t unit, uint64_t *state)
{
    const range_shape shape = next_random(state) % SHAPES;
    const uint32_t lone_owner = (uint32_t)(next_random(state) % ranks);
    call_layout drawn = {.count = (uint32_t)(next_random(state) % (shape == TINY ? RANGES_MAX : 12))};
    for (uint32_t i = 0; i < drawn.count; i++) {
        drawn.bytes[i] = draw_bytes(shape, state) / unit * unit;
        drawn.owners[i] = shape == ONE_OWNER ? lone_owner : (uint32_t)(next_random(state) % ranks);
    }
    return drawn;
}

/* Memory for the ranges, a guard behind each, in one block that the first range's data begins. */
static uint8_t *place(const call_layout *layout, tide_comm_range *ranges)
{
    uint64_t total = GUARD_BYTES;
    for (uint32_t i = 0; i < layout->count; i++)
        total += (layout->bytes[i] + 7) / 8 * 8 + GUARD_BYTES;
    uint8_t *memory = malloc(total);
    if (memory == NULL)
        abort();
    memset(memory, guard, total);
    uint64_t at = 0;
    for (uint32_t i = 0; i < layout->count; i++) {
        ranges[i] = (tide_comm_range){memory + at, layout->bytes[i], layout->owners[i]};
        at += (layout->bytes[i] + 7) / 8 * 8 + GUARD_BYTES;
    }
    return memory;
}

static tide_status check_guards(const call_layout *layout, const tide_comm_range *ranges)
{
    for (uint32_t i = 0; i < layout->count; i++) {
        const uint8_t *end = (const uint8_t *)ranges[i].data + ranges[i].bytes;
        for (uint32_t j = 0; j < GUARD_BYTES; j++) {
            if (end[j] != guard)
                return tide_fail(TIDE_ERROR_INTERNAL, "range %u: byte %u behind it has changed", i, j);
        }
    }
    return TIDE_OK;
}

/* --- gather --- */

static uint8_t byte_of(uint64_t call, uint32_t rank, uint32_t range, uint64_t at)
{
    return (uint8_t)mix(call * 1000003 + rank * 65537 + range * 257 + at);
}

static tide_status check_gather(tide_comm *comm, uint64_t call, uint64_t *state)
{
    tide_comm_range ranges[RANGES_MAX];
    const call_layout layout = draw_layout(comm->ranks, 1, state);
    uint8_t *memory = place(&layout, ranges);
    for (uint32_t i = 0; i < layout.count; i++) {
        for (uint64_t at = 0; at < ranges[i].bytes; at++)
            ((uint8_t *)ranges[i].data)[at] = byte_of(call, comm->rank, i, at);
    }
    tide_status status = tide_comm_gather(comm, NULL, ranges, layout.count);
    for (uint32_t i = 0; i < layout.count && status == TIDE_OK; i++) {
        for (uint64_t at = 0; at < ranges[i].bytes && status == TIDE_OK; at++) {
            if (((const uint8_t *)ranges[i].data)[at] != byte_of(call, ranges[i].owner, i, at))
                status = tide_fail(TIDE_ERROR_INTERNAL, "rank %u, range %u: byte %u is wrong", comm->rank, i,
                                   (unsigned)at);
        }
    }
    if (status == TIDE_OK)
        status = check_guards(&layout, ranges);
    free(memory);
    return status;
}

/* --- reduce --- */

static float sum_of(uint64_t call, uint32_t rank, uint32_t range, uint64_t element, bool is_bf16)
{
    const uint64_t draw = mix(call * 1000003 + rank * 65537 + range * 257 + element);
    const float sum = ldexpf((float)(draw % 65536) - 32768.0f, (int)(draw >> 40) % 20 - 10);
    return is_bf16 ? tide_bf16_to_float(tide_bf16_from_float(sum)) : sum;
}

static float reference(const float *sums, uint32_t count)
{
    uint32_t half = 1;
    if (count == 1)
        return sums[0];
    while (2 * half < count)
        half *= 2;
    return reference(sums, half) + reference(sums + half, count - half);
}

static float expected_sum(const tide_comm *comm, uint64_t call, uint32_t owner, uint32_t range,
                          uint64_t element, bool is_bf16)
{
    float sums[SOCKET_RANKS_MAX];
    if (owner != comm->rank)
        return sum_of(call, comm->rank, range, element, is_bf16);
    for (uint32_t rank = 0; rank < comm->ranks; rank++)
        sums[rank] = sum_of(call, rank, range, element, is_bf16);
    return reference(sums, comm->ranks);
}

static tide_status check_sums(const tide_comm *comm, uint64_t call, const call_layout *layout,
                              const tide_comm_range *ranges, bool is_bf16)
{
    for (uint32_t i = 0; i < layout->count; i++) {
        const float *sums = ranges[i].data;
        for (uint64_t element = 0; element < ranges[i].bytes / sizeof *sums; element++) {
            const float expected = expected_sum(comm, call, ranges[i].owner, i, element, is_bf16);
            if (memcmp(&sums[element], &expected, sizeof expected) != 0)
                return tide_fail(TIDE_ERROR_INTERNAL, "rank %u, range %u of rank %u: sum %u is %g, not %g",
                                 comm->rank, i, ranges[i].owner, (unsigned)element, sums[element], expected);
        }
    }
    return check_guards(layout, ranges);
}

/* Each rank draws a scratch size of its own: the least, or more. */
static tide_status check_reduce(tide_comm *comm, uint64_t call, uint64_t *state, uint64_t *own_state)
{
    tide_comm_range ranges[RANGES_MAX];
    const bool is_bf16 = next_random(state) % 2 == 0;
    const call_layout layout = draw_layout(comm->ranks, sizeof(float), state);
    uint8_t *memory = place(&layout, ranges);
    const uint64_t extra = next_random(own_state) % 2 == 0 ? 0 : next_random(own_state) % (1 << 20);
    const uint64_t scratch_bytes = 2 * comm->ranks * (uint64_t)4096 + extra;
    void *scratch = aligned_alloc(64, (scratch_bytes + 63) / 64 * 64);
    if (scratch == NULL)
        abort();
    for (uint32_t i = 0; i < layout.count; i++) {
        for (uint64_t element = 0; element < ranges[i].bytes / sizeof(float); element++)
            ((float *)ranges[i].data)[element] = sum_of(call, comm->rank, i, element, is_bf16);
    }
    const tide_comm_reduction reduction = {
        .ranges = ranges,
        .count = layout.count,
        .travels_as = is_bf16 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32,
        .scratch = scratch,
        .scratch_bytes = scratch_bytes,
    };
    tide_status status = tide_comm_reduce(comm, &reduction);
    if (status == TIDE_OK)
        status = check_sums(comm, call, &layout, ranges, is_bf16);
    free(scratch);
    free(memory);
    return status;
}

/* --- exchange --- */

static tide_status check_exchange(tide_comm *comm, uint64_t call, uint64_t *state)
{
    enum { MANY = 100000 };
    const size_t bytes = next_random(state) % 4 == 0 ? next_random(state) % MANY : next_random(state) % 40;
    uint8_t *mine = malloc(bytes + 1), *all = malloc(comm->ranks * bytes + 1);
    if (mine == NULL || all == NULL)
        abort();
    for (size_t at = 0; at < bytes; at++)
        mine[at] = byte_of(call, comm->rank, 0, at);
    all[comm->ranks * bytes] = guard;
    tide_status status = tide_comm_exchange(comm, mine, bytes, all);
    for (size_t at = 0; at < comm->ranks * bytes && status == TIDE_OK; at++) {
        if (all[at] != byte_of(call, (uint32_t)(at / bytes), 0, at % bytes))
            status = tide_fail(TIDE_ERROR_INTERNAL, "rank %u: exchanged byte %zu is wrong", comm->rank, at);
    }
    if (status == TIDE_OK && all[comm->ranks * bytes] != guard)
        status = tide_fail(TIDE_ERROR_INTERNAL, "rank %u: the byte behind has changed", comm->rank);
    free(mine);
    free(all);
    return status;
}

/* --- bodies --- */

typedef struct side_thread {
    tide_comm *comm;
    tide_status status;
    char message[256];
} side_thread;

static void *exchange_often(void *argument)
{
    side_thread *side = argument;
    uint64_t state = 99;
    for (uint64_t call = 0; call < EXCHANGES && side->status == TIDE_OK; call++)
        side->status = check_exchange(side->comm, call, &state);
    if (side->status == TIDE_OK)
        side->status = tide_comm_barrier(side->comm);
    snprintf(side->message, sizeof side->message, "%.255s", tide_message());
    return NULL;
}

static tide_status random_calls(tide_comm *comm, void *context)
{
    const uint32_t calls = *(const uint32_t *)context;
    uint64_t state = 7 + comm->ranks, own_state = 1000 + comm->rank;
    tide_status status = TIDE_OK;
    for (uint64_t call = 0; call < calls && status == TIDE_OK; call++)
        status = next_random(&state) % 3 == 0 ? check_gather(comm, call, &state)
                                              : check_reduce(comm, call, &state, &own_state);
    return status;
}

static tide_status random_calls_on_two_threads(tide_comm *comm, void *context)
{
    side_thread side = {.comm = comm};
    pthread_t thread;
    if (pthread_create(&thread, NULL, exchange_often, &side) != 0)
        abort();
    const tide_status status = random_calls(comm, context);
    pthread_join(thread, NULL);
    return status != TIDE_OK || side.status == TIDE_OK ? status : tide_fail(side.status, "%s", side.message);
}

/* --- tests --- */

static void collectives_of_any_ranges_have_the_bits_of_plain_loops(void **state)
{
    static const uint32_t counts[] = {1, 2, 3, 5, 8};
    uint32_t calls = 40 / test_thin_threads(2);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        socket_rank ranks[SOCKET_RANKS_MAX];
        socket_ranks_set(ranks, counts[i], random_calls, &calls);
        socket_ranks_run(ranks, counts[i]);
        socket_ranks_expect_ok(ranks, counts[i]);
    }
}

static void exchanges_run_at_the_same_time_as_reduces(void **state)
{
    static const uint32_t counts[] = {1, 2, 3, 5};
    uint32_t calls = 40 / test_thin_threads(2);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        socket_rank ranks[SOCKET_RANKS_MAX];
        socket_ranks_set(ranks, counts[i], random_calls_on_two_threads, &calls);
        socket_ranks_run(ranks, counts[i]);
        socket_ranks_expect_ok(ranks, counts[i]);
    }
}

static bool has_ipv6(void)
{
    const struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool has = fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0)
        close(fd);
    return has;
}

static void ranks_connect_by_ipv6_and_by_name(void **state)
{
    static const char *const addresses[] = {"localhost", "127.0.0.1", "::1"};
    uint32_t calls = 5;
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0] - !has_ipv6(); i++) {
        socket_rank ranks[SOCKET_RANKS_MAX];
        socket_ranks_set(ranks, 3, random_calls, &calls);
        for (uint32_t rank = 0; rank < 3; rank++)
            ranks[rank].options.address = addresses[i];
        socket_ranks_run(ranks, 3);
        socket_ranks_expect_ok(ranks, 3);
    }
}

#define test(name) cmocka_unit_test_setup_teardown(name, count_files, expect_no_new_files)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(collectives_of_any_ranges_have_the_bits_of_plain_loops),
        test(exchanges_run_at_the_same_time_as_reduces),
        test(ranks_connect_by_ipv6_and_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
