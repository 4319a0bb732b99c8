#include "chunk/gradients.h"

#include <assert.h>

/* --- set-up --- */

static void add_op(tide_gradients *g, tide_op op)
{
    const tide_op_record *it = &g->ops[op];
    for (uint32_t i = 0; i < it->param_count && it->pass != TIDE_PASS_FORWARD; i++) {
        tide_gradient *param = &g->params[it->params[i].tensor];
        param->closing_op = op;
        if (!(it->params[i].access & TIDE_ACCESS_GRAD))
            continue;
        param->is_tied = param->maker != TIDE_OP_NONE;
        param->maker = param->is_tied ? param->maker : op;
    }
}

void tide_gradients_create(tide_gradients *gradients, const tide_layout *layout, tide_op_record *ops,
                           uint32_t op_count, tide_arrays *arrays)
{
    const uint32_t count = tide_layout_params(layout);
    assert(op_count < TIDE_OP_NONE);
    *gradients = (tide_gradients){.layout = layout,
                                  .params = tide_arrays_add(arrays, count, sizeof *gradients->params),
                                  .ops = ops,
                                  .op_count = op_count};
    if (!gradients->params)
        return;
    for (uint32_t p = 0; p < count; p++)
        gradients->params[p] = (tide_gradient){.closing_op = TIDE_OP_NONE, .maker = TIDE_OP_NONE};
    for (tide_op op = 0; op < op_count; op++)
        add_op(gradients, op);
}

bool tide_gradients_is_shared(const tide_gradients *gradients, uint32_t param)
{
    const tide_gradient *gradient = &gradients->params[param];
    return gradient->maker != TIDE_OP_NONE && (gradient->is_tied || gradient->maker != gradient->closing_op);
}

bool tide_gradients_may_close(const tide_gradients *gradients, tide_op op, uint32_t param)
{
    assert(op < gradients->op_count && param < tide_layout_params(gradients->layout));
    return gradients->params[param].closing_op == op && gradients->params[param].maker != TIDE_OP_NONE;
}

/* --- may an op begin? --- */

static const char *param_name(const tide_gradients *g, uint32_t param)
{
    return tide_layout_param(g->layout, param)->name;
}

static const char *closing_name(const tide_gradients *g, uint32_t param)
{
    assert(g->params[param].closing_op < g->op_count);
    return g->ops[g->params[param].closing_op].name;
}

static bool waits(const tide_gradient *gradient)
{
    return gradient->is_added && !gradient->is_closed;
}

bool tide_gradients_closes(const tide_gradients *gradients, tide_op op, const tide_use *use)
{
    assert(op < gradients->op_count && use->tensor < tide_layout_params(gradients->layout));
    const tide_gradient *gradient = &gradients->params[use->tensor];
    return gradient->closing_op == op && (gradient->is_added || use->access & TIDE_ACCESS_GRAD);
}

static bool closes_param(const tide_gradients *g, tide_op op, uint32_t param)
{
    const tide_op_record *it = &g->ops[op];
    for (uint32_t i = 0; i < it->param_count && g->params[param].closing_op == op; i++)
        if (it->params[i].tensor == param)
            return tide_gradients_closes(g, op, &it->params[i]);
    return false;
}

static tide_status check_use(const tide_gradients *g, tide_op op, uint32_t param)
{
    if (!g->params[param].is_closed)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_STATE,
                     "op %s uses param %s, but its gradient stands in its place since op %s ended",
                     g->ops[op].name, param_name(g, param), closing_name(g, param));
}

/* Mark the closing op of this param as needed, because the param's gradient waits for it. Lowers `first` to
 * the first needed op. */
static void need(tide_gradients *g, uint32_t param, tide_op *first)
{
    const tide_op closing = g->params[param].closing_op;
    assert(closing < g->op_count);
    g->ops[closing].needed = g->look;
    *first = closing < *first ? closing : *first;
}

/* Mark the closing ops of all gradients that wait as needed, if they were added before `op`. A later
 * closing op need not be marked: it may run after `op`, since it uses no param that `op` closes. */
static void need_waiting(tide_gradients *g, tide_op op, tide_op *first)
{
    uint32_t left = g->waiting_count;
    for (uint32_t p = 0; left > 0; p++) {
        assert(p < tide_layout_params(g->layout));
        left -= waits(&g->params[p]);
        if (waits(&g->params[p]) && g->params[p].closing_op < op)
            need(g, p, first);
    }
}

/* The error if `op` may not begin because `needed` could not run after it: `needed` uses `param`, which is
 * closed already or which `op` would close. */
