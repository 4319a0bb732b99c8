/* The training state: one table of fields, by which it is written to JSON, read from JSON, and compared.
 *
 * Keys are flat ("model.layers"), so that messages use the manifest's names. Counts are JSON integers. Seed
 * and fingerprint need all 64 bits, more than most readers' JSON integers have, and are hexadecimal strings.
 * Doubles have 17 digits, from which the same double is read. The fields of fp16 are written only for fp16,
 * so that checkpoints of other dtypes look as they did before there was fp16.
 *
 * As tidepool grows, fields are added. A field that the first checkpoints lack is LATER: if it is missing, it
 * has its default value (gpt2 for the family), and it is written only if its value is another. So every
 * earlier checkpoint can be loaded, and earlier programs can read the checkpoints of a run that uses nothing
 * new. A field that this program does not know is an error that names it, since without the field another run
 * would continue.
 */
#include "src/checkpoint/train_state.h"

#include "base/text.h"
#include "src/checkpoint/loss_scale.h"
#include "src/checkpoint/train_state_json.h"
#include "src/model/config_rope.h"
#include "src/model/family.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum field_kind {
    COUNT64,
    COUNT32,
    BITS64,
    REAL,
    FLAG,
    DTYPE,
    FAMILY,
    ROPE,
    SCHEDULE,
    TOKEN,
    PACKING
} field_kind;

/* How a resume treats a value that differs from the run's: PROGRESS takes the checkpoint's, IDENTITY refuses
 * it, HYPERPARAMETER takes the run's and reports it; so does SUMS, which says that gradients are summed
 * otherwise from then on. */
typedef enum field_rule { PROGRESS, IDENTITY, HYPERPARAMETER, SUMS } field_rule;

/* The states that have a field. */
typedef enum field_owner {
    ALL,
    ONLY_FP16,
    NOT_ROTARY,  /* of a family with a position embedding */
    ROTARY,      /* of a family with rotary positions */
    ONLY_LLAMA3, /* with this kind of rotary positions */
    ONLY_YARN,
    ONLY_SCALED, /* with any kind of rotary positions but the plain one */
    ONLY_LONG,   /* with a kind of RoPE scaling that has an original context length */
} field_owner;

typedef struct state_field {
    const char *name;
    field_kind kind;
    field_rule rule;
    size_t offset;
    field_owner owner;
    bool has_default; /* if the field is missing, it has its value in `defaults` */
} state_field;

#define OWNED(name, member, kind, rule, owner)                                                               \
    {                                                                                                        \
        name, kind, rule, offsetof(tide_train_state, member), owner, false                                   \
    }
#define FIELD(name, member, kind, rule) OWNED(name, member, kind, rule, ALL)
#define LATER(name, member, kind, rule)                                                                      \
    {                                                                                                        \
        name, kind, rule, offsetof(tide_train_state, member), ALL, true                                      \
    }

