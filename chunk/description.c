#include "chunk/description.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

enum { PARTS_MOST = 1 << 20 };
#define BYTES_MOST    (UINT64_C(1) << 50) /* of one activation, and of all: no sum overflows */
#define ELEMENTS_MOST (UINT64_C(1) << 48)

/* --- creation --- */

tide_status tide_description_create(tide_dtype dtype, uint64_t nonmodel_bytes, tide_description **description)
{
    if (!description)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_description_create: description is NULL");
    if (dtype != TIDE_DTYPE_FP32 && dtype != TIDE_DTYPE_BF16 && dtype != TIDE_DTYPE_FP16)
        return tide_fail(TIDE_ERROR_ARGUMENT, "description: unknown dtype %d", (int)dtype);
    if (nonmodel_bytes > BYTES_MOST)
        return tide_fail(TIDE_ERROR_ARGUMENT, "description: nonmodel_bytes is %llu, at most %llu are allowed",
                         (unsigned long long)nonmodel_bytes, (unsigned long long)BYTES_MOST);
    tide_description *made = calloc(1, sizeof *made);
    if (!made)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "description: no memory for %zu bytes", sizeof *made);
    made->dtype = dtype;
    made->nonmodel_bytes = nonmodel_bytes;
    made->params.kind = "param";
    made->activations.kind = "activation";
    *description = made;
    return TIDE_OK;
}

void tide_description_destroy(tide_description *description)
{
    if (!description)
        return;
    for (uint32_t i = 0; i < description->op_count; i++) {
        free((char *)(uintptr_t)description->ops[i].name);
        free((tide_use *)(uintptr_t)description->ops[i].params);
    }
    free(description->ops);
    tide_names_destroy(&description->params);
    tide_names_destroy(&description->activations);
    free(description);
}

/* ARGUMENT if a parameter of the call is NULL (`missing` is its name, else NULL); STATE if the description is
 * fixed. */
static tide_status check_open(const tide_description *description, const char *call, const char *missing)
{
    if (missing)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s is NULL", call, missing);
    if (description->is_fixed)
        return tide_fail(TIDE_ERROR_STATE, "%s: a plan or a pool has been made of the description", call);
    return TIDE_OK;
}

static tide_status check_name(const tide_names *names, const char *name)
{
    if (!*name)
        return tide_fail(TIDE_ERROR_ARGUMENT, "every %s needs a name", names->kind);
    if (tide_names_find(names, name))
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s %s: there is one of this name", names->kind, name);
    return TIDE_OK;
}

/* --- params --- */

static tide_status count_elements(const char *name, const uint64_t *shape, uint32_t rank, uint64_t *elements)
{
    if (rank < 1 || rank > 4)
        return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: %u dimensions, 1 to 4 are allowed", name, rank);
    *elements = 1;
    for (uint32_t i = 0; i < rank; i++) {
        if (shape[i] == 0)
            return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: dimension %u is 0", name, i);
        if (shape[i] > ELEMENTS_MOST / *elements)
            return tide_fail(TIDE_ERROR_ARGUMENT,
                             "param %s: dimension %u is %llu, too large: a param has at most 2^48 elements",
                             name, i, (unsigned long long)shape[i]);
        *elements *= shape[i];
        assert(*elements > 0 && *elements <= ELEMENTS_MOST);
    }
    return TIDE_OK;
}

static tide_status check_planes(const char *name, const tide_state_format *state)
{
    if (state->planes > TIDE_STATE_PLANES_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: a state of %u planes, at most %d are allowed", name,
                         state->planes, TIDE_STATE_PLANES_MAX);
    for (uint32_t i = 0; i < TIDE_STATE_PLANES_MAX; i++) {
        if (i < state->planes && state->bytes[i] == 0)
            return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: plane %u of its state has 0 bytes", name, i);
        if (i >= state->planes && state->bytes[i] != 0)
            return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: a state of %u planes has bytes for plane %u",
                             name, state->planes, i);
    }
    return TIDE_OK;
}

/* Set `state` to the param's state format: none if frozen, AdamW's if a trained param gives none. ARGUMENT
 * for a wrong one. */
static tide_status complete_state(const char *name, const tide_param_class *given, tide_state_format *state)
{
    *state = given->state;
    if (given->frozen && (given->decay || state->planes > 0))
        return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: it is frozen, and can't have %s", name,
                         given->decay ? "weight decay" : "optimizer state");
    const tide_status status = check_planes(name, state);
    if (status == TIDE_OK && !given->frozen && state->planes == 0)
        *state = (tide_state_format){3, {128, 128, 128}};
    return status;
}

/* The number of the class with this state format; if there is none, the number that a new class gets. */
static uint32_t class_of(const tide_description *d, const tide_state_format *state)
{
    uint32_t number = 0;
    while (number < d->class_count && memcmp(&d->classes[number].format, state, sizeof *state) != 0)
        number++;
    return number;
}

