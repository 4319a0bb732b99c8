#include "tests/support/reference_pool.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- numbers --- */

/* Rounds to `keep` bits of fraction, ties to even; values with an exponent below `least` to that
 * exponent's unit. Values of at least `beyond` become infinite. */
static float round_to(float value, int keep, int least, float beyond)
{
    int exponent;
    if (value == 0 || !isfinite(value))
        return value;
    (void)frexpf(value, &exponent);
    const int unit = (exponent - 1 < least ? least : exponent - 1) - keep;
    const double scaled = ldexp((double)value, -unit), rounded = nearbyint(scaled);
    const double result = ldexp(rounded, unit);
    return fabs(result) >= (double)beyond ? copysignf(INFINITY, value) : copysignf((float)result, value);
}

float ref_round(tide_dtype dtype, float value)
{
    if (dtype == TIDE_DTYPE_FP16)
        return round_to(value, 10, -14, 65536.0F);
    if (dtype == TIDE_DTYPE_FP32)
        return value;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        return value;
    /* A carry may go into the exponent, up to infinity. */
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

static uint16_t half_bits(float value) /* The value must be rounded to fp16 already. */
{
    int exponent;
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const float size = fabsf(value);
    if (isnan(value))
        return 0x7E00;
    if (isinf(value))
        return sign | 0x7C00;
    if (size < 0x1p-14F)
        return (uint16_t)(sign | (uint16_t)(size * 0x1p24F));
    const float fraction = frexpf(size, &exponent);
    return (uint16_t)(sign | (uint16_t)((exponent + 14) << 10 | ((int)(fraction * 0x1p11F) & 0x3FF)));
}

static float half_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 0x3FF;
    float size =
        exponent == 0 ? (float)fraction * 0x1p-24F : ldexpf((float)(fraction + 0x400), exponent - 25);
    if (exponent == 31)
        size = fraction == 0 ? INFINITY : NAN;
    return bits & 0x8000 ? -size : size;
}

void ref_store(tide_dtype dtype, void *to, const float *values, uint64_t count)
{
    if (dtype == TIDE_DTYPE_FP32)
        memcpy(to, values, count * sizeof *values);
    for (uint64_t i = 0; i < count && dtype != TIDE_DTYPE_FP32; i++) {
        const float rounded = ref_round(dtype, values[i]);
        uint32_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        ((uint16_t *)to)[i] = dtype == TIDE_DTYPE_FP16 ? half_bits(rounded) : (uint16_t)(bits >> 16);
    }
}

void ref_load(tide_dtype dtype, float *to, const void *from, uint64_t count)
{
    if (dtype == TIDE_DTYPE_FP32)
        memcpy(to, from, count * sizeof *to);
    for (uint64_t i = 0; i < count && dtype != TIDE_DTYPE_FP32; i++) {
        const uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
        if (dtype == TIDE_DTYPE_FP16)
            to[i] = half_value(((const uint16_t *)from)[i]);
        else
            memcpy(&to[i], &bits, sizeof bits);
    }
}

static uint32_t mix(uint32_t seed, uint32_t index)
{
    uint32_t bits = (index + seed * 7919U) * 0x9E3779B1U;
    bits = (bits ^ bits >> 15) * 0x85EBCA77U;
    return bits ^ bits >> 13;
}

float ref_amount(uint32_t seed, uint32_t index)
{
    static const float units[] = {0x1p-20F, 0x1p-26F, 0x1p-23F, 0x1p-29F};
    return (float)((int32_t)(mix(seed, index) & 0x1FFFFF) - 0x100000) * units[seed % 4];
}

void ref_pattern(uint32_t seed, uint64_t first, void *to, uint64_t bytes)
{
    assert(first % 4 == 0);
    for (uint64_t i = 0; i < bytes; i += 4) {
        const uint32_t word = mix(seed, (uint32_t)((first + i) / 4));
        memcpy((char *)to + i, &word, bytes - i < 4 ? (size_t)(bytes - i) : sizeof word);
    }
}

