/* Random schedules of copies, kernels and mappings, compared with a model of the contents.
 *
 *     a slot of either tier   | floats |           not used           | halves |
 *                               1024 fp32 at its beginning              1024 bf16 at its end
 *
 * The model holds these two areas of every slot in plain memory. The CPU's kernels work on it at once, in
 * the order of the calls. The device does the same on six streams. Each slot has one event, recorded after
 * each use, and a command waits only for the events of its slots, so commands on other slots may overlap.
 * A kernel accesses its slot at random either at the chunk's place or at the slot's own address; CUDA
 * makes the two consistent at the bounds of commands. All numbers are positive, since the bits of a NaN
 * are undefined. */
#include "tests/gpu/test_gpu_cases.h"
#include "tests/gpu/test_gpu_fixture.h"

#ifdef TEST_CUDA_ON_CPU
enum { SEEDS = 8, STEPS = 250 };
#else
enum { SEEDS = 24, STEPS = 1000 };
#endif
enum { COUNT = 1024, SLOTS = DEVICE_SLOTS + HOST_SLOTS, LANE_EVENT = SLOTS, NOWHERE = -1 };
enum { FLOAT_BYTES = COUNT * 4, HALF_BYTES = COUNT * 2, HALVES_AT = CHUNK_BYTES - HALF_BYTES };

typedef struct areas {
    _Alignas(256) unsigned char floats[FLOAT_BYTES];
    _Alignas(256) unsigned char halves[HALF_BYTES];
} areas;

typedef struct model {
    areas slots[SLOTS]; /* device slots, then host slots */
    int place_of[DEVICE_SLOTS];
    uint64_t random;
} model;

static uint32_t pick(model *m, uint32_t below)
{
    m->random = m->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(m->random >> 33) % below;
}

/* --- order: one event a slot --- */

static void slots_take(fixture *it, tide_stream stream, uint32_t first, uint32_t second)
{
    assert_ok(it->ops->stream_wait(it->device, stream, it->events[first], SITE, 0));
    assert_ok(it->ops->stream_wait(it->device, stream, it->events[second], SITE, 0));
}

static void slots_give(fixture *it, tide_stream stream, uint32_t first, uint32_t second)
{
    fixture_record(it, (int)first, stream);
    fixture_record(it, (int)second, stream);
}

/* --- steps of the schedule --- */

static void step_map(fixture *it, model *m)
{
    const uint32_t slot = pick(m, DEVICE_SLOTS), wanted = pick(m, RANGE_CHUNKS);
    if (m->place_of[slot] != NOWHERE) {
        fixture_wait(it, (int)slot);
        assert_ok(it->ops->unmap(it->device, slot, fixture_place(it, (uint32_t)m->place_of[slot])));
        m->place_of[slot] = NOWHERE;
        return;
    }
    for (uint32_t other = 0; other < DEVICE_SLOTS; other++)
        if (m->place_of[other] == (int)wanted)
            return;
    assert_ok(it->ops->map(it->device, slot, fixture_place(it, wanted)));
    m->place_of[slot] = (int)wanted;
}

/* Copies a whole chunk, or only its first half. */
static void step_copy(fixture *it, model *m, tide_stream stream)
{
    const uint32_t slot = pick(m, DEVICE_SLOTS), host = pick(m, HOST_SLOTS);
    const bool in = pick(m, 2), whole = pick(m, 4) > 0;
    areas *device_areas = &m->slots[slot], *host_areas = &m->slots[DEVICE_SLOTS + host];
    const tide_work work = {.label = "copy", .tag = slot};
    slots_take(it, stream, slot, DEVICE_SLOTS + host);
    assert_ok(it->ops->copy_slot(it->device, stream, &work, in ? TIDE_TIER_DEVICE : TIDE_TIER_HOST,
                                 in ? slot : host, in ? host : slot, whole ? CHUNK_BYTES : CHUNK_BYTES / 2));
    slots_give(it, stream, slot, DEVICE_SLOTS + host);
    areas *to = in ? device_areas : host_areas, *from = in ? host_areas : device_areas;
    memcpy(to->floats, from->floats, FLOAT_BYTES);
    if (whole)
        memcpy(to->halves, from->halves, HALF_BYTES);
}

