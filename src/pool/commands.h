/* The open commands (the manager has handed them out and they are not done), and the life of each.
 *
 *   FETCH        the link maps the slot (outside the lock; not where the slot is already mapped) and
 *                enqueues the copy on the in stream, behind the marks of both slots: done
 *   WRITE_BACK   the link enqueues the copy on the out stream; open until the engine sees it end: done
 *   EVICT        the link enqueues the copy on the out stream; open until the engine has seen all uses of
 *                the slot end, the copy included; then the link unmaps the slot (outside the lock): done.
 *                Where the device can remap, the link leaves the slot mapped: done (tier_link.h)
 *   tasks        open until a running task is free and the engine has seen the slots' copies end, then
 *                until the host executor has finished (running_tasks.h); on the device done when enqueued
 *
 * On asynchronous devices the engine's thread enqueues all of it, so that a command is ordered behind all
 * work that this thread has seen end. The hazard checker looks at each thread separately.
 *
 * Owns the table of open commands; all [lock]. Tells the manager that a command is done, the counters that
 * updates have ended, and the stalls why the caller waits. Calls link, running_tasks, telemetry, order and
 * monitor, and asks norm.
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

/* Carry out a command of the manager. The table has a free entry. */
void tide_commands_issue(tide_commands *commands, const tide_command *command);
/* Look at every open command: where the work that it waits for has ended, start its next phase or end it.
 * True if any command went on. */
bool tide_commands_poll(tide_commands *commands);
/* End every open command, after the device has ended all enqueued work. INTERNAL if a command does not
 * end. */
tide_status tide_commands_resolve(tide_commands *commands);

/* Have all updates and restores of the last step ended, on the device, too? */
bool tide_commands_updates_ended(const tide_commands *commands);
/* Tell the counters if the updates have ended. */
void tide_commands_tell_updates(tide_commands *commands);
/* Tell the stalls the present reason of the caller's wait, which may have changed. Costs nothing while he
 * does not wait. */
void tide_commands_tell_stalls(tide_commands *commands);
bool tide_commands_is_valid(const tide_commands *commands);

#endif
