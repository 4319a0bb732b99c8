#include "manager_fixture.h"

#include <stdio.h>
#include <string.h>

static const tide_state_format momentum = {1, {128}};

fixture f;

/* --- set-up --- */

void arrange_classes(const tide_state_format *formats, uint32_t classes, uint32_t params, uint32_t tensors,
                     uint32_t parts)
{
    const uint64_t elements = ELEMENTS;
    char name[16];
    uint32_t number;
    memset(&f, 0, sizeof f);
    f.params = params;
    assert_int_equal(tide_description_create(TIDE_DTYPE_FP32, 0, &f.description), TIDE_OK);
    for (uint32_t i = 0; i < params; i++) {
        const tide_state_format *format = &formats[i * classes / params];
        const tide_param_class of_class = {.frozen = format->planes == 0, .state = *format};
        snprintf(name, sizeof name, "param%u", i);
        assert_int_equal(tide_description_add_param(f.description, name, &elements, 1, &of_class, &number),
                         TIDE_OK);
    }
    for (uint32_t i = 0; i < tensors; i++) {
        snprintf(name, sizeof name, "ckpt%u", i);
        assert_int_equal(tide_description_add_activation(f.description, name, parts, CHUNK_BYTES, &number),
                         TIDE_OK);
    }
}

void arrange(uint32_t params, uint32_t tensors, uint32_t parts)
{
    arrange_classes(&momentum, 1, params, tensors, parts);
}

tide_op add_op(tide_pass pass, uint32_t param, uint32_t access)
{
    tide_op op;
    tide_use use = {.tensor = param, .access = access};
    tide_op_description d = {.name = "op", .pass = pass, .params = &use, .param_count = 1};
    assert_int_equal(tide_description_add_op(f.description, &d, &op), TIDE_OK);
    return op;
}

void add_chain(uint32_t params, bool backward)
{
    for (uint32_t i = 0; i < params; i++)
        add_op(TIDE_PASS_FORWARD, i, READ);
    for (uint32_t i = params; backward && i-- > 0;)
        add_op(TIDE_PASS_BACKWARD, i, READ | GRAD);
}

void make_manager(void)
{
    assert_int_equal(tide_layout_create(f.description, CHUNK_BYTES, &f.layout), TIDE_OK);
    assert_int_equal(tide_manager_create(f.layout, &f.manager), TIDE_OK);
}

void seal(uint32_t device, uint32_t host, tide_placement placement, bool prefetch)
{
    if (!f.manager)
        make_manager();
    tide_manager_options options = {
        .device_slots = device, .host_slots = host, .placement = placement, .prefetch = prefetch};
    assert_int_equal(tide_manager_seal(f.manager, &options), TIDE_OK);
    f.manager->deep_checks = true;
}

int clean_up(void **state)
{
    (void)state;
    tide_manager_destroy(f.manager);
    tide_layout_destroy(f.layout);
    tide_description_destroy(f.description);
    memset(&f, 0, sizeof f);
    return 0;
}

void arrange_chain(uint32_t params, bool backward, uint32_t device, uint32_t host, tide_placement placement,
                   bool prefetch)
{
    arrange(params, 0, 0);
    add_chain(params, backward);
    seal(device, host, placement, prefetch);
}

/* --- run ops and commands --- */

bool step_engine(tide_status status)
{
    tide_command command;
    if (!tide_manager_next(f.manager, &command))
        return false;
    assert_true(f.log_count < LOG_MAX);
    f.log[f.log_count++] = command;
    tide_manager_done(f.manager, command.id, status);
    return true;
}

void run_engine(void)
{
    while (step_engine(TIDE_OK))
        ;
    assert_false(tide_manager_is_stuck(f.manager));
}

void run_until_ready(void)
{
    while (!tide_manager_ready(f.manager) && step_engine(TIDE_OK))
        ;
    assert_true(tide_manager_ready(f.manager));
}

void begin(tide_op op)
{
    assert_int_equal(tide_manager_begin(f.manager, op), TIDE_OK);
    run_until_ready();
}

void run_op(tide_op op)
{
    begin(op);
    assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
}

void run_ops(tide_op first, tide_op last)
{
    for (tide_op op = first; op <= last; op++)
        run_op(op);
}

void step_begin(bool training, bool waits)
{
    assert_int_equal(tide_manager_step_begin(f.manager, training, waits), TIDE_OK);
}

void step_end(void)
{
    assert_int_equal(tide_manager_step_end(f.manager), TIDE_OK);
}

void forward_pass(tide_op first, tide_op last)
{
    step_begin(false, false);
    run_ops(first, last);
    step_end();
}

void access_chunk(tide_chunk chunk, uint32_t access)
{
    tide_use use = {.tensor = chunk, .access = access};
    assert_int_equal(tide_manager_host_request(f.manager, &use, 1), TIDE_OK);
    run_engine();
}

void set_all_params(void)
{
    for (uint32_t i = 0; i < f.params; i++) {
        access_chunk(i, WRITE);
        access_chunk(f.params + i, WRITE);
    }
    f.log_count = 0;
}

/* --- look at the result --- */

where_it_is residency(tide_chunk chunk)
{
    const tide_place *place = tide_place_of(&f.manager->places, chunk);
    return (where_it_is){.device_valid = tide_place_has(place, TIDE_TIER_DEVICE),
                         .host_valid = tide_place_has(place, TIDE_TIER_HOST),
                         .pinned = place->pins[TIDE_TIER_DEVICE] || place->pins[TIDE_TIER_HOST],
                         .host_slot = place->slot[TIDE_TIER_HOST]};
}

tide_manager_counters counters(void)
{
    tide_manager_counters c;
    tide_manager_counters_get(f.manager, &c);
    return c;
}

const tide_command *find(tide_command_kind kind, tide_chunk chunk)
{
    for (uint32_t i = 0; i < f.log_count; i++)
        if (f.log[i].kind == kind && (chunk == ALL || f.log[i].chunk == chunk))
            return &f.log[i];
    return NULL;
}

uint32_t count(tide_command_kind kind)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < f.log_count; i++)
        found += f.log[i].kind == kind;
    return found;
}
