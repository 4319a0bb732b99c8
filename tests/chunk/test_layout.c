/* The layout: how params are packed into chunks and cross their borders, classes, pieces and planes. Then
 * random layouts are compared with a map that names the param of every element. */
#include "chunk/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CHUNK_BYTES = 4096, BF16_ELEMENTS = CHUNK_BYTES / 2, ADAMW_ELEMENTS = 256 };

static const tide_state_format adamw = {3, {128, 128, 128}}, frozen = {0};

static tide_layout *new_layout(tide_dtype dtype)
{
    tide_layout *layout;
    uint32_t number;
    tide_layout_options options = {.chunk_bytes = CHUNK_BYTES, .dtype = dtype};
    assert_int_equal(tide_layout_create(&options, &layout), TIDE_OK);
    assert_int_equal(tide_layout_add_class(layout, &adamw, &number), TIDE_OK);
    assert_int_equal(number, 0);
    return layout;
}

static uint32_t add_param(tide_layout *layout, const char *name, uint64_t elements)
{
    uint32_t param;
    assert_int_equal(tide_layout_add_param(layout, 0, name, elements, &param), TIDE_OK);
    return param;
}

static void a_64_MiB_chunk_of_bf16_has_seven_pieces_and_shares_the_last(void **state)
{
    (void)state;
    tide_layout *layout;
    uint32_t number;
    tide_chunk first, last;
    const tide_layout_options options = {.chunk_bytes = 64 << 20, .dtype = TIDE_DTYPE_BF16};
    assert_int_equal(tide_layout_create(&options, &layout), TIDE_OK);
    assert_int_equal(tide_layout_add_class(layout, &adamw, &number), TIDE_OK);
    add_param(layout, "p", UINT64_C(2) * (32 << 20));
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    assert_int_equal(tide_layout_pieces(layout, 0), 7);
    assert_int_equal(tide_layout_space_chunks(layout, TIDE_SPACE_STATE), 13);
    assert_int_equal(tide_layout_piece(layout, 0, 0).elements, 5592320);
    assert_int_equal(tide_layout_plane_offset_bytes(layout, 2, 2), 2 * 4 * 5592320);
    const tide_piece shared = tide_layout_piece(layout, 0, 6), begun = tide_layout_piece(layout, 1, 0);
    assert_int_equal(shared.state_chunk, begun.state_chunk);
    assert_int_equal(shared.elements, (32 << 20) - 6 * 5592320);
    assert_int_equal(begun.param_offset_elements, 0);
    assert_int_equal(begun.state_offset_elements, shared.elements);
    tide_layout_state_owners(layout, shared.state_chunk, &first, &last);
    assert_int_equal(first, 0);
    assert_int_equal(last, 1);
    tide_layout_destroy(layout);
}

/* The params of GPT-2 large in the order of the model, width 1280: 774,030,080 elements. */
static void add_gpt2_large(tide_layout *layout)
{
    const uint64_t d = 1280,
                   block[] = {d, d, 3 * d * d, 3 * d, d * d, d, d, d, 4 * d * d, 4 * d, 4 * d * d, d};
    char name[32];
    add_param(layout, "wte", 50257 * d);
    add_param(layout, "wpe", 1024 * d);
    for (uint32_t i = 0; i < 36 * 12; i++) {
        snprintf(name, sizeof name, "h%u.%u", i / 12, i % 12);
        add_param(layout, name, block[i % 12]);
    }
    add_param(layout, "ln_f.weight", d);
    add_param(layout, "ln_f.bias", d);
}

/* Bytes of params, or of their state, in a chunk, without gaps. */
static uint64_t content_bytes(const tide_layout *layout, tide_chunk chunk)
{
    uint64_t elements = 0;
    tide_chunk owner, last;
    if (tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_PARAM) {
        for (uint32_t i = 0; i < tide_layout_chunk_segments(layout, chunk); i++)
            elements += tide_layout_chunk_segment(layout, chunk, i).elements;
        return 2 * elements;
    }
    tide_layout_state_owners(layout, chunk, &owner, &last);
    for (; owner <= last; owner++)
        for (uint32_t i = 0; i < tide_layout_pieces(layout, owner); i++) {
            const tide_piece piece = tide_layout_piece(layout, owner, i);
            elements += piece.state_chunk == chunk ? piece.elements : 0;
        }
    return 12 * elements;
}

