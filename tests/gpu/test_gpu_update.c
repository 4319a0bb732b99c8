/* The optimizer's update on the GPU, through chunks as the pool holds them. The test copies the params and
 * their three fp32 states to slots, updates them twice and restores the params at the chunks' places, and
 * copies them back. The CPU's table of kernels does the same in plain memory; every byte must be equal, in
 * each dtype. */
#include "tests/gpu/test_gpu_cases.h"
#include "tests/gpu/test_gpu_fixture.h"

enum {
    PARAMS = 1 << 20, /* one chunk of bf16, two of fp32 */
    STATES = 3,       /* master, momentum and variance in fp32 */
    STATE_CHUNKS = 2,
};

/* The address of an array of the update in a range of the GPU's places or of host memory: first the
 * params, then two chunks for each state. */
static char *array_of(char *range, int array)
{
    return array == 0 ? range : range + (size_t)(STATE_CHUNKS * array) * CHUNK_BYTES;
}

/* Segments as in a real chunk: bounds at multiples of 64 and one tensor's end that is not, weights that
 * decay and biases that do not. */
enum { SEGMENTS = 4 };
static void segments_make(tide_adamw_segment *segments, char *range, tide_dtype dtype)
{
    static const size_t begins[SEGMENTS + 1] = {0, 64, 704 + 64, 500032, PARAMS};
    for (int s = 0; s < SEGMENTS; s++)
        segments[s] = (tide_adamw_segment){
            .param = array_of(range, 0) + begins[s] * tide_dtype_bytes(dtype),
            .master = (float *)(void *)array_of(range, 1) + begins[s],
            .momentum = (float *)(void *)array_of(range, 2) + begins[s],
            .variance = (float *)(void *)array_of(range, 3) + begins[s],
            .elements = begins[s + 1] - begins[s] - (s == 1 ? 27 : 0),
            .decays = s != 2,
        };
}

static void arrays_fill(char *range, tide_dtype dtype)
{
    static const double scales[1 + STATES] = {0.01, 1.0, 0.01, 1e-4};
    for (int array = 0; array <= STATES; array++) {
        const tide_dtype stored = array == 0 ? dtype : TIDE_DTYPE_FP32;
        const buffer to = {array_of(range, array), PARAMS * tide_dtype_bytes(stored), stored};
        for (size_t i = 0; i < PARAMS; i++) {
            const double value = scales[array] * random_value();
            buffer_set(to, i, array == 3 ? fabs(value) : value);
        }
    }
}

/* Runs two updates and a restore with a table's kernels on a range. Overwrites the segments as soon as
 * each is launched, since the launch must have copied them. */
static void range_update(fixture *it, const tide_kernels *kernels, char *range, tide_dtype dtype)
{
    for (uint64_t step = 1; step <= 3; step++) {
        tide_adamw_segment segments[SEGMENTS];
        const tide_adamw_args update = {
            segments, SEGMENTS, tide_adam_factors_make(6e-4, 0.9, 0.95, 1e-8, 0.1, step, 0.37), dtype};
        const tide_restore_args restore = {segments, 1, dtype};
        const bool restores = step == 3;
        const void *arguments = restores ? (const void *)&restore : (const void *)&update;
        const tide_kernel kernel = restores ? kernels->restore : kernels->adamw;
        segments_make(segments, range, dtype);
        if (it == NULL)
            assert_ok(kernel(NULL, arguments));
        else
            fixture_launch(it, TIDE_STREAM_UPDATE, kernel, arguments,
                           restores ? sizeof restore : sizeof update);
        memset(segments, 0xff, sizeof segments);
    }
}

static void check_adamw(fixture *it, tide_dtype dtype)
{
    const uint32_t chunks = STATE_CHUNKS * (1 + STATES);
    char *expected = malloc((size_t)chunks * CHUNK_BYTES);
    assert_non_null(expected);
    memset(expected, 0, (size_t)chunks * CHUNK_BYTES);
    arrays_fill(expected, dtype);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        /* Chunks that are neighbours in addresses lie in slots that are not. */
        const uint32_t slot = (chunk * 3 + 1) % DEVICE_SLOTS;
        memcpy(fixture_host(it, chunk), expected + (size_t)chunk * CHUNK_BYTES, CHUNK_BYTES);
        assert_ok(it->ops->map(it->device, slot, fixture_place(it, chunk)));
        fixture_fetch(it, TIDE_STREAM_IN, slot, chunk);
    }
    fixture_order(it, 0, TIDE_STREAM_IN, TIDE_STREAM_UPDATE);
    range_update(it, tide_kernels_cuda(), fixture_place(it, 0), dtype);
    range_update(NULL, tide_kernels_cpu(), expected, dtype);
    fixture_order(it, 1, TIDE_STREAM_UPDATE, TIDE_STREAM_OUT);
    for (uint32_t chunk = 0; chunk < chunks; chunk++)
        fixture_evict(it, TIDE_STREAM_OUT, chunk, (chunk * 3 + 1) % DEVICE_SLOTS);
    it->ops->synchronize(it->device);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        if (memcmp(fixture_host(it, chunk), expected + (size_t)chunk * CHUNK_BYTES, CHUNK_BYTES) != 0)
            fail_msg("dtype %d: chunk %u differs from the CPU's", (int)dtype, chunk);
        assert_ok(it->ops->unmap(it->device, (chunk * 3 + 1) % DEVICE_SLOTS, fixture_place(it, chunk)));
    }
    free(expected);
}

void update_through_chunks_has_the_cpus_bits(void **state)
{
    const tide_device_options options = fixture_options();
    for (tide_dtype dtype = TIDE_DTYPE_FP32; dtype <= TIDE_DTYPE_FP16; dtype++) {
        fixture it = fixture_open(&options);
        check_adamw(&it, dtype);
        fixture_close(&it);
    }
}
