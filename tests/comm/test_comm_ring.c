/* The scratch memory of a reduce: where sums arrive and where they are packed. */
#include "src/comm/reduce_ring.h"
#include "tests/support/assert_ok.h"

#include <stdbool.h>
#include <stdlib.h>

typedef struct ring_case {
    uint8_t *scratch;
    uint64_t scratch_bytes;
    tide_tree_input inputs[TIDE_RANKS_MAX];
    tide_comm_range range; /* all that the rank owns */
    tide_reduce_ring ring;
} ring_case;

/* Rank `rank` owns `elements` sums in one range. */
static void begin(ring_case *made, uint32_t rank, uint32_t ranks, uint64_t scratch_bytes, float *sums,
                  uint64_t elements, tide_dtype travels_as)
{
    made->range = (tide_comm_range){sums, elements * sizeof *sums, rank};
    made->scratch_bytes = scratch_bytes;
    made->scratch = aligned_alloc(64, scratch_bytes);
    assert_non_null(made->scratch);
    const tide_comm_reduction reduction = {NULL, &made->range, 1, travels_as, made->scratch, scratch_bytes};
    tide_reduce_ring_begin(&made->ring, &reduction, rank, ranks, made->inputs);
}

/* Mark the bytes of one owner; none may be marked already. */
static void mark(uint8_t *marks, const ring_case *made, const void *first, uint64_t bytes)
{
    const uint64_t at = (uint64_t)((const uint8_t *)first - made->scratch);
    assert_true(bytes > 0 && at + bytes <= made->scratch_bytes);
    for (uint64_t i = at; i < at + bytes; i++)
        assert_int_equal(marks[i]++, 0);
}

static void halves_and_pieces_are_disjoint(void **state)
{
    static const uint32_t counts[] = {2, 3, 5, 8, TIDE_RANKS_MAX};
    float sums[1] = {0};
    for (uint32_t i = 0; i < 2 * sizeof counts / sizeof counts[0]; i++) {
        const uint32_t ranks = counts[i / 2], own = i % 2 == 0 ? 0 : ranks / 2;
        static ring_case made;
        begin(&made, own, ranks, 2 * ranks * (uint64_t)4096 + i * 64, sums, 1, TIDE_DTYPE_BF16);
        uint8_t *marks = calloc(1, made.scratch_bytes);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            uint32_t elements;
            if (rank == own)
                continue;
            mark(marks, &made, tide_reduce_ring_half(&made.ring, rank, 0), made.ring.half_bytes);
            mark(marks, &made, tide_reduce_ring_half(&made.ring, rank, 1), made.ring.half_bytes);
            const uint16_t *piece = tide_reduce_ring_staging(&made.ring, rank, &elements);
            mark(marks, &made, piece, elements * sizeof *piece);
        }
        free(marks);
        free(made.scratch);
    }
}

static void a_half_is_free_when_its_part_is_summed(void **state)
{
    enum { RANKS = 3, PART = 1024, PARTS = 4 };
    static ring_case made;
    float sums[PART * (PARTS - 1) + 1] = {0};
    begin(&made, 1, RANKS, 2 * RANKS * PART * sizeof *sums, sums, PART * (PARTS - 1) + 1, TIDE_DTYPE_FP32);
    assert_int_equal(made.ring.parts, PARTS);
    assert_int_equal(tide_reduce_ring_part_bytes(&made.ring, PARTS - 1), sizeof *sums);
    for (uint64_t part = 0; part < PARTS; part++) {
        assert_true(tide_reduce_ring_takes(&made.ring, part));
        assert_int_equal(tide_reduce_ring_takes(&made.ring, part + 1), part + 1 < PARTS);
        assert_false(tide_reduce_ring_takes(&made.ring, part + 2));
        for (uint32_t rank = 0; rank < RANKS; rank += 2) {
            assert_int_equal(made.ring.summed, part);
            float *half = (float *)(void *)tide_reduce_ring_half(&made.ring, rank, part);
            for (uint64_t i = 0; i < tide_reduce_ring_part_bytes(&made.ring, part) / sizeof *half; i++)
                half[i] = (float)(rank + part + 1);
            tide_reduce_ring_arrived(&made.ring, part);
        }
    }
    for (uint64_t i = 0; i < sizeof sums / sizeof sums[0]; i++)
        assert_true(sums[i] == (float)(2 * (i / PART) + 4));
    free(made.scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_and_pieces_are_disjoint),
        cmocka_unit_test(a_half_is_free_when_its_part_is_summed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