void ref_own_update(uint32_t planes, const tide_step_options *step, uint64_t update, float scale, bool decay,
                    const float *gradient, float *const state[], uint64_t count)
{
    const float rate = step->learning_rate / (float)(update % 5 + 1), fade = decay ? step->weight_decay : 0;
    for (uint64_t i = 0; i < count; i++) {
        float change = gradient == NULL ? 0 : gradient[i] * scale;
        if (planes > 1)
            change = state[1][i] = 0.5F * state[1][i] + change;
        if (planes > 2)
            change += state[2][i] = 0.75F * state[2][i] - 0.25F * change;
        state[0][i] -= rate * (change + fade * state[0][i]);
    }
}

/* --- values --- */

static void find_closing_ops(reference_pool *pool)
{
    for (uint32_t i = 0; i < pool->param_count; i++)
        pool->params[i].closing_op = REF_NONE;
    for (uint32_t i = 0; i < pool->op_count; i++) {
        const tide_op_description *d = &pool->ops[i].description;
        for (uint32_t j = 0; j < d->param_count && d->pass != TIDE_PASS_FORWARD; j++)
            pool->params[d->params[j].tensor].closing_op = (int)i;
    }
}

bool ref_create_values(reference_pool *pool)
{
    bool whole = true;
    for (uint32_t i = 0; i < pool->param_count; i++) {
        ref_param *param = &pool->params[i];
        float **const arrays[] = {&param->values[0], &param->values[1], &param->values[2], &param->sums,
                                  &param->gradient};
        for (size_t j = 0; j < sizeof arrays / sizeof *arrays; j++)
            whole = (*arrays[j] = calloc(pool->sum_groups * param->elements, sizeof(float))) != NULL && whole;
        whole = (param->place = calloc(param->elements, tide_dtype_bytes(pool->dtype))) != NULL && whole;
    }
    pool->op = pool->slice = REF_NONE;
    find_closing_ops(pool);
    return whole;
}

void ref_destroy(reference_pool *pool)
{
    for (uint32_t i = 0; i < pool->param_count; i++) {
        ref_param *param = &pool->params[i];
        for (int j = 0; j < 3; j++)
            free(param->values[j]);
        free(param->place);
        free(param->sums);
        free(param->gradient);
    }
}

static void *place_of(const reference_pool *pool, tide_param param, uint64_t first)
{
    return (char *)pool->params[param].place + first * tide_dtype_bytes(pool->dtype);
}

tide_dtype ref_dtype(const reference_pool *pool, tide_param param, tide_value kind)
{
    const tide_state_format *format = &pool->params[param].of_class.state;
    return kind != TIDE_VALUE_PARAM && format->bytes[kind - TIDE_VALUE_MASTER] == 128 ? TIDE_DTYPE_FP32
                                                                                      : pool->dtype;
}

tide_value ref_last_value(const reference_pool *pool, tide_param param)
{
    return (tide_value)(TIDE_VALUE_PARAM + pool->params[param].of_class.state.planes);
}

void ref_set(reference_pool *pool, tide_param param, tide_value kind, uint64_t first, uint64_t count,
             const float *values)
{
    const tide_dtype dtype = ref_dtype(pool, param, kind);
    for (uint64_t i = 0; i < count && kind != TIDE_VALUE_PARAM; i++)
        pool->params[param].values[kind - TIDE_VALUE_MASTER][first + i] = ref_round(dtype, values[i]);
    if (kind <= TIDE_VALUE_MASTER)
        ref_store(pool->dtype, place_of(pool, param, first), values, count);
}

/* --- when calls are allowed --- */

bool ref_waits(const reference_pool *pool, const tide_step_options *step)
{
    return step->clip_norm > 0 || pool->dtype == TIDE_DTYPE_FP16;
}

static unsigned access_of(const reference_pool *pool, tide_op op, tide_param param)
{
    const tide_op_description *d = &pool->ops[op].description;
    for (uint32_t i = 0; i < d->param_count; i++)
        if (d->params[i].tensor == param)
            return d->params[i].access;
    return 0;
}

/* The gradients' state after further ops. */
typedef struct outlook {
    bool dirty[REF_PARAMS_MAX], closed[REF_PARAMS_MAX];
} outlook;

static bool would_use_a_closed_param(const reference_pool *pool, const outlook *o, tide_op op)
{
    for (uint32_t i = 0; i < pool->param_count; i++)
        if (o->closed[i] && access_of(pool, op, i) != 0)
            return true;
    return false;
}