static void chunks_of_gpt2_large_are_full_but_for_one_tail_a_space(void **state)
{
    (void)state;
    tide_layout *layout;
    uint32_t number, shared = 0;
    const tide_layout_options options = {.chunk_bytes = 64 << 20, .dtype = TIDE_DTYPE_BF16};
    assert_int_equal(tide_layout_create(&options, &layout), TIDE_OK);
    assert_int_equal(tide_layout_add_class(layout, &adamw, &number), TIDE_OK);
    add_gpt2_large(layout);
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    const uint32_t params = tide_layout_space_chunks(layout, TIDE_SPACE_PARAM),
                   states = tide_layout_space_chunks(layout, TIDE_SPACE_STATE);
    assert_int_equal(params, 24);
    assert_int_equal(states, 139);
    for (tide_chunk chunk = 0; chunk < params + states; chunk++) {
        tide_chunk first, last;
        if (chunk != params - 1 && chunk != params + states - 1)
            assert_true(content_bytes(layout, chunk) * 1000 >= options.chunk_bytes * 999);
        if (chunk < params - 1)
            assert_int_equal(tide_layout_pieces(layout, chunk), 7);
        if (chunk < params)
            continue;
        tide_layout_state_owners(layout, chunk, &first, &last);
        shared += first != last;
    }
    assert_int_equal(shared, params - 1); /* one STATE chunk in six */
    assert_int_equal(tide_layout_pieces_most(layout), 7);
    tide_layout_destroy(layout);
}

static void the_last_chunks_planes_are_as_long_as_its_elements(void **state)
{
    (void)state;
    tide_layout *layout = new_layout(TIDE_DTYPE_BF16);
    add_param(layout, "p", ADAMW_ELEMENTS + 10);
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    assert_int_equal(tide_layout_chunk_used_bytes(layout, 1), 3 * 1024);
    /* 10 elements take 128 bytes, aligned */
    assert_int_equal(tide_layout_plane_offset_bytes(layout, 2, 1), 256);
    assert_int_equal(tide_layout_chunk_used_bytes(layout, 2), 2 * 256 + 128);
    tide_layout_destroy(layout);
}

static void a_class_begins_with_a_chunk_and_a_frozen_one_has_no_state(void **state)
{
    (void)state;
    tide_layout *layout = new_layout(TIDE_DTYPE_BF16);
    uint32_t cold, param;
    tide_chunk first, last;
    assert_int_equal(tide_layout_add_class(layout, &frozen, &cold), TIDE_OK);
    assert_int_equal(tide_layout_add_param(layout, cold, "a", 10, &param), TIDE_OK);
    assert_int_equal(add_param(layout, "b", 10), 1);
    assert_int_equal(tide_layout_add_param(layout, cold, "c", BF16_ELEMENTS, &param), TIDE_OK);
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    assert_int_equal(tide_layout_space_chunks(layout, TIDE_SPACE_PARAM), 3);
    assert_int_equal(tide_layout_space_chunks(layout, TIDE_SPACE_STATE), 1);
    assert_int_equal(tide_layout_param(layout, 1)->offset, 0);
    assert_int_equal(tide_layout_param(layout, 0)->offset, BF16_ELEMENTS);
    tide_layout_param_chunks(layout, 2, &first, &last);
    assert_int_equal(first, 1);
    assert_int_equal(last, 2);
    assert_int_equal(tide_layout_pieces(layout, 0), 1);
    assert_int_equal(tide_layout_pieces(layout, 1), 0);
    assert_true(tide_layout_param_is_frozen(layout, 0));
    assert_false(tide_layout_param_is_frozen(layout, 1));
    tide_layout_destroy(layout);
}

static void activation_parts_lie_behind_each_other_on_256_bytes(void **state)
{
    (void)state;
    uint32_t tensor, other;
    tide_chunk first, last;
    tide_layout *layout = new_layout(TIDE_DTYPE_BF16);
    add_param(layout, "p", 1);
    assert_int_equal(tide_layout_add_activation(layout, "c", 3, 2000, &tensor), TIDE_OK);
    assert_int_equal(tide_layout_add_activation(layout, "d", 1, 100, &other), TIDE_OK);
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    assert_int_equal(tide_layout_activation(layout, tensor)->offset, 0);
    assert_int_equal(tide_layout_activation(layout, other)->offset, 4096 + 2048);
    tide_layout_activation_chunks(layout, tensor, 2, &first, &last);
    assert_int_equal(first, last);
    assert_int_equal(first, tide_layout_chunk(layout, TIDE_SPACE_ACTIVATION, 1));
    assert_int_equal(tide_layout_chunk_used_bytes(layout, last), 2048 + 100);
    tide_layout_destroy(layout);
}

