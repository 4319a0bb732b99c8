/* A step's gathers with frames, of which every rank has the same fixed number, against
 *
 *   needed   each group that an op reads once a step: values end with a step
 *   moving   the fewest with the same slots if the split between frames and activations could move during the
 *            step. Where fewer activations live than at the peak, the slots that they leave are more frames.
 *            Belady's rule, which replaces the group whose next read is farthest, is then optimal as well
 *
 * The trainer builds each model on the null device and records one step of 8 sequences; each rank of a group
 * then has the same ops. The steps counted follow their recording, with gathers one op ahead where frames
 * allow. Frames are counted in groups; the fewest is the most groups that one op reads.
 */
#include "tests/bench/bench_policy_frames.h"

#include "base/minmax.h"
#include "chunk/manager_internal.h"
#include "src/pool/internal.h"
#include "src/train/trainer.h"
#include "tests/support/bench.h"
#include "tests/support/small_traces.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

static tide_trainer *record(const char *name)
{
    tide_trainer_options options;
    tide_trainer *trainer;
    tide_trainer_options_default(&options);
    bench_check(tide_model_config_open(name, &options.model), name);
    options.seq_len = tide_min_u32(options.model.context, 4096);
    options.recompute = TIDE_RECOMPUTE_ALL;
    options.pool.device = "null";
    options.pool.placement = TIDE_PLACEMENT_HOST;
    options.pool.threads = 1;
    options.pool.machine = (tide_machine){
        .flops_per_second = 1e14, .device_bytes_per_second = 1e12, .host_bytes_per_second = 1e11};
    bench_check(tide_trainer_create(&options, &trainer), name);
    bench_check(tide_trainer_step(trainer, NULL), name);
    return trainer;
}

/* The recorded step: its ops, and how many ACTIVATION chunks are live when each runs. */
typedef struct step {
    tide_op *ops;
    uint32_t *live;
    uint32_t length, peak;
} step;

static void count_live(const tide_use_trace *trace, const tide_recording *recording,
                       const tide_layout *layout, step *s)
{
    uint32_t *first = calloc(trace->chunk_count, sizeof *first),
             *last = calloc(trace->chunk_count, sizeof *last);
    uint32_t *op_of = calloc(recording->length + 1, sizeof *op_of);
    if (!first || !last || !op_of)
        bench_die("no memory for %u chunks", trace->chunk_count);
    for (uint32_t n = 0, op = 0; n < recording->length; n++) {
        op += recording->schedule_steps[n].slice == TIDE_SLICE_NONE;
        op_of[n] = op; /* the op's number and 1 */
    }
    for (uint32_t u = 0; u < trace->use_count; u++) {
        const uint32_t op = op_of[trace->uses[u].schedule_step];
        first[trace->uses[u].chunk] = first[trace->uses[u].chunk] ? first[trace->uses[u].chunk] : op;
        last[trace->uses[u].chunk] = op;
    }
    for (tide_chunk chunk = 0; chunk < trace->chunk_count; chunk++)
        for (uint32_t op = first[chunk]; op > 0 && op <= last[chunk]; op++)
            s->live[op - 1] += tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_ACTIVATION;
    for (uint32_t n = 0; n < s->length; n++)
        s->peak = tide_max_u32(s->peak, s->live[n]);
    free(first);
    free(last);
    free(op_of);
}

static void read_step(const tide_manager *manager, step *s)
{
    const tide_recording *recording = &manager->future.schedule.recordings[TIDE_SCHEDULE_TRAINING];
    *s = (step){.ops = calloc(recording->length, sizeof *s->ops),
                .live = calloc(recording->length, sizeof *s->live)};
    if (!s->ops || !s->live)
        bench_die("no memory for %u schedule steps", recording->length);
    for (uint32_t n = 0; n < recording->length; n++)
        if (recording->schedule_steps[n].slice == TIDE_SLICE_NONE)
            s->ops[s->length++] = recording->schedule_steps[n].op;
    count_live(trace_recorded(manager), recording, manager->layout, s);
}

/* --- gathers --- */

static uint64_t play_frames(const tide_ops *ops, const step *s, uint32_t count, bool ahead)
{
    tide_roll roll;
    tide_frames frames;
    tide_arrays arrays = {0};
    uint64_t before = 0;
    tide_roll_create(&roll, 4 * tide_layout_space_chunks(ops->layout, TIDE_SPACE_PARAM) + 4, &arrays);
    if (arrays.lacks)
        bench_die("no memory for the roll");
    bench_check(tide_frames_create(&frames, ops, &roll, count, ahead), "frames");
    for (int i = 0; i < STEPS; i++) {
        before = roll.appended;
        tide_frames_step_begin(&frames, true);
        for (uint32_t n = 0; n < s->length; n++) {
            tide_roll_clear(&roll);
            tide_frames_begin(&frames, s->ops[n]);
        }
        tide_roll_clear(&roll);
        tide_frames_step_end(&frames);
    }
    const uint64_t gathers = roll.appended - before;
    tide_frames_destroy(&frames);
    tide_arrays_free(&arrays);
    return gathers;
}

