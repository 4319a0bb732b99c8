/* Bitsets and priority buckets, compared with plain arrays on random operations. */
#include "chunk/priority_buckets.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 1;

static uint32_t below(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 11) % limit);
}

/* --- bitsets --- */

typedef struct set_case {
    uint32_t bound;
    tide_bitset set;
    uint64_t *words;
    bool *reference;
} set_case;

static void create_set(set_case *c, uint32_t bound)
{
    c->bound = bound;
    c->words = calloc(tide_bitset_words(bound), sizeof *c->words);
    c->reference = calloc(bound, sizeof *c->reference);
    assert_non_null(c->words);
    assert_non_null(c->reference);
    assert_ptr_equal(tide_bitset_place(&c->set, bound, c->words), c->words + tide_bitset_words(bound));
}

static void destroy_set(set_case *c)
{
    free(c->words);
    free(c->reference);
}

static uint32_t reference_from(const set_case *c, uint32_t from)
{
    for (uint32_t i = from; i < c->bound; i++)
        if (c->reference[i])
            return i;
    return TIDE_USE_NONE;
}

static uint32_t reference_below(const set_case *c, uint32_t limit)
{
    for (uint32_t i = limit; i-- > 0;)
        if (c->reference[i])
            return i;
    return TIDE_USE_NONE;
}

static void compare_sets(const set_case *c, uint32_t at)
{
    assert_int_equal(tide_bitset_from(&c->set, at), reference_from(c, at));
    assert_int_equal(tide_bitset_below(&c->set, at), reference_below(c, at));
    assert_int_equal(tide_bitset_is_empty(&c->set), reference_from(c, 0) == TIDE_USE_NONE);
}

/* Draw a number near the end of the set, near the end of a word on one of the levels, or anywhere. */
static uint32_t draw_number(uint32_t bound)
{
    const uint32_t span = 1u << 6 * (1 + below(3)), kind = below(4);
    uint32_t number = below(bound);
    if (kind == 0)
        number = bound - 1 - below(bound < 3 ? bound : 3);
    else if (kind == 1)
        number = number / span * span + below(3);
    else if (kind == 2)
        number = number / span * span + span - 1 - below(3);
    return number < bound ? number : bound - 1;
}

static void change_set(set_case *c)
{
    const uint32_t number = draw_number(c->bound), kind = below(2000);
    if (kind == 0) {
        tide_bitset_clear(&c->set);
        memset(c->reference, 0, c->bound);
    } else if (kind % 2) {
        tide_bitset_insert(&c->set, number);
        c->reference[number] = true;
    } else {
        tide_bitset_erase(&c->set, number);
        c->reference[number] = false;
    }
}

static void a_set_answers_as_an_array_does(void **state)
{
    static const uint32_t bounds[] = {1, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 300000};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        set_case c;
        create_set(&c, bounds[i]);
        const uint32_t rounds = bounds[i] > 10000 ? 3000 : 20000;
        for (uint32_t round = 0; round < rounds; round++) {
            change_set(&c);
            compare_sets(&c, draw_number(c.bound));
            compare_sets(&c, round % 2 ? 0 : c.bound);
        }
        destroy_set(&c);
    }
}

static void an_empty_set_has_nothing_and_a_full_one_everything(void **state)
{
    for (uint32_t bound = 1; bound < 200; bound++) {
        set_case c;
        create_set(&c, bound);
        for (uint32_t at = 0; at <= bound; at++)
            compare_sets(&c, at);
        for (uint32_t number = 0; number < bound; number++) {
            tide_bitset_insert(&c.set, number);
            c.reference[number] = true;
        }
        for (uint32_t at = 0; at <= bound; at++)
            compare_sets(&c, at);
        tide_bitset_clear(&c.set);
        assert_int_equal(tide_bitset_from(&c.set, 0), TIDE_USE_NONE);
        assert_int_equal(tide_bitset_below(&c.set, bound), TIDE_USE_NONE);
        destroy_set(&c);
    }
}

/* --- priority buckets --- */

enum { CHUNKS_MAX = 60, KEYS_MAX = 500 };

typedef struct bucket_case {
    tide_priority_buckets buckets;
    tide_places places;
    uint32_t chunks, keys;
    tide_horizon horizon;
    uint32_t bucket[CHUNKS_MAX], key[CHUNKS_MAX];
} bucket_case;

static void create_buckets(bucket_case *c)
{
    const uint32_t slots[TIDE_TIER_COUNT] = {1, 1};
    c->chunks = 1 + below(CHUNKS_MAX);
    c->keys = c->chunks + below(KEYS_MAX - CHUNKS_MAX);
    assert_int_equal(tide_places_create(&c->places, c->chunks, slots), TIDE_OK);
    assert_int_equal(
        tide_priority_buckets_create(&c->buckets, &c->places, 1 + below(TIDE_BUCKETS_MAX), c->keys), TIDE_OK);
    for (uint32_t i = 0; i < c->chunks; i++)
        c->bucket[i] = TIDE_BUCKET_NONE;
}

