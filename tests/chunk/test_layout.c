/* The layout: how params are packed into chunks and cross their borders, classes, pieces and planes. Then
 * random layouts are compared with a map that names the param of every element. */
#include "chunk/layout.h"
#include "tests/support/assert_ok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CHUNK_BYTES = 4096, BF16_ELEMENTS = CHUNK_BYTES / 2, ADAMW_ELEMENTS = 256 };

static tide_description *description;
static tide_layout *layout;

static int make_description(void **state)
{
    assert_int_equal(tide_description_create(TIDE_DTYPE_BF16, 0, &description), TIDE_OK);
    return 0;
}

static int destroy(void **state)
{
    tide_layout_destroy(layout);
    tide_description_destroy(description);
    layout = NULL;
    return 0;
}

static uint32_t add_param_of(const tide_param_class *of_class, const char *name, uint64_t elements)
{
    tide_param param;
    assert_int_equal(tide_description_add_param(description, name, &elements, 1, of_class, &param), TIDE_OK);
    return param;
}

static uint32_t add_param(const char *name, uint64_t elements)
{
    return add_param_of(NULL, name, elements);
}

static uint32_t add_activation(const char *name, uint32_t parts, uint64_t part_bytes)
{
    tide_activation activation;
    assert_int_equal(tide_description_add_activation(description, name, parts, part_bytes, &activation),
                     TIDE_OK);
    return activation;
}

static void lay_out(uint64_t chunk_bytes)
{
    assert_int_equal(tide_layout_create(description, chunk_bytes, TIDE_SHARD_ALL, &layout), TIDE_OK);
}

static void a_64_MiB_chunk_of_bf16_has_seven_pieces_and_shares_the_last(void **state)
{
    tide_chunk first, last;
    add_param("p", UINT64_C(2) * (32 << 20));
    lay_out(64 << 20);
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
}

/* The params of GPT-2 large in the order of the model, width 1280: 774,030,080 elements. */
static void add_gpt2_large(void)
{
    const uint64_t d = 1280,
                   block[] = {d, d, 3 * d * d, 3 * d, d * d, d, d, d, 4 * d * d, 4 * d, 4 * d * d, d};
    char name[32];
    add_param("wte", 50257 * d);
    add_param("wpe", 1024 * d);
    for (uint32_t i = 0; i < 36 * 12; i++) {
        snprintf(name, sizeof name, "h%u.%u", i / 12, i % 12);
        add_param(name, block[i % 12]);
    }
    add_param("ln_f.weight", d);
    add_param("ln_f.bias", d);
}