/* The next op from number `from` on that reads the group; the step's length if none does. */
static uint32_t next_read(const tide_ops *ops, const step *s, uint32_t from, tide_chunk group)
{
    for (uint32_t n = from; n < s->length; n++) {
        const tide_op_record *op = &ops->records[s->ops[n]];
        for (uint32_t i = 0; i < op->chunks.count; i++)
            if (op->chunks.list[i] == group && op->reads[i])
                return n;
    }
    return s->length;
}

/* Take out the group whose next read is farthest, but none that op number `at` reads. */
static void replace(const tide_ops *ops, const step *s, uint32_t at, bool *there, uint32_t groups)
{
    tide_chunk farthest = TIDE_CHUNK_NONE;
    uint32_t distance = 0;
    for (tide_chunk group = 0; group < groups; group++) {
        const uint32_t next = there[group] ? next_read(ops, s, at, group) : 0;
        if (next > at && next > distance) {
            farthest = group;
            distance = next;
        }
    }
    if (farthest == TIDE_CHUNK_NONE)
        bench_die("no group may be replaced");
    there[farthest] = false;
}

/* The fewest gathers if frames may take the slots of activations that are not live. `needed`: as if there
 * were a frame for each group. */
static uint64_t play_moving(const tide_ops *ops, const step *s, uint32_t count, uint32_t ranks,
                            uint64_t *needed)
{
    const uint32_t groups = tide_layout_space_chunks(ops->layout, TIDE_SPACE_PARAM);
    bool *there = calloc(groups, sizeof *there), *met = calloc(groups, sizeof *met);
    uint64_t gathers = 0;
    uint32_t placed = 0;
    if (!there || !met)
        bench_die("no memory for %u groups", groups);
    *needed = 0;
    for (uint32_t n = 0; n < s->length; n++) {
        const tide_op_record *op = &ops->records[s->ops[n]];
        const uint32_t capacity = count + (s->peak - s->live[n]) / (ranks - 1);
        for (uint32_t i = 0; i < op->chunks.count; i++) {
            const tide_chunk group = op->chunks.list[i];
            if (!op->reads[i])
                continue;
            *needed += !met[group];
            gathers += !there[group];
            placed += !there[group];
            met[group] = there[group] = true;
        }
        for (; placed > capacity; placed--)
            replace(ops, s, n, there, groups);
    }
    free(there);
    free(met);
    return gathers;
}

/* --- figures --- */

static void measure_frames(const char *name, const tide_ops *ops, const step *s, uint32_t ranks)
{
    const uint32_t groups = tide_layout_space_chunks(ops->layout, TIDE_SPACE_PARAM);
    const uint32_t fewest = tide_frames_needed(ops, false), ahead = tide_frames_needed(ops, true);
    const struct {
        const char *name;
        uint32_t count;
    } frames[] = {{"the fewest", fewest},
                  {"the fewest with gathers ahead", ahead},
                  {"a quarter", tide_max_u32(groups / 4, ahead)},
                  {"half", tide_max_u32(groups / 2, ahead)},
                  {"all", groups}};
    for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
        uint64_t needed;
        const uint32_t count = frames[i].count;
        const uint64_t made = play_frames(ops, s, count, count >= ahead);
        const uint64_t moving = play_moving(ops, s, count, ranks, &needed);
        bench_figure(bench_name("%s, %u ranks, frames %s: gathers to needed", name, ranks, frames[i].name),
                     (double)made / (double)needed, "ratio", BENCH_AT_MOST, 3.0,
                     "%u frames for %u groups, at most %u read by an op; %" PRIu64 " gathers, %" PRIu64
                     " needed",
                     count, groups, fewest, made, needed);
        bench_figure(bench_name("%s, %u ranks, frames %s: to a moving split", name, ranks, frames[i].name),
                     (double)made / (double)moving, "ratio", BENCH_NO_BOUND, 0,
                     "%" PRIu64 " gathers and %" PRIu64 "; up to %u of %u chunks of activations live", made,
                     moving, s->peak, s->peak);
    }
}

static void measure_model(const char *name)
{
    tide_trainer *trainer = record(name);
    const tide_packing *packing = &tide_trainer_pool(trainer)->packing;
    step s;
    read_step(tide_trainer_pool(trainer)->engine.manager, &s);
    for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
        tide_layout *layout;
        tide_ops ops;
        bench_check(tide_layout_create(packing->description, tide_layout_chunk_bytes(packing->layout),
                                       (tide_shard){ranks, 0}, &layout),
                    name);
        bench_check(tide_ops_create(&ops, layout), name);
        measure_frames(name, &ops, &s, ranks);
        tide_ops_destroy(&ops);
        tide_layout_destroy(layout);
    }
    free(s.ops);
    free(s.live);
    tide_trainer_destroy(trainer);
}

void bench_policy_frames(void)
{
    static const char *const models[] = {"gpt2-xl", "llama-3.1-8b", "llama-3.1-70b"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        measure_model(models[i]);
}