static bool would_close_a_gradient(const reference_pool *pool, const outlook *o, tide_op op)
{
    for (uint32_t i = 0; i < pool->param_count; i++)
        if (o->dirty[i] && pool->params[i].closing_op == (int)op)
            return true;
    return false;
}

static void play(const reference_pool *pool, outlook *o, tide_op op)
{
    for (uint32_t i = 0; i < pool->param_count; i++) {
        o->dirty[i] = o->dirty[i] || (access_of(pool, op, i) & TIDE_ACCESS_GRAD) != 0;
        if (o->dirty[i] && pool->params[i].closing_op == (int)op) {
            o->dirty[i] = false;
            o->closed[i] = true;
        }
    }
}

/* Whether the step could still end after this op. Plays the closing ops of all open gradients in the order
 * in which they were added. No other order does better: no op closes a param that a later one uses. */
static bool could_end_after(const reference_pool *pool, const outlook *now, tide_op op)
{
    outlook o = *now;
    play(pool, &o, op);
    for (tide_op closing = 0; closing < pool->op_count; closing++) {
        if (!would_close_a_gradient(pool, &o, closing))
            continue;
        if (would_use_a_closed_param(pool, &o, closing))
            return false;
        play(pool, &o, closing);
    }
    return true;
}

ref_refusal ref_op_refusal(const reference_pool *pool, tide_op op)
{
    outlook now;
    for (uint32_t i = 0; i < pool->param_count; i++) {
        now.dirty[i] = pool->params[i].dirty;
        now.closed[i] = pool->params[i].closed;
    }
    if (pool->ops[op].description.pass != TIDE_PASS_FORWARD && !pool->step.training)
        return REF_REFUSED_PASS;
    if (would_use_a_closed_param(pool, &now, op))
        return REF_REFUSED_CLOSED;
    return could_end_after(pool, &now, op) ? REF_ALLOWED : REF_REFUSED_STUCK;
}

/* Whether the activation's part lives once the open slice has ended. */
static bool will_live(const reference_pool *pool, const tide_use *use, uint32_t slice)
{
    if (pool->slice == (int)slice)
        return (use->access & TIDE_ACCESS_LAST) == 0;
    return pool->activations[use->tensor].alive[slice];
}

bool ref_slice_may_begin(const reference_pool *pool, uint32_t slice)
{
    const tide_op_description *d = &pool->ops[pool->op].description;
    for (uint32_t i = 0; i < d->activation_count; i++)
        if ((d->activations[i].access & TIDE_ACCESS_READ) != 0 && !will_live(pool, &d->activations[i], slice))
            return false;
    return true;
}

static uint32_t group_of(const reference_pool *pool, uint32_t slice)
{
    return slice / (pool->ops[pool->op].description.slices / pool->sum_groups);
}

bool ref_makes_gradients(const reference_pool *pool)
{
    for (uint32_t i = 0; i < pool->param_count; i++)
        if ((access_of(pool, (tide_op)pool->op, i) & TIDE_ACCESS_GRAD) != 0)
            return true;
    return false;
}

bool ref_slice_in_order(const reference_pool *pool, uint32_t slice)
{
    return !ref_makes_gradients(pool) || pool->sum_groups == 1 || group_of(pool, slice) >= pool->group;
}

bool ref_is_new(const reference_pool *pool, tide_param param)
{
    return pool->params[param].is_new && (pool->sum_groups == 1 || pool->slice != REF_NONE);
}

bool ref_step_may_end(const reference_pool *pool)
{
    for (uint32_t i = 0; i < pool->param_count; i++)
        if (pool->params[i].dirty)
            return false;
    return pool->step_open && pool->op == REF_NONE;
}

bool ref_may_poison(const reference_pool *pool)
{
    for (uint32_t i = 0; i < pool->param_count; i++)
        if (pool->params[i].closed)
            return !ref_waits(pool, &pool->step);
    return false;
}

/* --- a step --- */

static void forget_gradients(reference_pool *pool)
{
    for (uint32_t i = 0; i < pool->param_count; i++)
        pool->params[i].dirty = pool->params[i].closed = false;
}