/* Bytes of params, or of their state, in a chunk, without gaps. */
static uint64_t content_bytes(tide_chunk chunk)
{
    uint64_t elements = 0;
    tide_chunk owner, last;
    if (tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_PARAM) {
        uint32_t from;
        const uint32_t count = tide_layout_chunk_segments(layout, chunk, &from);
        for (uint32_t i = 0; i < count; i++)
            elements += tide_layout_chunk_segment(layout, chunk, from + i).elements;
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
    uint32_t shared = 0;
    add_gpt2_large();
    lay_out(64 << 20);
    const uint32_t params = tide_layout_space_chunks(layout, TIDE_SPACE_PARAM),
                   states = tide_layout_space_chunks(layout, TIDE_SPACE_STATE);
    assert_int_equal(params, 24);
    assert_int_equal(states, 139);
    for (tide_chunk chunk = 0; chunk < params + states; chunk++) {
        tide_chunk first, last;
        if (chunk != params - 1 && chunk != params + states - 1)
            assert_true(content_bytes(chunk) * 1000 >= (UINT64_C(64) << 20) * 999);
        if (chunk < params - 1)
            assert_int_equal(tide_layout_pieces(layout, chunk), 7);
        if (chunk < params)
            continue;
        tide_layout_state_owners(layout, chunk, &first, &last);
        shared += first != last;
    }
    assert_int_equal(shared, params - 1); /* one STATE chunk in six */
    assert_int_equal(tide_layout_pieces_most(layout), 7);
}

static void the_last_chunks_planes_are_as_long_as_its_elements(void **state)
{
    add_param("p", ADAMW_ELEMENTS + 10);
    lay_out(CHUNK_BYTES);
    assert_int_equal(tide_layout_chunk_used_bytes(layout, 1), 3 * 1024);
    /* 10 elements take 128 bytes, aligned */
    assert_int_equal(tide_layout_plane_offset_bytes(layout, 2, 1), 256);
    assert_int_equal(tide_layout_chunk_used_bytes(layout, 2), 2 * 256 + 128);
}

static void a_class_begins_with_a_chunk_and_a_frozen_one_has_no_state(void **state)
{
    const tide_param_class frozen = {.frozen = true};
    tide_chunk first, last;
    const uint32_t a = add_param_of(&frozen, "a", 10), b = add_param("b", 10);
    const uint32_t c = add_param_of(&frozen, "c", BF16_ELEMENTS);
    lay_out(CHUNK_BYTES);
    assert_int_equal(tide_layout_space_chunks(layout, TIDE_SPACE_PARAM), 3);
    assert_int_equal(tide_layout_space_chunks(layout, TIDE_SPACE_STATE), 1);
    assert_int_equal(tide_layout_param_offset(layout, a), 0); /* its class has the first param */
    assert_int_equal(tide_layout_param_offset(layout, b), 2 * BF16_ELEMENTS);
    tide_layout_param_chunks(layout, c, &first, &last);
    assert_int_equal(first, 0);
    assert_int_equal(last, 1);
    assert_int_equal(tide_layout_pieces(layout, 1), 0);
    assert_int_equal(tide_layout_pieces(layout, 2), 1);
    assert_int_equal(tide_layout_chunk_format(layout, 1)->planes, 0);
    assert_int_equal(tide_layout_chunk_format(layout, 3)->planes, 3);
    assert_true(tide_description_is_frozen(description, a));
    assert_false(tide_description_is_frozen(description, b));
}

static void activation_parts_lie_behind_each_other_on_256_bytes(void **state)
{
    tide_chunk first, last;
    add_param("p", 1);
    const uint32_t tensor = add_activation("c", 3, 2000), other = add_activation("d", 1, 100);
    lay_out(CHUNK_BYTES);
    assert_int_equal(tide_layout_activation(layout, tensor)->offset, 0);
    assert_int_equal(tide_layout_activation(layout, other)->offset, 4096 + 2048);
    tide_layout_activation_chunks(layout, tensor, 2, &first, &last);
    assert_int_equal(first, last);
    assert_int_equal(first, tide_layout_chunk(layout, TIDE_SPACE_ACTIVATION, 1));
    assert_int_equal(tide_layout_chunk_used_bytes(layout, last), 2048 + 100);
}

static void one_description_has_layouts_of_several_sizes(void **state)
{
    tide_layout *other;
    add_param("p", 10 * BF16_ELEMENTS);
    lay_out(CHUNK_BYTES);
    assert_int_equal(tide_layout_create(description, 4 * CHUNK_BYTES, TIDE_SHARD_ALL, &other), TIDE_OK);
    assert_ptr_equal(tide_layout_description(layout), tide_layout_description(other));
    assert_int_equal(tide_layout_space_chunks(layout, TIDE_SPACE_PARAM), 10);
    assert_int_equal(tide_layout_space_chunks(other, TIDE_SPACE_PARAM), 3);
    tide_layout_destroy(other);
}

static void expect_no_layout(uint64_t chunk_bytes)
{
    assert_int_equal(tide_layout_create(description, chunk_bytes, TIDE_SHARD_ALL, &layout),
                     TIDE_ERROR_ARGUMENT);
    assert_null(layout);
}

static void bad_chunk_sizes_and_a_description_without_params_are_refused(void **state)
{
    expect_no_layout(CHUNK_BYTES);
    add_param("p", 1);
    expect_no_layout(3 * CHUNK_BYTES);
    expect_no_layout(CHUNK_BYTES / 2);
    add_param("large", UINT64_C(1) << 47);
    expect_no_layout(CHUNK_BYTES); /* more than 2^32 chunks */
    assert_false(description->is_fixed);
}

static void state_of_which_256_elements_do_not_fit_into_a_chunk_is_refused(void **state)
{
    static const tide_param_class fits = {.state = {1, {512}}},
                                  large[] = {{.state = {1, {513}}}, {.state = {1, {UINT32_MAX}}}};
    add_param_of(&fits, "p", 1);
    lay_out(CHUNK_BYTES);
    for (int i = 0; i < 2; i++) {
        destroy(state);
        make_description(state);
        add_param_of(&large[i], "p", 1);
        expect_no_layout(CHUNK_BYTES);
    }
}

/* --- random layouts, compared with a map of each class that names the param of every element --- */

enum { PARAMS_MAX = 20, FORMATS = 6, ELEMENTS_MAX = 200000 };

typedef struct element_map {
    tide_state_format format;
    int32_t owner[ELEMENTS_MAX]; /* the param, -1 for a gap */
    uint64_t elements;
    tide_chunk first_chunk; /* first PARAM chunk of the class */
} element_map;

static element_map maps[FORMATS]; /* in the order of their first params */
static uint32_t map_count;
static tide_shard shard;

static uint64_t first[PARAMS_MAX], end[PARAMS_MAX]; /* range of each param's elements in its class */

/* The map of a format's class, a new one for a format that no param has had yet. */
static element_map *map_of(const tide_state_format *format)
{
    uint32_t i = 0;
    while (i < map_count && memcmp(&maps[i].format, format, sizeof *format) != 0)
        i++;
    if (i == map_count) {
        maps[map_count++].elements = 0;
        maps[i].format = *format;
    }
    return &maps[i];
}

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

/* The number in its class of the first element of a chunk, or of the chunk's group. */
static uint64_t chunk_begin(const element_map *map, tide_chunk chunk, uint64_t elements)
{
    return ((uint64_t)(chunk - map->first_chunk) * shard.ranks + shard.rank) * elements;
}

static uint64_t group_begin(const element_map *map, tide_chunk chunk, uint64_t elements)
{
    return (uint64_t)(chunk - map->first_chunk) * shard.ranks * elements;
}

/* The number of the chunk's elements; 256 of no param, if none is this rank's. */
static uint64_t owned(const element_map *map, tide_chunk chunk, uint64_t elements)
{
    const uint64_t begin = chunk_begin(map, chunk, elements);
    if (begin >= map->elements)
        return 256;
    return map->elements - begin < elements ? map->elements - begin : elements;
}

/* The params in the chunk's group must be those of the map, in their order. */
static void check_group(const element_map *map, tide_chunk chunk, uint64_t elements)
{
    const uint64_t begin = group_begin(map, chunk, elements), end_of = begin + shard.ranks * elements;
    uint32_t count = 0;
    int32_t last = -1;
    for (uint64_t at = begin; at < end_of && at < map->elements; at++) {
        if (map->owner[at] == -1 || map->owner[at] == last)
            continue;
        last = map->owner[at];
        assert_true(count < tide_layout_chunk_params(layout, chunk));
        assert_int_equal(tide_layout_chunk_param(layout, chunk, count), last);
        count++;
    }
    assert_int_equal(tide_layout_chunk_params(layout, chunk), count);
}

static void check_chunk(const element_map *map, tide_chunk chunk, uint64_t elements)
{
    const uint64_t begin = chunk_begin(map, chunk, elements);
    uint32_t from;
    see_nothing(&seen, begin, elements);
    const uint32_t count = tide_layout_chunk_segments(layout, chunk, &from);
    for (uint32_t s = from; s < from + count; s++)
        see(&seen, tide_layout_chunk_segment(layout, chunk, s), begin);
    compare(&seen, map);
    check_group(map, chunk, elements);
    assert_int_equal(tide_layout_chunk_used_bytes(layout, chunk),
                     owned(map, chunk, elements) * CHUNK_BYTES / elements);
    assert_int_equal(tide_layout_chunk_offset_bytes(layout, chunk),
                     ((uint64_t)chunk * shard.ranks + shard.rank) * CHUNK_BYTES);
}

/* A chunk's pieces must follow each other, each must lie in its STATE chunk behind the piece before it
 * there, and their segments must agree with the map. */
static void check_pieces(const element_map *map, tide_chunk chunk, uint64_t elements)
{
    const uint64_t first_element = chunk_begin(map, chunk, elements);
    uint64_t begin = first_element;
    for (uint32_t i = 0; i < tide_layout_pieces(layout, chunk); i++) {
        const tide_piece piece = tide_layout_piece(layout, chunk, i);
        uint32_t segment;
        tide_chunk owner, last;
        assert_int_equal(piece.param_chunk, chunk);
        assert_int_equal(first_element + piece.param_offset_elements, begin);
        assert_int_equal(piece.param_offset_elements % 256 + piece.state_offset_elements % 256, 0);
        assert_true(i == 0 || piece.state_offset_elements == 0);
        see_nothing(&seen, begin, piece.elements);
        const uint32_t count = tide_layout_piece_segments(layout, &piece, &segment);
        for (uint32_t s = segment; s < segment + count; s++)
            see(&seen, tide_layout_piece_segment(layout, &piece, s), first_element);
        compare(&seen, map);
        tide_layout_state_owners(layout, piece.state_chunk, &owner, &last);
        assert_true(owner <= chunk && chunk <= last);
        begin += piece.elements;
    }
    assert_int_equal(begin, first_element + owned(map, chunk, elements));
}

/* The planes of a STATE chunk must follow each other without overlap and have space for the elements of its
 * pieces. */
static void check_state(const tide_state_format *format, tide_chunk state_chunk)
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

static void check_params(element_map *const *map_of_param, uint64_t elements)
{
    for (uint32_t p = 0; p < tide_layout_params(layout); p++) {
        const element_map *map = map_of_param[p];
        tide_chunk from, to;
        tide_layout_param_chunks(layout, p, &from, &to);
        const uint64_t group = shard.ranks * elements;
        assert_int_equal(from, map->first_chunk + first[p] / group);
        assert_int_equal(to, map->first_chunk + (end[p] - 1) / group);
        assert_int_equal(tide_layout_param(layout, p)->offset, first[p]);
        assert_int_equal(tide_layout_param_offset(layout, p), map->first_chunk * group + first[p]);
    }
}

static tide_chunk groups(const element_map *map, uint64_t elements)
{
    const uint64_t group = shard.ranks * elements;
    return (tide_chunk)((map->elements + group - 1) / group);
}

static void check_class(const element_map *map, uint64_t elements, tide_chunk *state_chunk)
{
    const tide_chunk chunks = groups(map, elements);
    const tide_chunk first_state = *state_chunk;
    for (tide_chunk chunk = map->first_chunk; chunk < map->first_chunk + chunks; chunk++) {
        check_chunk(map, chunk, elements);
        assert_int_equal(tide_layout_pieces(layout, chunk) == 0, map->format.planes == 0);
        if (map->format.planes == 0)
            continue;
        check_pieces(map, chunk, elements);
        *state_chunk =
            tide_layout_piece(layout, chunk, tide_layout_pieces(layout, chunk) - 1).state_chunk + 1;
    }
    for (tide_chunk state = first_state; state < *state_chunk; state++)
        check_state(&map->format, state);
}

/* Draw params of up to three formats, and map them. */
static void draw_params(uint64_t alignment, element_map *map_of_param[PARAMS_MAX])
{
    static const tide_state_format formats[FORMATS] = {{0},           {3, {128, 128, 128}}, {1, {128}},
                                                       {2, {64, 64}}, {3, {33, 4, 128}},    {1, {1}}};
    const tide_state_format *drawn[3];
    const uint32_t params = 1 + (uint32_t)rand() % PARAMS_MAX;
    for (uint32_t i = 0; i < 3; i++)
        drawn[i] = &formats[rand() % FORMATS];
    map_count = 0;
    for (uint32_t p = 0; p < params; p++) {
        char name[16];
        const uint64_t elements = 1 + (uint64_t)rand() % (rand() % 3 ? 300 : 9000);
        const tide_state_format *format = drawn[rand() % 3];
        const tide_param_class of_class = {.frozen = format->planes == 0, .state = *format};
        snprintf(name, sizeof name, "p%u", p);
        add_param_of(&of_class, name, elements);
        map_of_param[p] = map_of(format);
        map_param(map_of_param[p], p, elements, alignment);
    }
}

static void check_layout(element_map *const *map_of_param, uint64_t elements)
{
    tide_chunk chunk = 0, states = tide_layout_space_chunks(layout, TIDE_SPACE_PARAM);
    for (uint32_t i = 0; i < map_count; i++) {
        maps[i].first_chunk = chunk;
        chunk += groups(&maps[i], elements);
    }
    assert_int_equal(states, chunk);
    for (uint32_t i = 0; i < map_count; i++)
        check_class(&maps[i], elements, &states);
    assert_int_equal(states, tide_layout_chunk_count(layout));
    check_params(map_of_param, elements);
}

static void random_layouts_agree_with_a_map_of_their_elements(void **state)
{
    srand(7);
    for (int round = 0; round < 300; round++) {
        const tide_dtype dtype = rand() % 2 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32;
        const uint64_t bytes = tide_dtype_bytes(dtype), elements = CHUNK_BYTES / bytes;
        element_map *map_of_param[PARAMS_MAX];
        destroy(state);
        assert_int_equal(tide_description_create(dtype, 0, &description), TIDE_OK);
        draw_params(TIDE_ALIGNMENT_BYTES / bytes, map_of_param);
        shard.ranks = round % 3 == 0 ? 1 : 1 + (uint32_t)rand() % 9;
        for (shard.rank = 0; shard.rank < shard.ranks; shard.rank++) {
            tide_layout_destroy(layout);
            layout = NULL;
            assert_int_equal(tide_layout_create(description, CHUNK_BYTES, shard, &layout), TIDE_OK);
            check_layout(map_of_param, elements);
        }
    }
}

static void a_rank_without_elements_in_the_last_group_has_256_of_no_param(void **state)
{
    uint32_t from;
    add_param("p", 4 * BF16_ELEMENTS + 10);
    assert_int_equal(tide_layout_create(description, CHUNK_BYTES, (tide_shard){4, 1}, &layout), TIDE_OK);
    assert_int_equal(tide_layout_space_chunks(layout, TIDE_SPACE_PARAM), 2);
    assert_int_equal(tide_layout_chunk_params(layout, 1), 1);
    assert_int_equal(tide_layout_chunk_segments(layout, 1, &from), 0);
    assert_int_equal(tide_layout_chunk_used_bytes(layout, 1), 512);
    assert_int_equal(tide_layout_pieces(layout, 1), 1);
    const tide_piece piece = tide_layout_piece(layout, 1, 0);
    assert_int_equal(piece.elements, 256);
    assert_int_equal(tide_layout_piece_segments(layout, &piece, &from), 0);
}

/* Elements of each rank's last chunk of a class. */
static void expect_last_elements(uint64_t elements, const uint64_t expected[4])
{
    for (uint32_t rank = 0; rank < 4; rank++) {
        add_param("p", elements);
        assert_int_equal(tide_layout_create(description, CHUNK_BYTES, (tide_shard){4, rank}, &layout),
                         TIDE_OK);
        const tide_chunk last = tide_layout_space_chunks(layout, TIDE_SPACE_PARAM) - 1;
        assert_int_equal(last, (elements - 1) / (4 * BF16_ELEMENTS));
        assert_int_equal(tide_layout_chunk_used_bytes(layout, last), 2 * expected[rank]);
        assert_int_equal(tide_layout_space_chunks(layout, TIDE_SPACE_STATE),
                         (last * BF16_ELEMENTS + expected[rank]) / ADAMW_ELEMENTS);
        destroy(NULL);
        make_description(NULL);
    }
}

static void a_last_group_may_be_full_or_end_with_a_chunk(void **state)
{
    const uint64_t full[4] = {BF16_ELEMENTS, BF16_ELEMENTS, BF16_ELEMENTS, BF16_ELEMENTS},
                   half[4] = {BF16_ELEMENTS, BF16_ELEMENTS, 256, 256};
    expect_last_elements(8 * BF16_ELEMENTS, full);
    expect_last_elements(6 * BF16_ELEMENTS, half);
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, make_description, destroy)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_64_MiB_chunk_of_bf16_has_seven_pieces_and_shares_the_last),
        CASE(chunks_of_gpt2_large_are_full_but_for_one_tail_a_space),
        CASE(the_last_chunks_planes_are_as_long_as_its_elements),
        CASE(a_class_begins_with_a_chunk_and_a_frozen_one_has_no_state),
        CASE(activation_parts_lie_behind_each_other_on_256_bytes),
        CASE(one_description_has_layouts_of_several_sizes),
        CASE(bad_chunk_sizes_and_a_description_without_params_are_refused),
        CASE(state_of_which_256_elements_do_not_fit_into_a_chunk_is_refused),
        CASE(random_layouts_agree_with_a_map_of_their_elements),
        CASE(a_last_group_may_be_full_or_end_with_a_chunk),
        CASE(a_rank_without_elements_in_the_last_group_has_256_of_no_param),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
