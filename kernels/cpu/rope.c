/* Rotary positions: in every head of a row each pair is rotated by the angle of the row's position. */
#include "base/team.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/variant.h"

LANES_INLINE void turn_row(const tide_rope_args *args, size_t row, tide_dtype dtype)
{
    const size_t half = args->head_width / 2;
    const size_t position = tide_row_position(args->starts, row, args->sequence_length);
    const float *cosines = args->table + position * args->head_width, *sines = cosines + half;
    const float direction = args->backward ? -1.0f : 1.0f;
    for (size_t head = 0; head < args->heads; head++) {
        const size_t low = row * args->row + head * args->head_width, high = low + half;
        for (size_t i = 0; i < half; i += LANES) {
            const lanes c = lanes_load_until(cosines, i, half, TIDE_DTYPE_FP32);
            const lanes s = lanes_load_until(sines, i, half, TIDE_DTYPE_FP32) * direction;
            const lanes x = lanes_load_until(args->data, low + i, high, dtype);
            const lanes y = lanes_load_until(args->data, high + i, high + half, dtype);
            lanes_store_until(args->data, low + i, high, lanes_fma(x, c, -(y * s)), dtype);
            lanes_store_until(args->data, high + i, high + half, lanes_fma(y, c, x * s), dtype);
        }
    }
}

static void turn_task(const void *arguments, size_t row)
{
    const tide_rope_args *args = arguments;
    BY_DTYPE(args->dtype, turn_row, args, row);
}

tide_status VARIANT(rope)(void *stream, const void *arguments)
{
    const tide_rope_args *args = arguments;
    (void)stream;
    assert(args->rows == 0 || (args->data && args->table && args->sequence_length > 0));
    assert(args->head_width % 2 == 0 && args->row >= args->heads * args->head_width);
    tide_team_run(args->rows, args->rows * args->heads * args->head_width, turn_task, args);
    return TIDE_OK;
}
