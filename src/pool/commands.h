/* The manager's commands that are not done yet (tide_open_command, running_tasks.h), and each one's life.
 *
 *   FETCH        map (outside the lock; not where the slot stands already), enqueue the copy on the in stream behind the
 *                marks of both slots: done
 *   WRITE_BACK   enqueue the copy on the out stream; open until it has been seen to end: done
 *   EVICT        enqueue the copy on the out stream; open until all uses of the slot, the copy included, have been seen;
 *                unmap (outside the lock): done. Where one call takes a slot from place to place, the place is left as it
 *                is, and done (tier_link.h)
 *   tasks        open until an entry is free and the slots' copies have been seen, then until the executor has finished (running_tasks.h);
 *                on the device done when enqueued
 *
 * Everything is enqueued on the engine's thread (asynchronous devices), so that what the engine has seen pass is what orders
 * it; the hazard checker knows threads apart.
 *
 * Owns the table of open commands; all [lock]. Tells the manager that a command is done, the records that updates have ended,
 * and the stalls what the caller waits for. Calls link, running_tasks, telemetry, order, monitor, and asks norm.
 */
#ifndef TIDE_POOL_COMMANDS_H
#define TIDE_POOL_COMMANDS_H

#include "src/pool/norm.h"
#include "src/pool/running_tasks.h"

enum { TIDE_COMMANDS_OPEN_MAX = 64 };

typedef struct tide_commands {
    tide_manager *manager;
    tide_monitor *monitor;
    tide_order *order;
    tide_telemetry *telemetry;
    tide_link *link;
    tide_running_tasks *running_tasks;
    const tide_norm *norm;
    tide_open_command open[TIDE_COMMANDS_OPEN_MAX];
    uint32_t count;
} tide_commands;

/* Carry out what the manager hands out; there is room for one more. */
void tide_commands_issue(tide_commands *commands, const tide_command *command);
/* See what has passed and go on with it. True if something moved. */
bool tide_commands_poll(tide_commands *commands);
/* Everything enqueued has ended: bring every command to its end too. INTERNAL if one has none. */
tide_status tide_commands_resolve(tide_commands *commands);

/* No update or restore of the last step is open or runs, on the device either. */
bool tide_commands_updates_ended(const tide_commands *commands);
/* Tell whoever counts on it, if so. */
void tide_commands_tell_updates(tide_commands *commands);
/* The caller may wait for something else now. Costs nothing while nobody is held up. */
void tide_commands_tell_stalls(tide_commands *commands);
bool tide_commands_is_valid(const tide_commands *commands);

#endif
