/* Open commands, and the changes that moves make to places when they are handed out and when they are done.
 *
 * Owns the table of open commands (moves and tasks alike), and counts those that are about to give slots
 * back. Calls places.
 */
#ifndef TIDE_CHUNK_MOVES_H
#define TIDE_CHUNK_MOVES_H

#include "chunk/command.h"
#include "chunk/places.h"

enum { TIDE_OPEN_COMMANDS_MAX = 256 };

typedef struct tide_moves {
    const tide_layout *layout;
    tide_places *places;
    tide_command open[TIDE_OPEN_COMMANDS_MAX]; /* in a free entry: the id of the next command there */
    uint32_t free[TIDE_OPEN_COMMANDS_MAX], free_count;
    uint32_t evictions_open;         /* open commands that will free a device slot */
    uint32_t promotions_open;        /* open commands that will free a host slot */
    tide_manager_counters *counters; /* the manager's, in which moves are counted here */
} tide_moves;

void tide_moves_init(tide_moves *moves, const tide_layout *layout, tide_places *places,
                     tide_manager_counters *counters);

static inline uint32_t tide_moves_open(const tide_moves *moves)
{
    return TIDE_OPEN_COMMANDS_MAX - moves->free_count;
}

/* Register a command and give it its id. The caller has made sure that the table has a free entry
 * (tide_moves_open). */
void tide_moves_issue(tide_moves *moves, tide_command *command);
/* The open command `id`; and the call that closes it, when everything else about it is done. */
const tide_command *tide_moves_find(const tide_moves *moves, uint32_t id);
void tide_moves_close(tide_moves *moves, uint32_t id);

/* --- moves --- */

/* Make a FETCH of a chunk: from its host copy, zeroed, or with whatever its slot holds. There is a slot for
 * the chunk. */
void tide_moves_fetch(tide_moves *moves, tide_chunk chunk, tide_reason reason, tide_command *command);
/* Make an EVICT of a chunk, with a copy or without; or a WRITE_BACK of a dirty one. For a copy there is a
 * free host slot. */
void tide_moves_out(tide_moves *moves, tide_command_kind kind, tide_chunk chunk, bool copy,
                    tide_reason reason, tide_command *command);
/* The executor has done a move, or it failed and changed nothing. */
void tide_moves_finish(tide_moves *moves, const tide_command *command, bool ok);

#endif
