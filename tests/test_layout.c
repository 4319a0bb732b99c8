/* Layout: packing, straddling, pairs with state chunks; and random layouts against a byte map. */
#include "chunk/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CHUNK_BYTES = 4096, BF16_ELEMENTS = CHUNK_BYTES / 2, FP32_ELEMENTS = CHUNK_BYTES / 4 };

static tide_layout *new_layout(tide_dtype dtype)
{
    tide_layout *layout;
    tide_layout_options options = {.chunk_bytes = CHUNK_BYTES, .dtype = dtype, .states = 2};
    assert_int_equal(tide_layout_create(&options, &layout), TIDE_OK);
    return layout;
}

static uint32_t add_param(tide_layout *layout, const char *name, uint64_t elements)
{
    uint32_t param;
    assert_int_equal(tide_layout_add_param(layout, name, elements, &param), TIDE_OK);
    return param;
}

static void a_bf16_chunk_pairs_with_two_fp32_chunks_and_an_fp32_one_with_one(void **state)
{
    (void)state;
    tide_layout *layout = new_layout(TIDE_DTYPE_BF16);
    add_param(layout, "p", BF16_ELEMENTS + FP32_ELEMENTS);
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    assert_int_equal(tide_layout_parts_per_chunk(layout), 2);
    assert_int_equal(tide_layout_state_chunk(layout, 0, TIDE_SPACE_MASTER, 1), 3);
    assert_int_equal(tide_layout_state_chunk(layout, 1, TIDE_SPACE_VARIANCE, 0), 10);
    assert_int_equal(tide_layout_state_chunk(layout, 1, TIDE_SPACE_MASTER, 1), TIDE_CHUNK_NONE);
    tide_layout_destroy(layout);

    layout = new_layout(TIDE_DTYPE_FP32);
    add_param(layout, "p", FP32_ELEMENTS + 1);
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    assert_int_equal(tide_layout_parts_per_chunk(layout), 1);
    assert_int_equal(tide_layout_state_chunk(layout, 1, TIDE_SPACE_MOMENTUM, 0), 5);
    tide_layout_destroy(layout);
}

static void checkpoint_parts_lie_behind_each_other_on_256_bytes(void **state)
{
    (void)state;
    uint32_t tensor, other;
    tide_chunk first, last;
    tide_layout *layout = new_layout(TIDE_DTYPE_BF16);
    add_param(layout, "p", 1);
    assert_int_equal(tide_layout_add_checkpoint(layout, "c", 3, 2000, &tensor), TIDE_OK);
    assert_int_equal(tide_layout_add_checkpoint(layout, "d", 1, 100, &other), TIDE_OK);
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    assert_int_equal(tide_layout_checkpoint(layout, tensor)->offset, 0);
    assert_int_equal(tide_layout_checkpoint(layout, other)->offset, 4096 + 2048);
    tide_layout_checkpoint_chunks(layout, tensor, 2, &first, &last);
    assert_int_equal(first, last);
    assert_int_equal(first, tide_layout_chunk(layout, TIDE_SPACE_CHECKPOINT, 1));
    assert_int_equal(tide_layout_chunk_used_bytes(layout, last), 2048 + 100);
    tide_layout_destroy(layout);
}