static const state_field fields[] = {
    FIELD("step", step, COUNT64, PROGRESS),
    FIELD("tokens", tokens, COUNT64, PROGRESS),
    FIELD("adam_step", adam_step, COUNT64, PROGRESS),
    FIELD("skipped", skipped, COUNT64, PROGRESS),
    LATER("model.family", model.family, FAMILY, IDENTITY), /* before the fields that depend on it */
    FIELD("model.layers", model.layers, COUNT32, IDENTITY),
    FIELD("model.width", model.width, COUNT32, IDENTITY),
    FIELD("model.heads", model.heads, COUNT32, IDENTITY),
    FIELD("model.context", model.context, COUNT32, IDENTITY),
    FIELD("model.vocab_size", model.vocab_size, COUNT32, IDENTITY),
    OWNED("model.layer_norm_epsilon", model.norm_epsilon, REAL, IDENTITY, NOT_ROTARY),
    OWNED("model.kv_heads", model.kv_heads, COUNT32, IDENTITY, ROTARY),
    OWNED("model.head_width", model.head_width, COUNT32, IDENTITY, ROTARY),
    OWNED("model.mlp_width", model.mlp_width, COUNT32, IDENTITY, ROTARY),
    OWNED("model.norm_epsilon", model.norm_epsilon, REAL, IDENTITY, ROTARY),
    OWNED("model.tied", model.tied, FLAG, IDENTITY, ROTARY),
    OWNED("model.attention_bias", model.attention_bias, FLAG, IDENTITY, ROTARY),
    OWNED("model.mlp_bias", model.mlp_bias, FLAG, IDENTITY, ROTARY),
    OWNED("model.rope_theta", model.rope.theta, REAL, IDENTITY, ROTARY),
    /* before the fields that depend on it */
    OWNED("model.rope_type", model.rope.kind, ROPE, IDENTITY, ROTARY),
    OWNED("model.rope_factor", model.rope.factor, REAL, IDENTITY, ONLY_SCALED),
    OWNED("model.rope_low_freq_factor", model.rope.low_factor, REAL, IDENTITY, ONLY_LLAMA3),
    OWNED("model.rope_high_freq_factor", model.rope.high_factor, REAL, IDENTITY, ONLY_LLAMA3),
    OWNED("model.rope_original_context", model.rope.original_context, REAL, IDENTITY, ONLY_LONG),
    OWNED("model.rope_attention_factor", model.rope.attention_factor, REAL, IDENTITY, ONLY_YARN),
    OWNED("model.rope_beta_fast", model.rope.beta_fast, REAL, IDENTITY, ONLY_YARN),
    OWNED("model.rope_beta_slow", model.rope.beta_slow, REAL, IDENTITY, ONLY_YARN),
    OWNED("model.rope_exact", model.rope.exact, FLAG, IDENTITY, ONLY_YARN),
    LATER("model.names_otherwise", model.names_otherwise, FLAG, PROGRESS),
    LATER("model.pad_token_id", model.padding_row, TOKEN, HYPERPARAMETER),
    FIELD("seed", seed, BITS64, IDENTITY),
    FIELD("data_fingerprint", data_fingerprint, BITS64, IDENTITY),
    FIELD("seq_len", seq_len, COUNT64, IDENTITY),
    FIELD("batch_tokens", global_batch_tokens, COUNT64, IDENTITY),
    FIELD("micro_batch_sequences", micro_batch_sequences, COUNT64, IDENTITY),
    FIELD("dtype", dtype, DTYPE, IDENTITY),
    FIELD("steps", hyper.schedule.steps, COUNT64, HYPERPARAMETER),
    FIELD("warmup_steps", hyper.schedule.warmup_steps, COUNT64, HYPERPARAMETER),
    FIELD("lr", hyper.schedule.lr, REAL, HYPERPARAMETER),
    FIELD("lr_min", hyper.schedule.lr_min, REAL, HYPERPARAMETER),
    FIELD("weight_decay", hyper.weight_decay, REAL, HYPERPARAMETER),
    FIELD("clip", hyper.clip, REAL, HYPERPARAMETER),
    FIELD("beta1", hyper.beta1, REAL, HYPERPARAMETER),
    FIELD("beta2", hyper.beta2, REAL, HYPERPARAMETER),
    FIELD("epsilon", hyper.epsilon, REAL, HYPERPARAMETER),
    /* after "dtype", on which these fields depend */
    OWNED("loss_scale", loss_scale, REAL, PROGRESS, ONLY_FP16),
    OWNED("loss_scale_good_steps", loss_scale_good_steps, COUNT64, PROGRESS, ONLY_FP16),
    OWNED("loss_scale_fixed", hyper.loss_scale_fixed, REAL, HYPERPARAMETER, ONLY_FP16),
    LATER("data_first_step", data_first_step, COUNT64, PROGRESS),
    LATER("schedule", hyper.schedule.shape, SCHEDULE, HYPERPARAMETER),
    LATER("decay_steps", hyper.schedule.decay_steps, COUNT64, HYPERPARAMETER),
    LATER("epoch", epoch, COUNT64, PROGRESS),
    LATER("best_step", best_step, COUNT64, PROGRESS),
    LATER("best_loss", best_loss, REAL, PROGRESS),
    LATER("validation_fingerprint", validation_fingerprint, BITS64, PROGRESS),
    LATER("packing", packing, PACKING, IDENTITY),
    LATER("whole_epochs", whole_epochs, FLAG, IDENTITY),
    LATER("sum_groups", sum_groups, COUNT32, SUMS),
    LATER("reduce_dtype", reduce_dtype, DTYPE, SUMS),
};