static tide_status append_param(tide_description *d, const tide_state_format *state, bool decays,
                                const char *name, uint64_t elements, tide_param *param)
{
    const uint32_t number = class_of(d, state);
    if (number == TIDE_CLASSES_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "param %s: its state is of one kind too many; a model's params have at most %d, "
                         "frozen ones are one",
                         name, TIDE_CLASSES_MAX);
    const bool is_new = number == d->class_count;
    const uint64_t element_bytes = tide_dtype_bytes(d->dtype);
    const uint64_t offset =
        is_new ? 0 : tide_align_up(d->classes[number].elements * element_bytes) / element_bytes;
    if (offset + elements > ELEMENTS_MOST)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "param %s: %llu elements behind %llu of others; all have at most 2^48", name,
                         (unsigned long long)elements, (unsigned long long)offset);
    const tide_named what = {.name = (char *)(uintptr_t)name,
                             .of_class = number,
                             .decays = decays,
                             .parts = 1,
                             .size = elements,
                             .offset = offset};
    const tide_status status = tide_names_add(&d->params, &what, param);
    if (status != TIDE_OK)
        return status;
    if (is_new)
        d->classes[d->class_count++] = (tide_described_class){.format = *state};
    d->classes[number].elements = offset + elements;
    d->classes[number].params++;
    return TIDE_OK;
}

tide_status tide_description_add_param(tide_description *description, const char *name, const uint64_t *shape,
                                       uint32_t rank, const tide_param_class *of_class, tide_param *param)
{
    uint64_t elements = 0;
    tide_state_format state;
    tide_status status = check_open(description, "tide_description_add_param",
                                    !description ? "description"
                                    : !name      ? "name"
                                    : !shape     ? "shape"
                                    : !param     ? "param"
                                                 : NULL);
    if (status == TIDE_OK)
        status = check_name(&description->params, name);
    if (status == TIDE_OK)
        status = count_elements(name, shape, rank, &elements);
    const tide_param_class given = of_class ? *of_class : (tide_param_class){.frozen = false};
    if (status == TIDE_OK)
        status = complete_state(name, &given, &state);
    return status == TIDE_OK ? append_param(description, &state, given.decay, name, elements, param) : status;
}

/* --- activations --- */

tide_status tide_description_add_activation(tide_description *description, const char *name, uint32_t parts,
                                            uint64_t part_bytes, tide_activation *activation)
{
    tide_status status = check_open(description, "tide_description_add_activation",
                                    !description  ? "description"
                                    : !name       ? "name"
                                    : !activation ? "activation"
                                                  : NULL);
    if (status == TIDE_OK)
        status = check_name(&description->activations, name);
    if (status == TIDE_OK && parts > PARTS_MOST)
        status =
            tide_fail(TIDE_ERROR_ARGUMENT, "activation %s: %u parts, at most 2^20 are allowed", name, parts);
    if (status != TIDE_OK)
        return status;
    const uint64_t offset = tide_align_up(description->activation_bytes);
    uint64_t end = BYTES_MOST + 1;
    if (parts > 0 && part_bytes > 0 && part_bytes <= BYTES_MOST / parts)
        end = offset + (parts - 1) * tide_align_up(part_bytes) + part_bytes;
    if (end > BYTES_MOST || parts > UINT32_MAX - description->activations.parts)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "activation %s: %u parts of %llu bytes behind %llu bytes of others; it has at least 1 "
            "of 1 byte, and all have at most 2^50 bytes and 2^32 parts",
            name, parts, (unsigned long long)part_bytes, (unsigned long long)offset);
    const tide_named what = {
        .name = (char *)(uintptr_t)name, .parts = parts, .size = part_bytes, .offset = offset};
    status = tide_names_add(&description->activations, &what, activation);
    if (status == TIDE_OK)
        description->activation_bytes = end;
    return status;
}

/* --- ops --- */

static tide_status fail_use(const tide_op_description *op, const char *tensor, const char *what)
{
    return tide_fail(TIDE_ERROR_ARGUMENT, "op %s, %s: %s", op->name, tensor, what);
}

static bool is_named_before(const tide_use *uses, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (uses[k].tensor == uses[i].tensor)
            return true;
    return false;
}