void ref_step_begin(reference_pool *pool, const tide_step_options *step)
{
    assert(!pool->step_open && !pool->pending);
    pool->step_open = true;
    pool->step = *step;
    forget_gradients(pool);
    for (uint32_t i = 0; i < pool->activation_count; i++)
        memset(pool->activations[i].alive, 0, sizeof pool->activations[i].alive);
}

void ref_op_begin(reference_pool *pool, tide_op op)
{
    const tide_op_description *d = &pool->ops[op].description;
    pool->op = (int)op;
    pool->slice = REF_NONE;
    pool->group = pool->group_slices = 0;
    for (uint32_t i = 0; i < d->param_count; i++) {
        ref_param *param = &pool->params[d->params[i].tensor];
        param->is_new = (d->params[i].access & TIDE_ACCESS_OVERWRITE) != 0 && !param->dirty;
        if ((d->params[i].access & TIDE_ACCESS_GRAD) == 0 || param->dirty)
            continue;
        param->dirty = true;
        memset(param->sums, 0, pool->sum_groups * param->elements * sizeof(float));
    }
}

static void let_slice_go(reference_pool *pool)
{
    const tide_op_description *d = &pool->ops[pool->op].description;
    for (uint32_t i = 0; i < d->activation_count && pool->slice != REF_NONE; i++)
        pool->activations[d->activations[i].tensor].alive[pool->slice] =
            (d->activations[i].access & TIDE_ACCESS_LAST) == 0;
    pool->slice = REF_NONE;
}

void ref_slice(reference_pool *pool, uint32_t slice)
{
    const tide_op_description *d = &pool->ops[pool->op].description;
    const uint32_t group = ref_makes_gradients(pool) && pool->sum_groups > 1 ? group_of(pool, slice) : 0;
    let_slice_go(pool);
    pool->slice = (int)slice;
    pool->group_slices = group == pool->group ? pool->group_slices + 1 : 1;
    pool->group = group;
    for (uint32_t i = 0; i < d->activation_count; i++)
        if ((d->activations[i].access & TIDE_ACCESS_READ) == 0)
            pool->activations[d->activations[i].tensor].seed[slice] = 0;
}

void ref_add(reference_pool *pool, tide_param param, uint32_t seed, float factor, float special)
{
    const ref_param *to = &pool->params[param];
    float *sum = to->sums + pool->group * to->elements;
    for (uint64_t i = 0; i < to->elements; i++)
        sum[i] += ref_amount(seed, (uint32_t)i) * factor;
    if (special != 0)
        sum[seed % to->elements] += special;
}

/* The sum of an element over `count` sum groups from `first` on. */
static float add_groups(const reference_pool *pool, const ref_param *param, uint64_t element, uint32_t first,
                        uint32_t count)
{
    uint32_t half = 1;
    if (count == 1)
        return ref_round(pool->reduce_dtype, param->sums[first * param->elements + element]);
    while (2 * half < count)
        half *= 2;
    return add_groups(pool, param, element, first, half) +
           add_groups(pool, param, element, first + half, count - half);
}

void ref_op_end(reference_pool *pool)
{
    let_slice_go(pool);
    for (uint32_t i = 0; i < pool->param_count; i++) {
        ref_param *param = &pool->params[i];
        if (!param->dirty || param->closing_op != pool->op)
            continue;
        param->dirty = false;
        param->closed = true;
        for (uint64_t j = 0; j < param->elements; j++)
            param->gradient[j] = ref_round(pool->dtype, add_groups(pool, param, j, 0, pool->sum_groups));
    }
    pool->op = REF_NONE;
}

/* Sums runs of 1024 values, so that the rounding of float64 stays far below 1e-12. */
static double square_sum(const float *values, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count;) {
        double run = 0;
        for (const uint64_t end = count - i < 1024 ? count : i + 1024; i < end; i++)
            run += (double)values[i] * (double)values[i];
        sum += run;
    }
    return sum;
}

