/* The commands that training enqueues on its device, in order: a hash of their kinds, streams, sizes, slots
 * and wait sites for each of some runs. A change that is not to change what a run does leaves all hashes.
 *
 * The runs are on the null device, on which one thread enqueues all commands, and with a GPU of their own
 * (machine.gpu_memory_bytes), so that no size depends on this machine. Link with
 * -Wl,--wrap=tide_device_null_open. */
#include "tests/support/small_model.h"
#include "tests/support/test_trainer_fixture.h"

#include "offload/device.h"

#include <inttypes.h>

enum { MIB = 1 << 20, STEPS = 4 };

/* ---- the hash ---- */

static const tide_device_ops *null_ops; /* the null device's own */
static tide_device_ops hashing_ops;     /* the same, but commands are hashed first */
static uint64_t hash, commands;

static void add(uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(1099511628211);
}

static void add_command(const char *kind, tide_stream stream, uint64_t bytes)
{
    for (const char *letter = kind; *letter; letter++)
        add((unsigned char)*letter);
    add((uint64_t)stream);
    add(bytes);
    commands++;
}

static tide_status hashing_launch(tide_device *device, tide_stream stream, const tide_work *work,
                                  tide_kernel fn, const void *arguments, size_t argument_bytes)
{
    add_command(work->label, stream, (uint64_t)work->bytes);
    add((uint64_t)work->flops);
    return null_ops->launch(device, stream, work, fn, arguments, argument_bytes);
}

static tide_status hashing_copy_slot(tide_device *device, tide_stream stream, const tide_work *work,
                                     tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes)
{
    add_command(work->label, stream, bytes);
    add((uint64_t)to_tier << 62 | (uint64_t)to_slot << 31 | from_slot);
    return null_ops->copy_slot(device, stream, work, to_tier, to_slot, from_slot, bytes);
}

static tide_status hashing_copy_bytes(tide_device *device, tide_stream stream, const tide_work *work,
                                      void *to, const void *from, uint64_t bytes, bool to_device)
{
    add_command(work->label, stream, bytes);
    return null_ops->copy_bytes(device, stream, work, to, from, bytes, to_device);
}

static tide_status hashing_map(tide_device *device, uint32_t slot, void *place)
{
    add_command("map", TIDE_STREAM_COUNT, slot);
    return null_ops->map(device, slot, place);
}

static tide_status hashing_unmap(tide_device *device, uint32_t slot, void *place)
{
    add_command("unmap", TIDE_STREAM_COUNT, slot);
    return null_ops->unmap(device, slot, place);
}

static tide_status hashing_record(tide_device *device, tide_event event, tide_stream stream)
{
    add_command("record", stream, 0);
    return null_ops->event_record(device, event, stream);
}

static tide_status hashing_wait(tide_device *device, tide_stream stream, tide_event event,
                                tide_wait_site site, uint64_t id)
{
    add_command("wait", stream, site);
    return null_ops->stream_wait(device, stream, event, site, id);
}

tide_status __real_tide_device_null_open(const tide_device_options *options, tide_device **device);
tide_status __wrap_tide_device_null_open(const tide_device_options *options, tide_device **device);

tide_status __wrap_tide_device_null_open(const tide_device_options *options, tide_device **device)
{
    const tide_status status = __real_tide_device_null_open(options, device);
    if (status != TIDE_OK)
        return status;
    null_ops = (*device)->ops;
    assert_null(null_ops->remap);
    hashing_ops = *null_ops;
    hashing_ops.launch = hashing_launch;
    hashing_ops.copy_slot = hashing_copy_slot;
    hashing_ops.copy_bytes = hashing_copy_bytes;
    hashing_ops.map = hashing_map;
    hashing_ops.unmap = hashing_unmap;
    hashing_ops.event_record = hashing_record;
    hashing_ops.stream_wait = hashing_wait;
    (*device)->ops = &hashing_ops;
    return TIDE_OK;
}