static void bad_options_classes_and_names_are_refused(void **state)
{
    (void)state;
    tide_layout *layout = NULL;
    uint32_t number;
    const tide_layout_options good = {.chunk_bytes = CHUNK_BYTES, .dtype = TIDE_DTYPE_BF16};
    tide_layout_options bad[] = {good, good, good};
    bad[0].chunk_bytes = 3 * CHUNK_BYTES;
    bad[1].chunk_bytes = CHUNK_BYTES / 2;
    bad[2].dtype = (tide_dtype)7;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tide_layout_create(&bad[i], &layout), TIDE_ERROR_ARGUMENT);
    assert_null(layout);
    layout = new_layout(TIDE_DTYPE_BF16);
    const tide_state_format formats[] = {{4, {1, 1, 1}}, {2, {1, 0}}, {1, {513}}, {1, {UINT32_MAX}}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        assert_int_equal(tide_layout_add_class(layout, &formats[i], &number), TIDE_ERROR_ARGUMENT);
    for (uint32_t i = 1; i < TIDE_CLASSES_MAX; i++)
        assert_int_equal(tide_layout_add_class(layout, &frozen, &number), TIDE_OK);
    assert_int_equal(tide_layout_add_class(layout, &frozen, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_seal(layout), TIDE_ERROR_ARGUMENT);
    add_param(layout, "p", 1);
    assert_int_equal(tide_layout_add_param(layout, 0, "p", 1, &number), TIDE_ERROR_ARGUMENT);
    assert_non_null(strstr(tide_message(), "param p: there is one of this name"));
    assert_int_equal(tide_layout_add_param(layout, TIDE_CLASSES_MAX, "q", 1, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_param(layout, 0, "", 1, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_param(layout, 0, "q", 0, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_activation(layout, "c", 0, 1, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_activation(layout, "c", 1, 0, &number), TIDE_ERROR_ARGUMENT);
    /* a param may have the same name */
    assert_int_equal(tide_layout_add_activation(layout, "p", 1, 1, &number), TIDE_OK);
    assert_int_equal(tide_layout_add_activation(layout, "p", 1, 1, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_param(layout, 0, "q", UINT64_C(1) << 48, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_activation(layout, "c", UINT32_MAX, 1, &number), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_add_activation(layout, "c", 2, UINT64_C(1) << 49, &number),
                     TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    assert_int_equal(tide_layout_add_param(layout, 0, "late", 1, &number), TIDE_ERROR_STATE);
    assert_false(tide_layout_find_param(layout, "late", &number));
    assert_true(tide_layout_find_param(layout, "p", &number));
    tide_layout_destroy(layout);
}

/* Each name is found, and no other. */
static void each_of_many_names_is_found_by_its_number_and_refused_twice(void **state)
{
    (void)state;
    enum { NAMES = 20000 };
    tide_layout *layout = new_layout(TIDE_DTYPE_BF16);
    uint32_t number = 77, activation;
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
        assert_int_equal(tide_layout_add_param(layout, 0, name, 1, &number), TIDE_ERROR_ARGUMENT);
        assert_int_equal(tide_layout_add_activation(layout, name, 1, 1, &activation), TIDE_OK);
    }
    assert_int_equal(tide_layout_params(layout), NAMES);
    assert_int_equal(tide_layout_add_param(layout, 0, "block.7.weigh", 1, &number), TIDE_OK);
    assert_int_equal(number, NAMES);
    tide_layout_destroy(layout);
}

/* --- random layouts, compared with a map of each class that names the param of every element --- */

enum { PARAMS_MAX = 20, CLASSES = 3, ELEMENTS_MAX = 200000 };

typedef struct element_map {
    int32_t owner[ELEMENTS_MAX]; /* the param, -1 for a gap */
    uint64_t elements;
    tide_chunk first_chunk; /* first PARAM chunk of the class */
} element_map;

static uint64_t first[PARAMS_MAX], end[PARAMS_MAX]; /* range of each param's elements in its class */

static void map_param(element_map *map, uint32_t param, uint64_t elements, uint64_t alignment)
{
    while (map->elements % alignment)
        map->owner[map->elements++] = -1;
    first[param] = map->elements;
    for (uint64_t i = 0; i < elements; i++)
        map->owner[map->elements++] = (int32_t)param;
    end[param] = map->elements;
}

/* Counts segments of the elements [begin, begin + count) of a class: each element must be in exactly one
 * segment, that of its param in the map; a gap in none. */
typedef struct seen_elements {
    int32_t owner[4 * CHUNK_BYTES];
    uint64_t begin, count;
} seen_elements;

static void see(seen_elements *seen, tide_segment segment, uint64_t chunk_begin)
{
    const uint64_t at = chunk_begin + segment.chunk_offset_elements;
    assert_true(segment.elements > 0);
    assert_int_equal(first[segment.param] + segment.param_offset_elements, at);
    assert_true(at >= seen->begin && at + segment.elements <= seen->begin + seen->count);
    for (uint64_t i = 0; i < segment.elements; i++) {
        assert_int_equal(seen->owner[at - seen->begin + i], -1);
        seen->owner[at - seen->begin + i] = (int32_t)segment.param;
    }
}

static void see_nothing(seen_elements *seen, uint64_t begin, uint64_t count)
{
    memset(seen->owner, 0xff, sizeof seen->owner);
    seen->begin = begin;
    seen->count = count;
}

static void compare(const seen_elements *seen, const element_map *map)
{
    for (uint64_t i = 0; i < seen->count; i++) {
        const uint64_t at = seen->begin + i;
        assert_int_equal(seen->owner[i], at < map->elements ? map->owner[at] : -1);
    }
}

static seen_elements seen;

static void check_chunk(const tide_layout *layout, const element_map *map, tide_chunk chunk,
                        uint64_t elements)
{
    const uint64_t begin = (chunk - map->first_chunk) * elements, left = map->elements - begin;
    see_nothing(&seen, begin, elements);
    for (uint32_t s = 0; s < tide_layout_chunk_segments(layout, chunk); s++)
        see(&seen, tide_layout_chunk_segment(layout, chunk, s), begin);
    compare(&seen, map);
    assert_int_equal(tide_layout_chunk_used_bytes(layout, chunk),
                     left < elements ? left * CHUNK_BYTES / elements : CHUNK_BYTES);
}

/* A chunk's pieces must follow each other, each must lie in its STATE chunk behind the piece before it
 * there, and their segments must agree with the map. */
static void check_pieces(const tide_layout *layout, const element_map *map, tide_chunk chunk,
                         uint64_t elements)
{
    const uint64_t chunk_begin = (chunk - map->first_chunk) * elements;
    uint64_t begin = chunk_begin;
    for (uint32_t i = 0; i < tide_layout_pieces(layout, chunk); i++) {
        const tide_piece piece = tide_layout_piece(layout, chunk, i);
        uint32_t segment;
        tide_chunk owner, last;
        assert_int_equal(piece.param_chunk, chunk);
        assert_int_equal(chunk_begin + piece.param_offset_elements, begin);
        assert_int_equal(piece.param_offset_elements % 256 + piece.state_offset_elements % 256, 0);
        assert_true(i == 0 || piece.state_offset_elements == 0);
        see_nothing(&seen, begin, piece.elements);
        const uint32_t count = tide_layout_piece_segments(layout, &piece, &segment);
        for (uint32_t s = segment; s < segment + count; s++)
            see(&seen, tide_layout_piece_segment(layout, &piece, s), chunk_begin);
        compare(&seen, map);
        tide_layout_state_owners(layout, piece.state_chunk, &owner, &last);
        assert_true(owner <= chunk && chunk <= last);
        begin += piece.elements;
    }
    const uint64_t chunk_end = chunk_begin + elements;
    assert_int_equal(begin, map->elements < chunk_end ? map->elements : chunk_end);
}

/* The planes of a STATE chunk must follow each other without overlap and have space for the elements of its
 * pieces. */
static void check_state(const tide_layout *layout, const tide_state_format *format, tide_chunk state_chunk)
{
    uint64_t elements = 0, offset = 0;
    tide_chunk owner, last;
    tide_layout_state_owners(layout, state_chunk, &owner, &last);
    for (; owner <= last; owner++)
        for (uint32_t i = 0; i < tide_layout_pieces(layout, owner); i++) {
            const tide_piece piece = tide_layout_piece(layout, owner, i);
            if (piece.state_chunk != state_chunk)
                continue;
            assert_int_equal(piece.state_offset_elements, elements);
            elements += piece.elements;
        }
    assert_true(elements > 0);
    for (uint32_t plane = 0; plane < format->planes; plane++) {
        assert_int_equal(tide_layout_plane_offset_bytes(layout, state_chunk, plane),
                         (offset + 255) / 256 * 256);
        offset = (offset + 255) / 256 * 256 + (elements + 31) / 32 * format->bytes[plane];
    }
    assert_int_equal(tide_layout_chunk_used_bytes(layout, state_chunk), offset);
    assert_true(offset <= CHUNK_BYTES);
}

static void check_params(const tide_layout *layout, const element_map *maps, const uint32_t *of_class,
                         uint64_t elements)
{
    for (uint32_t p = 0; p < tide_layout_params(layout); p++) {
        const element_map *map = &maps[of_class[p]];
        tide_chunk from, to;
        tide_layout_param_chunks(layout, p, &from, &to);
        assert_int_equal(from, map->first_chunk + first[p] / elements);
        assert_int_equal(to, map->first_chunk + (end[p] - 1) / elements);
        assert_int_equal(tide_layout_param(layout, p)->offset, map->first_chunk * elements + first[p]);
    }
}

static void check_class(const tide_layout *layout, const element_map *map, const tide_state_format *format,
                        uint64_t elements, tide_chunk *state_chunk)
{
    const tide_chunk chunks = (tide_chunk)((map->elements + elements - 1) / elements);
    const tide_chunk first_state = *state_chunk;
    for (tide_chunk chunk = map->first_chunk; chunk < map->first_chunk + chunks; chunk++) {
        check_chunk(layout, map, chunk, elements);
        assert_int_equal(tide_layout_pieces(layout, chunk) == 0, format->planes == 0);
        if (format->planes == 0)
            continue;
        check_pieces(layout, map, chunk, elements);
        *state_chunk =
            tide_layout_piece(layout, chunk, tide_layout_pieces(layout, chunk) - 1).state_chunk + 1;
    }
    for (tide_chunk state = first_state; state < *state_chunk; state++)
        check_state(layout, format, state);
}

static void random_layouts_agree_with_a_map_of_their_elements(void **state)
{
    (void)state;
    static const tide_state_format some[] = {{0},           {3, {128, 128, 128}}, {1, {128}},
                                             {2, {64, 64}}, {3, {33, 4, 128}},    {1, {1}}};
    static element_map maps[CLASSES];
    srand(7);
    for (int round = 0; round < 300; round++) {
        const tide_dtype dtype = rand() % 2 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32;
        const uint64_t bytes = tide_dtype_bytes(dtype), elements = CHUNK_BYTES / bytes;
        const tide_layout_options options = {.chunk_bytes = CHUNK_BYTES, .dtype = dtype};
        const uint32_t params = 1 + (uint32_t)rand() % PARAMS_MAX;
        tide_state_format formats[CLASSES];
        uint32_t of_class[PARAMS_MAX], number;
        tide_layout *layout;
        assert_int_equal(tide_layout_create(&options, &layout), TIDE_OK);
        for (uint32_t i = 0; i < CLASSES; i++) {
            formats[i] = some[(size_t)rand() % (sizeof some / sizeof *some)];
            maps[i].elements = 0;
            assert_int_equal(tide_layout_add_class(layout, &formats[i], &number), TIDE_OK);
        }
        for (uint32_t p = 0; p < params; p++) {
            char name[16];
            const uint64_t count = 1 + (uint64_t)rand() % (rand() % 3 ? 300 : 9000);
            of_class[p] = (uint32_t)rand() % CLASSES;
            snprintf(name, sizeof name, "p%u", p);
            assert_int_equal(tide_layout_add_param(layout, of_class[p], name, count, &number), TIDE_OK);
            map_param(&maps[of_class[p]], p, count, 256 / bytes);
        }
        assert_int_equal(tide_layout_seal(layout), TIDE_OK);
        tide_chunk chunk = 0, states = tide_layout_space_chunks(layout, TIDE_SPACE_PARAM);
        for (uint32_t i = 0; i < CLASSES; i++) {
            maps[i].first_chunk = chunk;
            chunk += (tide_chunk)((maps[i].elements + elements - 1) / elements);
        }
        assert_int_equal(states, chunk);
        for (uint32_t i = 0; i < CLASSES; i++)
            check_class(layout, &maps[i], &formats[i], elements, &states);
        assert_int_equal(states, tide_layout_chunk_count(layout));
        check_params(layout, maps, of_class, elements);
        tide_layout_destroy(layout);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_64_MiB_chunk_of_bf16_has_seven_pieces_and_shares_the_last),
        cmocka_unit_test(chunks_of_gpt2_large_are_full_but_for_one_tail_a_space),
        cmocka_unit_test(the_last_chunks_planes_are_as_long_as_its_elements),
        cmocka_unit_test(a_class_begins_with_a_chunk_and_a_frozen_one_has_no_state),
        cmocka_unit_test(activation_parts_lie_behind_each_other_on_256_bytes),
        cmocka_unit_test(bad_options_classes_and_names_are_refused),
        cmocka_unit_test(each_of_many_names_is_found_by_its_number_and_refused_twice),
        cmocka_unit_test(random_layouts_agree_with_a_map_of_their_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