static tide_status check_param_use(const tide_description *d, const tide_op_description *op, uint32_t i)
{
    const tide_use *use = &op->params[i];
    if (use->tensor >= d->params.count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: there is no param %u", op->name, use->tensor);
    const char *name = tide_names_at(&d->params, use->tensor)->name;
    if (is_named_before(op->params, i))
        return fail_use(op, name, "named twice");
    const uint32_t access = use->access & ~(unsigned)TIDE_ACCESS_OVERWRITE;
    if (access == 0 || access & ~(unsigned)(TIDE_ACCESS_READ | TIDE_ACCESS_GRAD) ||
        (access != use->access && !(access & TIDE_ACCESS_GRAD)))
        return fail_use(op, name, "a param's access is READ, GRAD or both, and OVERWRITE beside GRAD");
    if (use->access & TIDE_ACCESS_GRAD && op->pass == TIDE_PASS_FORWARD)
        return fail_use(op, name, "a forward op makes no gradient");
    if (use->access & TIDE_ACCESS_GRAD && tide_description_is_frozen(d, use->tensor))
        return fail_use(op, name, "it is frozen, and has no gradient");
    return TIDE_OK;
}

static tide_status check_activation_use(const tide_description *d, const tide_op_description *op, uint32_t i)
{
    const tide_use *use = &op->activations[i];
    if (use->tensor >= d->activations.count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: there is no activation %u", op->name, use->tensor);
    const tide_named *activation = tide_names_at(&d->activations, use->tensor);
    if (is_named_before(op->activations, i))
        return fail_use(op, activation->name, "named twice");
    if (!(use->access & (TIDE_ACCESS_READ | TIDE_ACCESS_WRITE)) || use->access & TIDE_ACCESS_GRAD ||
        use->access > (TIDE_ACCESS_READ | TIDE_ACCESS_WRITE | TIDE_ACCESS_LAST))
        return fail_use(op, activation->name, "an activation's access is READ, WRITE or both, and LAST");
    if (activation->parts != op->slices)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s has %u slices, but activation %s has %u parts", op->name,
                         op->slices, activation->name, activation->parts);
    return TIDE_OK;
}

/* Check the length of an op's array of uses: at most the number of tensors, since no tensor may be in it
 * twice. Most wrong counts are found here, before a check reads beyond the array. */
static tide_status check_array(const tide_op_description *op, const char *what, const tide_use *uses,
                               uint32_t count, uint32_t tensors)
{
    if (count > 0 && !uses)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: %s is NULL, %u are counted", op->name, what, count);
    if (count > tensors)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: %u %s, of which there are %u", op->name, count, what,
                         tensors);
    return TIDE_OK;
}

static tide_status check_op(const tide_description *d, const tide_op_description *op)
{
    if (!op->name || !*op->name)
        return tide_fail(TIDE_ERROR_ARGUMENT, "an op needs a name");
    if ((unsigned)op->pass > TIDE_PASS_BOTH)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: pass %d is unknown", op->name, (int)op->pass);
    if (op->activation_count == 0 && op->slices)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s has %u slices of no activation", op->name, op->slices);
    if (op->workspace_bytes > BYTES_MOST)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: workspace of %llu bytes, at most 2^50 are allowed",
                         op->name, (unsigned long long)op->workspace_bytes);
    tide_status status = check_array(op, "params", op->params, op->param_count, d->params.count);
    if (status == TIDE_OK)
        status = check_array(op, "activations", op->activations, op->activation_count, d->activations.count);
    for (uint32_t i = 0; i < op->param_count && status == TIDE_OK; i++)
        status = check_param_use(d, op, i);
    for (uint32_t i = 0; i < op->activation_count && status == TIDE_OK; i++)
        status = check_activation_use(d, op, i);
    return status;
}

/* Copy an op's description. The copy has one array of its own: the uses of params, then those of
 * activations. */
static tide_status copy_op(const tide_op_description *given, tide_op_description *op)
{
    const size_t params = given->param_count, activations = given->activation_count;
    char *name = strdup(given->name);
    tide_use *uses = calloc(params + activations + 1, sizeof *uses);
    if (!name || !uses) {
        free(name);
        free(uses);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "op %s: no memory to add it", given->name);
    }
    if (params > 0)
        memcpy(uses, given->params, params * sizeof *uses);
    if (activations > 0)
        memcpy(uses + params, given->activations, activations * sizeof *uses);
    *op = *given;
    op->name = name;
    op->params = uses;
    op->activations = uses + params;
    return TIDE_OK;
}

tide_status tide_description_add_op(tide_description *description, const tide_op_description *of_op,
                                    tide_op *op)
{
    tide_description *d = description;
    tide_status status = check_open(d, "tide_description_add_op",
                                    !d       ? "description"
                                    : !of_op ? "of_op"
                                    : !op    ? "op"
                                             : NULL);
    if (status == TIDE_OK)
        status = check_op(d, of_op);
    if (status == TIDE_OK && !tide_array_grow(&d->ops, d->op_count, sizeof *d->ops))
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "op %s: no memory to add it", of_op->name);
    if (status == TIDE_OK)
        status = copy_op(of_op, &d->ops[d->op_count]);
    if (status == TIDE_OK)
        *op = d->op_count++;
    return status;
}

/* --- queries --- */

bool tide_description_find_param(const tide_description *description, const char *name, tide_param *param)
{
    const tide_named *found =
        description && name && param ? tide_names_find(&description->params, name) : NULL;
    if (found)
        *param = found->number;
    return found != NULL;
}

uint64_t tide_description_param_elements(const tide_description *description, tide_param param)
{
    return description && param < description->params.count ? tide_names_at(&description->params, param)->size
                                                            : 0;
}

bool tide_description_is_complete(const tide_description *description)
{
    return description->class_count > 0 && description->op_count > 0;
}

bool tide_description_is_trainable(const tide_description *description)
{
    bool has_trained = false;
    for (uint32_t i = 0; i < description->class_count; i++)
        has_trained = has_trained || description->classes[i].format.planes > 0;
    return has_trained;
}