static char *slot_draw_alias(fixture *it, model *m, uint32_t slot)
{
    const bool own = m->place_of[slot] == NOWHERE || pick(m, 2);
    return own ? it->ops->slot_address(it->device, TIDE_TIER_DEVICE, slot)
               : fixture_place(it, (uint32_t)m->place_of[slot]);
}

enum { ZERO, COPY, CAST_DOWN, CAST_UP, ADD_FLOATS, ADD_HALVES, KERNELS };

/* Runs one kernel on the areas of a pair of slots, to = f(to, from): on the device `it`, or with the CPU's
 * table if NULL. */
static void kernel_do(fixture *it, tide_stream stream, uint32_t what, void *to_floats, void *to_halves,
                      void *from_floats, void *from_halves)
{
    const tide_kernels *kernels = it != NULL ? tide_kernels_cuda() : tide_kernels_cpu();
    const tide_zero_args zero = {(char *)to_halves + 2, HALF_BYTES - 6};
    const tide_copy_args copy = {(char *)from_floats + 4, to_floats, FLOAT_BYTES - 8};
    const bool down = what == CAST_DOWN, floats = what == ADD_FLOATS;
    const tide_cast_args cast = {down ? from_floats : from_halves, down ? to_halves : to_floats, COUNT,
                                 down ? TIDE_DTYPE_FP32 : TIDE_DTYPE_BF16,
                                 down ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32};
    const tide_add_args add = {floats ? to_floats : to_halves, floats ? from_floats : from_halves,
                               floats ? to_floats : to_halves, COUNT,
                               floats ? TIDE_DTYPE_FP32 : TIDE_DTYPE_BF16};
    const struct {
        tide_kernel kernel;
        const void *arguments;
        size_t bytes;
    } all[KERNELS] = {
        [ZERO] = {kernels->zero, &zero, sizeof zero},      [COPY] = {kernels->copy, &copy, sizeof copy},
        [CAST_DOWN] = {kernels->cast, &cast, sizeof cast}, [CAST_UP] = {kernels->cast, &cast, sizeof cast},
        [ADD_FLOATS] = {kernels->add, &add, sizeof add},   [ADD_HALVES] = {kernels->add, &add, sizeof add},
    };
    if (it == NULL)
        assert_ok(all[what].kernel(NULL, all[what].arguments));
    else
        fixture_launch(it, stream, all[what].kernel, all[what].arguments, all[what].bytes);
}

static void step_kernel(fixture *it, model *m, tide_stream stream)
{
    const uint32_t what = pick(m, KERNELS), to = pick(m, DEVICE_SLOTS);
    const uint32_t from = (to + 1 + pick(m, DEVICE_SLOTS - 1)) % DEVICE_SLOTS;
    char *to_at = slot_draw_alias(it, m, to), *from_at = slot_draw_alias(it, m, from);
    slots_take(it, stream, to, from);
    kernel_do(it, stream, what, to_at, to_at + HALVES_AT, from_at, from_at + HALVES_AT);
    slots_give(it, stream, to, from);
    kernel_do(NULL, stream, what, m->slots[to].floats, m->slots[to].halves, m->slots[from].floats,
              m->slots[from].halves);
}

static tide_status executor_add_run(void *stream, const void *arguments)
{
    return tide_kernels_cpu()->add(stream, arguments);
}

/* Runs work on the host executor. The executor can't wait for a stream, nor a stream for it, so this
 * thread waits. */