static tide_status refuse(const tide_gradients *g, tide_op op, tide_op needed, uint32_t param)
{
    const char *name = g->ops[op].name, *waited = g->ops[needed].name, *closed = param_name(g, param);
    if (g->params[param].is_closed)
        return tide_fail(TIDE_ERROR_STATE,
                         "op %s can't begin any more in this step: a gradient would wait for op %s, and the "
                         "gradient of its param %s stands in its place since op %s ended",
                         name, waited, closed, closing_name(g, param));
    return tide_fail(
        TIDE_ERROR_STATE,
        "op %s can't begin before op %s, which a gradient waits for and which uses param %s: op %s "
        "puts the gradient of that into its place",
        name, waited, closed, name);
}

static tide_status check_needed(tide_gradients *g, tide_op op, tide_op needed)
{
    assert(needed < g->op_count && g->ops[needed].pass != TIDE_PASS_FORWARD);
    const tide_op_record *it = &g->ops[needed];
    tide_op first = needed;
    for (uint32_t i = 0; i < it->param_count; i++) {
        const tide_gradient *gradient = &g->params[it->params[i].tensor];
        if (gradient->is_closed || closes_param(g, op, it->params[i].tensor))
            return refuse(g, op, needed, it->params[i].tensor);
        if (it->params[i].access & TIDE_ACCESS_GRAD)
            need(g, it->params[i].tensor, &first);
    }
    return TIDE_OK;
}

tide_status tide_gradients_check(tide_gradients *gradients, tide_op op)
{
    assert(op < gradients->op_count);
    const tide_op_record *it = &gradients->ops[op];
    tide_op first = gradients->op_count;
    gradients->look++;
    for (uint32_t i = 0; i < it->param_count; i++) {
        const tide_gradient *gradient = &gradients->params[it->params[i].tensor];
        const tide_status status = check_use(gradients, op, it->params[i].tensor);
        if (status != TIDE_OK)
            return status;
        if (it->params[i].access & TIDE_ACCESS_GRAD && gradient->closing_op != op && !gradient->is_added)
            need(gradients, it->params[i].tensor, &first);
    }
    need_waiting(gradients, op, &first);
    /* A needed op makes only ops added later needed, so one pass in that order finds all of them; `op`
     * itself may be one. */
    for (tide_op needed = first; needed < gradients->op_count; needed++) {
        if (gradients->ops[needed].needed != gradients->look)
            continue;
        const tide_status status = check_needed(gradients, op, needed);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

/* --- a step --- */

bool tide_gradients_is_valid(const tide_gradients *gradients)
{
    uint32_t waiting = 0;
    for (uint32_t p = 0; p < tide_layout_params(gradients->layout); p++) {
        const tide_gradient *gradient = &gradients->params[p];
        waiting += waits(gradient);
        if (gradient->is_closed && !gradient->is_added)
            return false;
        if (gradient->is_added && gradient->maker == TIDE_OP_NONE)
            return false;
    }
    return waiting == gradients->waiting_count;
}

void tide_gradients_begin(tide_gradients *gradients)
{
    for (uint32_t p = 0; p < tide_layout_params(gradients->layout); p++)
        gradients->params[p].is_added = gradients->params[p].is_closed = false;
    gradients->waiting_count = 0;
}

void tide_gradients_end(tide_gradients *gradients, tide_op op)
{
    const tide_op_record *it = &gradients->ops[op];
    for (uint32_t i = 0; i < it->param_count && it->pass != TIDE_PASS_FORWARD; i++) {
        tide_gradient *gradient = &gradients->params[it->params[i].tensor];
        assert(!gradient->is_closed);
        const bool waited = waits(gradient);
        gradient->is_closed = tide_gradients_closes(gradients, op, &it->params[i]);
        gradient->is_added = gradient->is_added || it->params[i].access & TIDE_ACCESS_GRAD;
        gradients->waiting_count += waits(gradient);
        assert(gradients->waiting_count >= waited);
        gradients->waiting_count -= waited;
    }
}

tide_status tide_gradients_check_end(const tide_gradients *gradients)
{
    for (uint32_t p = 0; gradients->waiting_count > 0; p++) {
        assert(p < tide_layout_params(gradients->layout));
        if (waits(&gradients->params[p]))
            return tide_fail(
                TIDE_ERROR_STATE,
                "step end: the gradient of param %s waits for the end of op %s, which has not run",
                param_name(gradients, p), closing_name(gradients, p));
    }
    return TIDE_OK;
}