void ref_step_end(reference_pool *pool)
{
    pool->step_open = false;
    if (!pool->step.training)
        return;
    const float loss_scale = pool->step.loss_scale == 0 ? 1 : pool->step.loss_scale;
    tide_step_result result = {.loss_scale = loss_scale, .gradient_scale = 1 / loss_scale};
    double sum = 0;
    for (uint32_t i = 0; i < pool->param_count; i++) {
        result.zero_gradients += !pool->params[i].closed && !pool->params[i].of_class.frozen;
        if (pool->params[i].closed)
            sum += square_sum(pool->params[i].gradient, pool->params[i].elements);
    }
    result.gradient_norm = sqrt(sum) / (double)loss_scale;
    result.skipped = !isfinite(sum) && ref_waits(pool, &pool->step);
    if (result.skipped) {
        const bool lower = pool->skipped_in_row > 0 && loss_scale < pool->skipped_scale;
        result.skipped_in_row = lower ? 1 : pool->skipped_in_row + 1;
    }
    pool->pending = true;
    pool->pending_step = pool->step;
    pool->pending_result = result;
}

void ref_step_forget(reference_pool *pool)
{
    pool->step_open = false;
    pool->op = pool->slice = REF_NONE;
    pool->skipped_in_row = 0;
}

/* --- the update of a step --- */

static void update_own(reference_pool *pool, uint32_t number, float scale)
{
    ref_param *param = &pool->params[number];
    ref_own_update(param->of_class.state.planes, &pool->pending_step, pool->updates, scale,
                   param->of_class.decay, param->closed ? param->gradient : NULL, param->values,
                   param->elements);
    for (tide_value kind = TIDE_VALUE_MASTER; kind <= ref_last_value(pool, number); kind++)
        ref_set(pool, number, kind, 0, param->elements, param->values[kind - TIDE_VALUE_MASTER]);
}

void ref_settle(reference_pool *pool)
{
    const tide_step_result *result = &pool->pending_result;
    if (!pool->pending)
        return;
    pool->pending = false;
    pool->skipped_in_row = result->skipped_in_row;
    pool->skipped_scale = result->loss_scale;
    if (result->skipped)
        return;
    pool->updates++;
    for (uint32_t i = 0; i < pool->param_count && pool->own_optimizer; i++)
        if (!pool->params[i].of_class.frozen)
            update_own(pool, i, result->gradient_scale);
}

/* The bounds: each operation of an fp32 formula rounds by 2^-24 of its result, and so does each rounded
 * factor (1 - beta2^t, 1 - lr decay, ...). 2^-21 of a sum's terms covers eight of them. Where v is
 * denormal, its last bit counts. */
static bool adamw_agrees(const reference_pool *pool, double gradient, bool decay, const float before[3],
                         const float got[3])
{
    const tide_step_options *step = &pool->pending_step;
    const double beta1 = (double)step->beta1, beta2 = (double)step->beta2, rate = (double)step->learning_rate;
    const double t = (double)pool->updates, slack = 0x1p-21, tiny = 0x1p-145;
    const double g = gradient * (double)pool->pending_result.gradient_scale;
    const double w = (double)before[0], m = beta1 * (double)before[1] + (1 - beta1) * g;
    const double v = beta2 * (double)before[2] + (1 - beta2) * g * g;
    const double m_slack = slack * (fabs(beta1 * (double)before[1]) + fabs((1 - beta1) * g)) + tiny;
    const double below = sqrt(v / (1 - pow(beta2, t))) + (double)step->epsilon,
                 size = rate / (1 - pow(beta1, t)) / below;
    const double result = w - (decay ? rate * (double)step->weight_decay * w : 0) - size * m;
    return fabs((double)got[1] - m) <= m_slack && fabs((double)got[2] - v) <= slack * v + tiny &&
           fabs((double)got[0] - result) <= slack * (fabs(w) + size * fabs(m)) + size * m_slack + tiny;
}

uint64_t ref_adamw_take(reference_pool *pool, tide_param number, const float *const got[3])
{
    ref_param *param = &pool->params[number];
    for (uint64_t i = 0; i < param->elements; i++) {
        const float before[3] = {param->values[0][i], param->values[1][i], param->values[2][i]};
        const float after[3] = {got[0][i], got[1][i], got[2][i]};
        if (!adamw_agrees(pool, param->closed ? (double)param->gradient[i] : 0, param->of_class.decay, before,
                          after))
            return i;
    }
    for (int j = 0; j < 3; j++)
        memcpy(param->values[j], got[j], param->elements * sizeof(float));
    ref_store(pool->dtype, param->place, param->values[0], param->elements);
    return param->elements;
}
