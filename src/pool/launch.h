/* The compute stream, as the caller fills it: kernels of his, and what the pool enqueues around them.
 *
 * Owns what the next work counts as (the open op, its accesses). All [caller], without the lock: nobody else enqueues on the
 * compute stream but for the norm's copy, between steps. Calls order's assertions and the device.
 */
#ifndef TIDE_POOL_LAUNCH_H
#define TIDE_POOL_LAUNCH_H

#include "src/pool/journal.h"
#include "src/pool/order.h"

typedef struct tide_launcher {
    const tide_ground *ground;
    const tide_order *order;
    const tide_journal *journal;
    bool training;               /* in a training step, or behind one: work is measured */
    tide_op op;                  /* the open one; the number of ops: none */
    const tide_access *accesses; /* the open op's; NULL: none is open */
    uint32_t access_count;
    bool shadow;         /* [fixed] it plays another pool's steps (predict.h): kernels of its own last no time, */
    double shadow_bytes; /* but for the next one, which has this traffic */
} tide_launcher;

/* Tag of work: in a training step the open op, or the number of ops where none is open; else UINT32_MAX, which is not
 * measured. */
static inline uint32_t tide_launcher_tag(const tide_launcher *launcher)
{
    return launcher->training ? launcher->op : UINT32_MAX;
}

/* Sleep until the compute stream has room for TIDE_ROOM_COMMANDS. */
void tide_launcher_make_room(const tide_launcher *launcher);
/* Whose time it is: the op's own, or the pool's at an op's begin or end. Between ops the first and the last are what follows
 * them, zeroing and writing what precedes. */
typedef enum tide_launch_part {
    TIDE_PART_OP = 0,
    TIDE_PART_WRITE, /* bytes for it; in an op its own */
    TIDE_PART_BEGIN,
    TIDE_PART_END,
} tide_launch_part;

/* Of work that is enqueued now: tide_work.meter. */
uint32_t tide_launcher_meter(const tide_launcher *launcher, tide_launch_part part);

/* What a kernel does. */
typedef struct tide_kernel_work {
    const char *label;
    tide_kernel kernel;
    const void *arguments;
    size_t argument_bytes;
    double flops, bytes;
    tide_launch_part part;
} tide_kernel_work;

/* A kernel that touches these; `access_count` 0: the region. */
tide_status tide_launcher_kernel(tide_launcher *launcher, const tide_kernel_work *kernel, const tide_access *accesses,
                                 uint32_t access_count);
tide_status tide_launcher_zero_region(tide_launcher *launcher, uint64_t offset_bytes, uint64_t bytes);

#endif