static void destroy_buckets(bucket_case *c)
{
    tide_priority_buckets_destroy(&c->buckets);
    tide_places_destroy(&c->places);
}

/* Draw a horizon (priority_buckets.h). `from` is 0, `never`, `never` - 1, or any number up to `never`;
 * `never` is the number of keys or smaller. */
static void draw_horizon(bucket_case *c)
{
    const uint32_t never = below(3) ? below(c->keys + 1) : c->keys;
    const uint32_t kind = below(5), near = never > 0 ? never - 1 : 0;
    c->horizon = (tide_horizon){.never = never,
                                .from = kind == 0   ? 0
                                        : kind == 1 ? never
                                        : kind == 2 ? near
                                                    : below(never + 1)};
}

static bool key_is_taken(const bucket_case *c, tide_chunk besides, uint32_t key)
{
    for (tide_chunk chunk = 0; chunk < c->chunks; chunk++)
        if (chunk != besides && c->bucket[chunk] != TIDE_BUCKET_NONE && c->key[chunk] == key)
            return true;
    return false;
}

static void put_one(bucket_case *c)
{
    const tide_chunk chunk = below(c->chunks);
    uint32_t bucket = below(4) ? below(c->buckets.count) : TIDE_BUCKET_NONE, key = below(c->keys);
    if (below(5) == 0 && c->bucket[chunk] != TIDE_BUCKET_NONE)
        key = c->key[chunk]; /* the chunk's own key, perhaps in another bucket */
    while (key_is_taken(c, chunk, key))
        key = (key + 1) % c->keys;
    tide_priority_buckets_put(&c->buckets, chunk, bucket, key);
    c->bucket[chunk] = bucket;
    c->key[chunk] = key;
}

/* Distances on a circle of schedule steps: `from` is nearest, and the step before it farthest. A chunk that
 * is never used is farther still. */
static uint64_t reference_distance(const bucket_case *c, tide_chunk chunk)
{
    const uint32_t key = c->key[chunk];
    if (key >= c->horizon.never)
        return key;
    return (key + c->horizon.never - c->horizon.from) % c->horizon.never;
}

static tide_chunk reference_find(const bucket_case *c, uint32_t among, uint32_t spared, bool farthest)
{
    tide_chunk found = TIDE_CHUNK_NONE;
    for (tide_chunk chunk = 0; chunk < c->chunks; chunk++)
        if (c->bucket[chunk] != TIDE_BUCKET_NONE && among >> c->bucket[chunk] & 1u &&
            !(c->places.chunks[chunk].marks & spared) &&
            (found == TIDE_CHUNK_NONE ||
             (reference_distance(c, chunk) > reference_distance(c, found)) == farthest))
            found = chunk;
    return found;
}

static void compare_buckets(const bucket_case *c, uint32_t spared)
{
    const tide_priority_buckets *s = &c->buckets;
    for (uint32_t bucket = 0; bucket < s->count; bucket++) {
        const uint32_t among = 1u << bucket | (below(2) ? below(1u << s->count) : 0);
        assert_int_equal(tide_priority_buckets_farthest(s, among, c->horizon, spared),
                         reference_find(c, among, spared, true));
        assert_int_equal(tide_priority_buckets_nearest(s, among, c->horizon, spared),
                         reference_find(c, among, spared, false));
    }
}

static void buckets_find_the_farthest_and_the_nearest(void **state)
{
    for (uint32_t round = 0; round < 300; round++) {
        bucket_case c;
        create_buckets(&c);
        for (uint32_t change = 0; change < 200; change++) {
            put_one(&c);
            if (below(3) == 0)
                c.places.chunks[below(c.chunks)].marks = (uint8_t)(1u << below(8));
            draw_horizon(&c);
            compare_buckets(&c, below(2) ? 0 : 1u << below(8) | 1u << below(8));
        }
        tide_priority_buckets_clear(&c.buckets);
        for (tide_chunk chunk = 0; chunk < c.chunks; chunk++)
            c.bucket[chunk] = TIDE_BUCKET_NONE;
        compare_buckets(&c, 0);
        destroy_buckets(&c);
    }
}

static void buckets_without_memory_say_so_and_leave_nothing(void **state)
{
    tide_status status = TIDE_ERROR_NO_MEMORY;
    unsigned request = 0;
    for (; status == TIDE_ERROR_NO_MEMORY; request++) {
        tide_priority_buckets buckets;
        const tide_places places = {.chunk_count = 10};
        fake_memory_fail(request);
        status = tide_priority_buckets_create(&buckets, &places, TIDE_BUCKETS_MAX, 1000);
        assert_int_equal(status, fake_memory_failed() ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        fake_memory_clear();
        tide_priority_buckets_destroy(&buckets);
    }
    assert_int_equal(status, TIDE_OK);
    assert_int_equal(request, 4); /* three arrays fail in turn; the fourth try succeeds */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_set_answers_as_an_array_does),
        cmocka_unit_test(an_empty_set_has_nothing_and_a_full_one_everything),
        cmocka_unit_test(buckets_find_the_farthest_and_the_nearest),
        cmocka_unit_test(buckets_without_memory_say_so_and_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