static void bad_options_and_names_are_refused(void **state)
{
    (void)state;
    tide_layout *layout = NULL;
    uint32_t number;
    tide_layout_options good = {.chunk_bytes = CHUNK_BYTES, .dtype = TIDE_DTYPE_BF16, .states = 2};
    tide_layout_options bad[] = {good, good, good, good};
    bad[0].chunk_bytes = 3 * CHUNK_BYTES;
    bad[1].chunk_bytes = CHUNK_BYTES / 2;
    bad[2].states = 3;
    bad[3].dtype = (tide_dtype)7;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tide_layout_create(&bad[i], &layout), TIDE_ERROR_ARGUMENT);
    assert_null(layout);
    layout = new_layout(TIDE_DTYPE_BF16);
    assert_int_equal(tide_layout_seal(layout), TIDE_ERROR_ARGUMENT);
    add_param(layout, "p", 1);
    assert_int_equal(tide_layout_add_param(layout, "p", 1, &number), TIDE_ERROR_ARGUMENT);
    assert_non_null(strstr(tide_message(), "param p: there is one of this name"));
    assert_int_equal(tide_layout_add_param(layout, "", 1, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_param(layout, "q", 0, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_checkpoint(layout, "c", 0, 1, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_checkpoint(layout, "c", 1, 0, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_checkpoint(layout, "p", 1, 1, &number), TIDE_OK); /* of another kind */
    assert_int_equal(tide_layout_add_checkpoint(layout, "p", 1, 1, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_param(layout, "q", UINT64_C(1) << 48, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_checkpoint(layout, "c", UINT32_MAX, 1, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_checkpoint(layout, "c", 2, UINT64_C(1) << 49, &number),
                     TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    assert_int_equal(tide_layout_add_param(layout, "late", 1, &number), TIDE_ERROR_STATE);
    assert_false(tide_layout_find_param(layout, "late", &number));
    assert_true(tide_layout_find_param(layout, "p", &number));
    tide_layout_destroy(layout);
}

/* Every one is found, none that is not there. */
static void each_of_many_names_is_found_by_its_number_and_refused_twice(void **state)
{
    (void)state;
    enum { NAMES = 20000 };
    tide_layout *layout = new_layout(TIDE_DTYPE_BF16);
    uint32_t number = 77, checkpoint;
    char name[32];
    for (uint32_t i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "block.%u.weight", i);
        assert_false(tide_layout_find_param(layout, name, &number));
        assert_int_equal(number, 77);
        assert_int_equal(add_param(layout, name, 1), i);
    }
    for (uint32_t i = 0; i < NAMES; i += 7) {
        snprintf(name, sizeof name, "block.%u.weight", i);
        assert_true(tide_layout_find_param(layout, name, &number));
        assert_int_equal(number, i);
        assert_string_equal(tide_layout_param(layout, i)->name, name);
        assert_int_equal(tide_layout_add_param(layout, name, 1, &number), TIDE_ERROR_ARGUMENT);
        assert_int_equal(tide_layout_add_checkpoint(layout, name, 1, 1, &checkpoint), TIDE_OK);
    }
    assert_int_equal(tide_layout_params(layout), NAMES);
    assert_int_equal(tide_layout_add_param(layout, "block.7.weigh", 1, &number), TIDE_OK);
    assert_int_equal(number, NAMES);
    tide_layout_destroy(layout);
}

/* --- random layouts against a map that says of every element whose it is --- */

enum { PARAMS_MAX = 20, ELEMENTS_MAX = 200000 };

typedef struct element_map {
    int32_t owner[ELEMENTS_MAX]; /* param, -1 for a gap */
    uint64_t elements;
    uint64_t first[PARAMS_MAX], end[PARAMS_MAX];
} element_map;

static void map_param(element_map *map, uint32_t param, uint64_t elements, uint64_t alignment)
{
    while (map->elements % alignment)
        map->owner[map->elements++] = -1;
    map->first[param] = map->elements;
    for (uint64_t i = 0; i < elements; i++)
        map->owner[map->elements++] = (int32_t)param;
    map->end[param] = map->elements;
}

/* Every element of the chunk is in exactly the segment that the map says, gaps in none. */
static void check_chunk(const tide_layout *layout, const element_map *map, tide_chunk chunk,
                        uint64_t chunk_elements)
{
    static int32_t seen[CHUNK_BYTES];
    uint64_t begin = tide_layout_chunk_index(layout, chunk) * chunk_elements;
    for (uint64_t i = 0; i < chunk_elements; i++)
        seen[i] = -1;
    for (uint32_t s = 0; s < tide_layout_chunk_segments(layout, chunk); s++) {
        tide_segment segment = tide_layout_chunk_segment(layout, chunk, s);
        assert_true(segment.elements > 0);
        assert_int_equal(map->first[segment.param] + segment.param_offset_elements,
                         begin + segment.chunk_offset_elements);
        for (uint64_t i = 0; i < segment.elements; i++) {
            assert_int_equal(seen[segment.chunk_offset_elements + i], -1);
            seen[segment.chunk_offset_elements + i] = (int32_t)segment.param;
        }
    }
    for (uint64_t i = 0; i < chunk_elements; i++)
        assert_int_equal(seen[i], begin + i < map->elements ? map->owner[begin + i] : -1);
    const uint64_t left = map->elements - begin;
    assert_int_equal(tide_layout_chunk_used_bytes(layout, chunk),
                     left < chunk_elements ? left * CHUNK_BYTES / chunk_elements : CHUNK_BYTES);
}

static void check_params(const tide_layout *layout, const element_map *map, uint64_t param_elements)
{
    for (uint32_t p = 0; p < tide_layout_params(layout); p++) {
        tide_chunk first, last;
        tide_layout_param_chunks(layout, p, &first, &last);
        assert_int_equal(first, map->first[p] / param_elements);
        assert_int_equal(last, (map->end[p] - 1) / param_elements);
        assert_int_equal(tide_layout_param(layout, p)->offset, map->first[p]);
    }
}

static void random_layouts_agree_with_a_map_of_their_elements(void **state)
{
    (void)state;
    static element_map map;
    srand(7);
    for (int round = 0; round < 150; round++) {
        tide_dtype dtype = rand() % 2 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32;
        uint64_t bytes = tide_dtype_bytes(dtype), param_elements = CHUNK_BYTES / bytes;
        tide_layout *layout = new_layout(dtype);
        uint32_t params = 1 + (uint32_t)rand() % PARAMS_MAX;
        map.elements = 0;
        for (uint32_t p = 0; p < params; p++) {
            char name[16];
            uint64_t elements = 1 + (uint64_t)rand() % (rand() % 3 ? 300 : 9000);
            snprintf(name, sizeof name, "p%u", p);
            add_param(layout, name, elements);
            map_param(&map, p, elements, 256 / bytes);
        }
        assert_int_equal(tide_layout_seal(layout), TIDE_OK);
        for (int space = TIDE_SPACE_PARAM; space < TIDE_SPACE_CHECKPOINT; space++) {
            uint64_t elements = space == TIDE_SPACE_PARAM ? param_elements : FP32_ELEMENTS;
            uint32_t chunks = tide_layout_space_chunks(layout, (tide_space)space);
            assert_int_equal(chunks, (map.elements + elements - 1) / elements);
            for (uint32_t i = 0; i < chunks; i++)
                check_chunk(layout, &map, tide_layout_chunk(layout, (tide_space)space, i), elements);
        }
        check_params(layout, &map, param_elements);
        tide_layout_destroy(layout);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bf16_chunk_pairs_with_two_fp32_chunks_and_an_fp32_one_with_one),
        cmocka_unit_test(checkpoint_parts_lie_behind_each_other_on_256_bytes),
        cmocka_unit_test(bad_options_and_names_are_refused),
        cmocka_unit_test(each_of_many_names_is_found_by_its_number_and_refused_twice),
        cmocka_unit_test(random_layouts_agree_with_a_map_of_their_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