enum { FIELDS = sizeof fields / sizeof fields[0], VALUE_TEXT_BYTES = TIDE_TRAIN_FIELD_TEXT_BYTES };

/* Does the state have the field? The fields before it, on which this depends, must be set. */
static bool field_exists(const state_field *field, const tide_train_state *state)
{
    const tide_rope_kind kind = state->model.rope.kind;
    const bool rotary = state->model.family->rotary;
    switch (field->owner) {
    case ALL:
        return true;
    case ONLY_FP16:
        return state->dtype == TIDE_DTYPE_FP16;
    case NOT_ROTARY:
        return !rotary;
    case ROTARY:
        return rotary;
    case ONLY_LLAMA3:
        return rotary && kind == TIDE_ROPE_LLAMA3;
    case ONLY_YARN:
        return rotary && kind == TIDE_ROPE_YARN;
    case ONLY_SCALED:
        return rotary && kind != TIDE_ROPE_DEFAULT;
    case ONLY_LONG:
        return rotary && (kind == TIDE_ROPE_LLAMA3 || kind == TIDE_ROPE_YARN);
    }
    return false;
}

/* ---- the value of a field of any kind ---- */

static const void *field_at(const tide_train_state *state, const state_field *field)
{
    return (const char *)state + field->offset;
}

/* A value as 64 bits: an integer, an enum or a pointer; or a double's own bits, so that only equal doubles
 * match. */