static void step_executor(fixture *it, model *m)
{
    const uint32_t host = pick(m, HOST_SLOTS), slot = DEVICE_SLOTS + host;
    float *floats = fixture_host(it, host), *model_floats = (float *)(void *)m->slots[slot].floats;
    const tide_add_args twice = {floats, floats, floats, COUNT, TIDE_DTYPE_FP32};
    fixture_wait(it, (int)slot);
    fixture_launch(it, TIDE_STREAM_HOST, executor_add_run, &twice, sizeof twice);
    fixture_record(it, LANE_EVENT, TIDE_STREAM_HOST);
    fixture_wait(it, LANE_EVENT);
    for (int i = 0; i < COUNT; i++)
        model_floats[i] += model_floats[i];
}

static void step_do(fixture *it, model *m)
{
    const tide_stream stream = (tide_stream)pick(m, TIDE_STREAM_HOST);
    const uint32_t what = pick(m, 10);
    if (what == 0)
        step_executor(it, m);
    else if (what <= 3)
        step_map(it, m);
    else if (what <= 6)
        step_copy(it, m, stream);
    else
        step_kernel(it, m, stream);
}

/* --- begin and end --- */

static void host_slot_fill(fixture *it, model *m, uint32_t host)
{
    areas *filled = &m->slots[DEVICE_SLOTS + host];
    for (int i = 0; i < COUNT; i++) {
        ((float *)(void *)filled->floats)[i] = (float)(1 + pick(m, 1000000)) / 1024.0f;
        ((tide_bf16 *)(void *)filled->halves)[i] = tide_bf16_from_float((float)(1 + pick(m, 1000)));
    }
    memcpy(fixture_host(it, host), filled->floats, FLOAT_BYTES);
    memcpy((char *)fixture_host(it, host) + HALVES_AT, filled->halves, HALF_BYTES);
}

/* Fills the model; device slot i begins with the contents of host slot i. */
static void model_begin(fixture *it, model *m, uint64_t seed)
{
    m->random = seed;
    for (uint32_t slot = 0; slot < DEVICE_SLOTS; slot++) {
        m->place_of[slot] = NOWHERE;
        host_slot_fill(it, m, slot);
        m->slots[slot] = m->slots[DEVICE_SLOTS + slot];
        fixture_fetch(it, TIDE_STREAM_IN, slot, slot);
        slots_give(it, TIDE_STREAM_IN, slot, DEVICE_SLOTS + slot);
    }
}

static void host_slot_expect(fixture *it, uint32_t host, const areas *expected, uint64_t seed,
                             const char *tier)
{
    const char *at = (const char *)fixture_host(it, host);
    if (memcmp(at, expected->floats, FLOAT_BYTES) != 0)
        fail_msg("seed %d: the floats of %s slot %u", (int)seed, tier, host);
    if (memcmp(at + HALVES_AT, expected->halves, HALF_BYTES) != 0)
        fail_msg("seed %d: the halves of %s slot %u", (int)seed, tier, host);
}

static void model_compare(fixture *it, const model *m, uint64_t seed)
{
    it->ops->synchronize(it->device);
    for (uint32_t slot = 0; slot < HOST_SLOTS; slot++)
        host_slot_expect(it, slot, &m->slots[DEVICE_SLOTS + slot], seed, "host");
    for (uint32_t slot = 0; slot < DEVICE_SLOTS; slot++)
        fixture_evict(it, TIDE_STREAM_OUT, slot, slot);
    it->ops->synchronize(it->device);
    for (uint32_t slot = 0; slot < DEVICE_SLOTS; slot++)
        host_slot_expect(it, slot, &m->slots[slot], seed, "device");
}

static_assert((int)DEVICE_SLOTS == (int)HOST_SLOTS, "slots of the two tiers are compared in pairs");

void random_schedule_has_the_contents_of_a_reference_model(void **state)
{
    static model m;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const tide_device_options options = fixture_options();
        fixture_start(seed);
        fixture it = fixture_open(&options);
        model_begin(&it, &m, seed);
        for (int step = 0; step < STEPS; step++)
            step_do(&it, &m);
        model_compare(&it, &m, seed);
        fixture_close(&it);
    }
}