/* ---- the runs ---- */

typedef struct run {
    const char *family;
    tide_dtype dtype;
    budget memory;
    tide_placement placement;
    tide_recompute recompute;
    bool prefetch;
    double clip;
    const char *freeze;      /* NULL: nothing is frozen */
    uint64_t commands, hash; /* how many commands, and their hash */
} run;

static const run runs[] = {
    {"gpt2", TIDE_DTYPE_BF16, LEAST, TIDE_PLACEMENT_AUTO, TIDE_RECOMPUTE_ALL, true, 1, NULL, 5380,
     UINT64_C(0xdf6d81b9baad3a76)},
    {"gpt2", TIDE_DTYPE_FP16, LEAST, TIDE_PLACEMENT_HOST, TIDE_RECOMPUTE_NONE, true, 1, NULL, 5804,
     UINT64_C(0x0a12b54fbc4db2f9)},
    {"gpt2", TIDE_DTYPE_FP32, ALL, TIDE_PLACEMENT_AUTO, TIDE_RECOMPUTE_ALL, true, 0, NULL, 5358,
     UINT64_C(0x45b80a879c828a5d)},
    {"qwen3", TIDE_DTYPE_BF16, LEAST, TIDE_PLACEMENT_DEVICE, TIDE_RECOMPUTE_ALL, true, 0, NULL, 8720,
     UINT64_C(0xa7c4e96fcd509ab5)},
    {"llama", TIDE_DTYPE_BF16, LEAST, TIDE_PLACEMENT_AUTO, TIDE_RECOMPUTE_ALL, false, 1,
     "model.layers.[0-2].*", 4480, UINT64_C(0x99ca0fd876917a1f)},
};

static tide_trainer_options options_of(const run *of)
{
    tide_trainer_options options;
    tide_trainer_options_default(&options);
    options.model = model_of_family(of->family, 6, 384, 6, 128, 4099);
    options.hyper.schedule.steps = STEPS;
    options.hyper.clip = of->clip;
    options.seq_len = 128;
    options.global_batch_tokens = 1024;
    options.micro_batch_sequences = 2;
    options.dtype = of->dtype;
    options.freeze = &of->freeze;
    options.freeze_count = of->freeze != NULL;
    options.recompute = of->recompute;
    options.pool.device = "null";
    options.pool.chunk_bytes = 2 * MIB;
    options.pool.threads = 1;
    options.pool.prefetch = of->prefetch;
    options.pool.placement = of->placement;
    options.pool.link_bytes_per_second = 25e9;
    options.pool.machine = (tide_machine){.gpu_memory_bytes = UINT64_C(24) << 30,
                                          .device_bytes_per_second = 1e12,
                                          .host_bytes_per_second = 50e9,
                                          .map_ns = 20000,
                                          .unmap_ns = 20000};
    if (of->memory == LEAST)
        options.pool.device_memory_bytes = least_budget(&options, true) + 3 * 2 * MIB;
    return options;
}

static void the_commands_of_each_run_are_those_of_before(void **state)
{
    bool same = true;
    for (const run *of = runs; of < runs + sizeof runs / sizeof runs[0]; of++) {
        const tide_trainer_options options = options_of(of);
        hash = UINT64_C(14695981039346656037);
        commands = 0;
        tide_trainer *trainer = trainer_open(&options);
        for (int step = 0; step < STEPS; step++) {
            tide_trainer_report report;
            ok(tide_trainer_step(trainer, &report));
        }
        ok(tide_pool_drain(tide_trainer_pool(trainer)));
        tide_trainer_destroy(trainer);
        if (commands == of->commands && hash == of->hash)
            continue;
        print_message("run %td is now %" PRIu64 ", UINT64_C(0x%016" PRIx64 ")\n", of - runs, commands, hash);
        same = false;
    }
    assert_true(same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_commands_of_each_run_are_those_of_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