static uint64_t field_bits(const tide_train_state *state, const state_field *field)
{
    const void *at = field_at(state, field);
    uint64_t bits = 0;
    if (field->kind == COUNT32 || field->kind == TOKEN)
        return *(const uint32_t *)at;
    if (field->kind == DTYPE)
        return (uint64_t) * (const tide_dtype *)at;
    if (field->kind == ROPE)
        return (uint64_t) * (const tide_rope_kind *)at;
    if (field->kind == SCHEDULE)
        return (uint64_t) * (const tide_lr_shape *)at;
    if (field->kind == PACKING)
        return (uint64_t) * (const tide_train_packing *)at;
    if (field->kind == FLAG)
        return *(const bool *)at;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

static const tide_family *field_family(const tide_train_state *state, const state_field *field)
{
    return *(const tide_family *const *)field_at(state, field);
}

static double field_real(const tide_train_state *state, const state_field *field)
{
    assert(field->kind == REAL);
    return *(const double *)field_at(state, field);
}

/* Writes the double as a user would: with the fewest digits, from 6 to 17, that give the same double back. */
static void real_text(double value, char text[VALUE_TEXT_BYTES])
{
    for (int digits = 6; digits <= 17; digits++) {
        double back = 0;
        snprintf(text, VALUE_TEXT_BYTES, "%.*g", digits, value);
        if (sscanf(text, "%lf", &back) == 1 && back == value)
            return;
    }
}

static const char *const packing_names[TIDE_TRAIN_PACKINGS] = {"off", "cut", "drop"};

static void field_text(const tide_train_state *state, const state_field *field, char text[VALUE_TEXT_BYTES])
{
    uint64_t bits = field_bits(state, field);
    switch (field->kind) {
    case COUNT64:
    case COUNT32:
        snprintf(text, VALUE_TEXT_BYTES, "%" PRIu64, bits);
        return;
    case BITS64:
        snprintf(text, VALUE_TEXT_BYTES, "0x%016" PRIx64, bits);
        return;
    case REAL:
        real_text(field_real(state, field), text);
        return;
    case FLAG:
        snprintf(text, VALUE_TEXT_BYTES, "%s", bits ? "true" : "false");
        return;
    case DTYPE:
        snprintf(text, VALUE_TEXT_BYTES, "%s", tide_dtype_name((tide_dtype)bits));
        return;
    case FAMILY:
        snprintf(text, VALUE_TEXT_BYTES, "%s", tide_model_family_name(field_family(state, field)));
        return;
    case ROPE:
        snprintf(text, VALUE_TEXT_BYTES, "%s", tide_rope_kind_name((tide_rope_kind)bits));
        return;
    case SCHEDULE:
        snprintf(text, VALUE_TEXT_BYTES, "%s", tide_lr_shape_name((tide_lr_shape)bits));
        return;
    case PACKING:
        snprintf(text, VALUE_TEXT_BYTES, "%s", packing_names[bits]);
        return;
    case TOKEN: /* the member holds 1 + the token, or 0 for none */
        if (bits == 0)
            snprintf(text, VALUE_TEXT_BYTES, "none");
        else
            snprintf(text, VALUE_TEXT_BYTES, "%" PRIu64, bits - 1);
        return;
    }
}

static bool field_is_valid(const tide_train_state *state, const state_field *field)
{
    uint64_t bits = field_bits(state, field);
    if (field->kind == COUNT64)
        return bits <= INT64_MAX;
    if (field->kind == REAL)
        return isfinite(field_real(state, field));
    if (field->kind == ROPE)
        return bits < TIDE_ROPE_KINDS;
    if (field->kind == SCHEDULE)
        return bits < TIDE_LR_SHAPES;
    if (field->kind == PACKING)
        return bits < TIDE_TRAIN_PACKINGS;
    return field->kind != DTYPE || bits <= TIDE_DTYPE_FP16;
}

static bool loss_scale_is_valid(const tide_train_state *state)
{
    if (state->dtype != TIDE_DTYPE_FP16)
        return state->loss_scale == 0 && state->loss_scale_good_steps == 0 &&
               state->hyper.loss_scale_fixed == 0;
    return tide_loss_scale_is_valid(state->loss_scale) &&
           state->loss_scale_good_steps < TIDE_LOSS_SCALE_GROWTH_STEPS &&
           (state->hyper.loss_scale_fixed == 0 || tide_loss_scale_is_valid(state->hyper.loss_scale_fixed));
}

bool tide_train_state_is_valid(const tide_train_state *state)
{
    bool valid = tide_model_config_is_valid(&state->model) && loss_scale_is_valid(state) &&
                 state->data_first_step <= state->step && state->best_step <= state->step &&
                 state->sum_groups > 0 && state->reduce_dtype != TIDE_DTYPE_FP16;
    for (size_t i = 0; i < FIELDS; i++)
        valid = valid && field_is_valid(state, &fields[i]);
    return valid;
}

/* ---- comparing ---- */

const char *tide_train_state_field(const tide_train_state *state, size_t i, char text[VALUE_TEXT_BYTES])
{
    if (i >= FIELDS)
        return NULL;
    if (field_exists(&fields[i], state))
        field_text(state, &fields[i], text);
    else
        snprintf(text, VALUE_TEXT_BYTES, "-");
    return fields[i].name;
}

/* Options by which a user sets fields whose names do not say so. */
static const char *field_options(const state_field *field)
{
    if (field->offset == offsetof(tide_train_state, packing))
        return " (--packing, --long)";
    return field->offset == offsetof(tide_train_state, whole_epochs)
               ? " (true with --epochs, false with --steps)"
               : "";
}

static tide_status refuse_field(const tide_train_state *saved, const tide_train_state *current,
                                const char *where, const state_field *field)
{
    char saved_text[VALUE_TEXT_BYTES], current_text[VALUE_TEXT_BYTES];
    field_text(saved, field, saved_text);
    field_text(current, field, current_text);
    return tide_fail(TIDE_ERROR_MISMATCH,
                     "checkpoint %s: it was made with %s %s, this run has %s; they must be equal%s", where,
                     field->name, saved_text, current_text, field_options(field));
}

static const char *change_note(const state_field *field)
{
    return field->rule == SUMS ? ": gradients are summed otherwise from here on" : "";
}

static void note_change(const tide_train_state *saved, const tide_train_state *current,
                        const state_field *field, tide_train_changes *changes)
{
    char saved_text[VALUE_TEXT_BYTES], current_text[VALUE_TEXT_BYTES];
    assert(changes->count < TIDE_TRAIN_CHANGES_MAX);
    field_text(saved, field, saved_text);
    field_text(current, field, current_text);
    snprintf(changes->lines[changes->count++], sizeof changes->lines[0], "%s %s -> %s%s", field->name,
             saved_text, current_text, change_note(field));
}

tide_status tide_train_state_compare(const tide_train_state *saved, const tide_train_state *current,
                                     const char *where, tide_train_changes *changes)
{
    tide_train_changes found = {0};
    for (size_t i = 0; i < FIELDS; i++) {
        const state_field *field = &fields[i];
        if (field->rule == PROGRESS || !field_exists(field, saved) ||
            field_bits(saved, field) == field_bits(current, field))
            continue;
        if (field->rule == IDENTITY)
            return refuse_field(saved, current, where, field);
        note_change(saved, current, field, &found);
    }
    *changes = found;
    return TIDE_OK;
}

/* ---- JSON ---- */

static const tide_train_state defaults = {.model.family = &tide_family_gpt2,
                                          .hyper.schedule.shape = TIDE_LR_COSINE,
                                          .sum_groups = 1,
                                          .reduce_dtype = TIDE_DTYPE_FP32};

static json_t *field_to_json(const tide_train_state *state, const state_field *field)
{
    char text[VALUE_TEXT_BYTES];
    uint64_t bits = field_bits(state, field);
    if (field->kind == REAL)
        return json_real(field_real(state, field));
    if (field->kind == COUNT64 || field->kind == COUNT32)
        return json_integer((json_int_t)bits);
    if (field->kind == TOKEN)
        return json_integer((json_int_t)bits - 1);
    if (field->kind == FLAG)
        return json_boolean(bits);
    field_text(state, field, text);
    return json_string(text);
}

static bool field_is_written(const state_field *field, const tide_train_state *state)
{
    return field_exists(field, state) &&
           !(field->has_default && field_bits(state, field) == field_bits(&defaults, field));
}

json_t *tide_train_state_to_json(const tide_train_state *state)
{
    assert(tide_train_state_is_valid(state));
    json_t *object = json_object();
    for (size_t i = 0; i < FIELDS && object != NULL; i++) {
        if (!field_is_written(&fields[i], state))
            continue;
        if (json_object_set_new(object, fields[i].name, field_to_json(state, &fields[i])) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

/* Reads exactly "0x" and sixteen lower-case digits. */
static bool bits_from_text(const char *text, uint64_t *bits)
{
    if (text == NULL || strlen(text) != 18 || strncmp(text, "0x", 2) != 0 ||
        strspn(text + 2, "0123456789abcdef") != 16)
        return false;
    return sscanf(text + 2, "%16" SCNx64, bits) == 1;
}

static bool dtype_from_text(const char *text, tide_dtype *dtype)
{
    for (tide_dtype candidate = TIDE_DTYPE_FP32; candidate <= TIDE_DTYPE_FP16; candidate++) {
        if (text != NULL && strcmp(text, tide_dtype_name(candidate)) == 0) {
            *dtype = candidate;
            return true;
        }
    }
    return false;
}

static bool family_from_text(const char *text, const tide_family **family)
{
    const tide_family *found = text != NULL ? tide_model_family_find(text) : NULL;
    if (found != NULL)
        *family = found;
    return found != NULL;
}

static bool rope_from_text(const char *text, tide_rope_kind *kind)
{
    for (int candidate = 0; candidate < TIDE_ROPE_KINDS; candidate++) {
        if (text != NULL && strcmp(text, tide_rope_kind_name((tide_rope_kind)candidate)) == 0) {
            *kind = (tide_rope_kind)candidate;
            return true;
        }
    }
    return false;
}

static bool schedule_from_text(const char *text, tide_lr_shape *shape)
{
    for (int candidate = 0; candidate < TIDE_LR_SHAPES; candidate++) {
        if (text != NULL && strcmp(text, tide_lr_shape_name((tide_lr_shape)candidate)) == 0) {
            *shape = (tide_lr_shape)candidate;
            return true;
        }
    }
    return false;
}

static bool packing_from_text(const char *text, tide_train_packing *packing)
{
    for (int candidate = 0; candidate < TIDE_TRAIN_PACKINGS; candidate++) {
        if (text != NULL && strcmp(text, packing_names[candidate]) == 0) {
            *packing = (tide_train_packing)candidate;
            return true;
        }
    }
    return false;
}

static bool field_from_json(const json_t *item, const state_field *field, tide_train_state *state)
{
    void *at = (char *)state + field->offset;
    json_int_t count = json_integer_value(item);
    switch (field->kind) {
    case COUNT64:
        *(uint64_t *)at = (uint64_t)count;
        return json_is_integer(item) && count >= 0;
    case COUNT32:
        *(uint32_t *)at = (uint32_t)count;
        return json_is_integer(item) && count >= 0 && count <= UINT32_MAX;
    case BITS64:
        return bits_from_text(json_string_value(item), (uint64_t *)at);
    case REAL:
        *(double *)at = json_real_value(item);
        return json_is_real(item);
    case FLAG:
        *(bool *)at = json_is_true(item);
        return json_is_boolean(item);
    case DTYPE:
        return dtype_from_text(json_string_value(item), (tide_dtype *)at);
    case FAMILY:
        return family_from_text(json_string_value(item), (const tide_family **)at);
    case ROPE:
        return rope_from_text(json_string_value(item), (tide_rope_kind *)at);
    case SCHEDULE:
        return schedule_from_text(json_string_value(item), (tide_lr_shape *)at);
    case PACKING:
        return packing_from_text(json_string_value(item), (tide_train_packing *)at);
    case TOKEN:
        *(uint32_t *)at = (uint32_t)count + 1;
        return json_is_integer(item) && count >= 0 && count < UINT32_MAX;
    }
    return false;
}

/* Would a state like this one have a field of that name? */
static bool name_is_known(const char *name, const tide_train_state *state)
{
    for (size_t i = 0; i < FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0 && field_exists(&fields[i], state))
            return true;
    return false;
}

static tide_status refuse_unknown(const json_t *object, const tide_train_state *state, const char *where)
{
    json_t *members = (json_t *)(uintptr_t)object; /* jansson's iterator is not const */
    const char *name;
    json_t *value;
    json_object_foreach(members, name, value)
    {
        if (!name_is_known(name, state))
            return tide_fail(
                TIDE_ERROR_UNSUPPORTED,
                "checkpoint %s: this tidepool does not know training state field \"%s\"; a later one "
                "may have written it",
                where, tide_printable(name).text);
    }
    return TIDE_OK;
}

tide_status tide_train_state_from_json(const json_t *object, const char *where, tide_train_state *state)
{
    tide_train_state parsed = defaults;
    for (size_t i = 0; i < FIELDS; i++) {
        const json_t *item = json_object_get(object, fields[i].name);
        if (!field_exists(&fields[i], &parsed))
            continue;
        if (item == NULL && fields[i].has_default)
            continue;
        if (item == NULL || !field_from_json(item, &fields[i], &parsed))
            return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %s: training state field \"%s\" is %s", where,
                             fields[i].name, item == NULL ? "missing" : "malformed");
    }
    const tide_status status = refuse_unknown(object, &parsed, where);
    if (status != TIDE_OK)
        return status;
    tide_model_config_complete(&parsed.model);
    if (!tide_train_state_is_valid(&parsed))
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %s: the training state describes no valid model",
                         where);
    snprintf(parsed.model.name, sizeof parsed.model.name, "checkpoint");
    *state = parsed;
    return TIDE_OK;
}
