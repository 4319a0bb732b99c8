/* Plays training steps in virtual time: the performance model behind every prediction of a step's time.
 *
 * A player is a pool on the null device, which computes nothing and whose clock is virtual. So a played step
 * has the manager, planner and engine of a run, with the same budgets and the same moves. The caller says
 * which ops a step runs (a script), how long a unit of each op lasts, and the machine: the rates of copies,
 * updates and mappings, and how streams slow each other.
 *
 *   an op           begin, [slice, unit]..., a unit if there was no slice, end
 *   a unit          one kernel that lasts as long as all kernels of a slice, or of an op without slices
 *   pool's kernels  zeros, rounding and norm: each lasts as long as the machine says; or, with `times_all`,
 *                   the first of an op's begin or end and of the step's begin or end lasts as long as all of
 *                   them, and the others last no time
 *
 * One thread at a time. */
#ifndef TIDE_POOL_PLAYER_H
#define TIDE_POOL_PLAYER_H

#include "src/pool/course.h"
#include "src/pool/measure.h"

typedef struct tide_player tide_player;

/* Make a player of a description; options->device is a null device. Sets the CPU kernels' thread count, as
 * tide_pool_create does, and has its statuses. */
TIDE_NODISCARD tide_status tide_player_create(const tide_pool_options *options, tide_description *description,
                                              tide_player **player);
/* Make a player that has a pool's packing, budgets, placement and prefetch, so its plan, too. The pool must
 * outlive it. No later call allocates. Statuses of tide_pool_create. */
TIDE_NODISCARD tide_status tide_player_of(const tide_pool *pool, tide_player **player);
void tide_player_destroy(tide_player *player); /* NULL: allowed */

/* The pool whose steps are played, to read its plan or watch its device. */
tide_pool *tide_player_pool(tide_player *player);

/* Write the script of a step that runs the first `ops` ops of the description in order, each with all its
 * slices. The caller frees script->lines. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_player_script(const tide_description *description, uint32_t ops, bool clips,
                                              tide_script *script);

/* A step and the times in it. All pointers must stay valid during the calls. */
typedef struct tide_play {
    const tide_script *script;
    const tide_device_options *machine; /* as for tide_device_null_imitate */
    /* in ns, by series (measure.h): of a unit of each op; with `times_all` also of the pool's kernels before
     * and after all ops, and at the begin and end of each op */
    const double *times_ns;
    bool times_all;
    /* asked by tide_player_play before each step, ends the play with STATE; NULL: play on */
    bool (*go_on)(void *context);
    void *context;
} tide_play;

/* Play one step. Statuses of the pool's calls; the step that failed has been given up, and another may be
 * played. */
TIDE_NODISCARD tide_status tide_player_step(tide_player *player, const tide_play *play);

/* Play steps until `equal_steps` in a row repeat (course.h). *step: the mean step; *steps: how many were
 * kept; both may be NULL. */
TIDE_NODISCARD tide_status tide_player_play(tide_player *player, const tide_play *play, uint32_t equal_steps,
                                            tide_pool_counters *step, uint32_t *steps);

#endif
