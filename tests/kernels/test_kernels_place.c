/* The kernel that writes values into slots past the caches. It must write the bits that cast writes, with
 * every instruction set and at every address, and nothing beside them. */
#include "tests/kernels/test_kernels.h"

enum { MOST = 3 * 4096 + 37, SHIFTS = 34 };

/* The address of element `shift` of `place`, a buffer of MOST + SHIFTS elements. */
static void *shifted(buffer place, size_t shift)
{
    return (char *)place.data + shift * tide_dtype_bytes(place.dtype);
}

static void check_one(const tide_cpu_variant *variant, buffer in, const tide_dtype out_dtypes[2],
                      size_t places, size_t count, size_t shift)
{
    buffer out[2], expected[2];
    tide_place_args args = {.in = shifted(in, shift % 3), .elements = count, .in_dtype = in.dtype};
    for (size_t i = 0; i < places; i++) {
        out[i] = buffer_of(MOST + SHIFTS, out_dtypes[i]);
        expected[i] = buffer_of(MOST + SHIFTS, out_dtypes[i]);
        args.out[i] = shifted(out[i], shift);
        args.out_dtype[i] = out_dtypes[i];
        run_on_cpu(variant->kernels.cast,
                   &(tide_cast_args){args.in, shifted(expected[i], shift), count, in.dtype, out_dtypes[i]});
    }
    variant->place(&args);
    for (size_t i = 0; i < places; i++) {
        assert_memory_equal(out[i].data, expected[i].data, (MOST + SHIFTS) * tide_dtype_bytes(out_dtypes[i]));
        buffers_free(out[i], expected[i]);
    }
}

static void check_dtypes(const tide_cpu_variant *variant, tide_dtype in_dtype, tide_dtype first,
                         tide_dtype second)
{
    static const size_t counts[] = {0, 1, 15, 16, 17, 33, 4096, 4097, MOST};
    buffer in = buffer_of(MOST + SHIFTS, in_dtype);
    /* all bit patterns, including NaNs and denormals */
    for (size_t i = 0; i < (MOST + SHIFTS) * tide_dtype_bytes(in_dtype) / 2; i++)
        ((uint16_t *)in.data)[i] = (uint16_t)(i * 40503u);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (size_t shift = 0; shift < SHIFTS; shift += 1 + shift / 2)
            for (size_t places = 1; places <= 2; places++)
                check_one(variant, in, (const tide_dtype[]){first, second}, places, counts[i], shift);
    buffer_free(in);
}

static void places_get_what_casts_give(void **state)
{
    static const tide_dtype dtypes[] = {TIDE_DTYPE_BF16, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32};
    for (tide_cpu_isa isa = 0; isa < TIDE_CPU_ISA_COUNT; isa++)
        for (int threads = 1; tide_cpu_variant_get(isa) != NULL && threads <= TEST_MOST_THREADS;
             threads += 2) {
            use_threads(threads);
            for (int in = 0; in < 3; in++)
                for (int out = 0; out < 3; out++)
                    check_dtypes(tide_cpu_variant_get(isa), dtypes[in], dtypes[out], dtypes[(out + in) % 3]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(places_get_what_casts_give)};
    return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
