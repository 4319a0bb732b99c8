/* The table of open commands. Makes moves, and changes the places of their chunks when a move is issued and
 * when it is done.
 *
 * Owns the table (of moves and tasks), and counts the open commands that will free slots. Calls places.
 */
#ifndef TIDE_CHUNK_MOVES_H
#define TIDE_CHUNK_MOVES_H

#include "chunk/command.h"
#include "chunk/places.h"

enum { TIDE_OPEN_COMMANDS_MAX = 256 };

typedef struct tide_moves {
    const tide_layout *layout;
    tide_places *places;
    /* a free entry keeps the id of the next command that will use it */
    tide_command open[TIDE_OPEN_COMMANDS_MAX];
    uint32_t free[TIDE_OPEN_COMMANDS_MAX], free_count;
    uint32_t evictions_open;         /* open commands that will free a device slot */
    uint32_t promotions_open;        /* open commands that will free a host slot */
    tide_manager_counters *counters; /* the manager's, in which moves are counted */
} tide_moves;

void tide_moves_init(tide_moves *moves, const tide_layout *layout, tide_places *places,
                     tide_manager_counters *counters);

static inline uint32_t tide_moves_open(const tide_moves *moves)
{
    return TIDE_OPEN_COMMANDS_MAX - moves->free_count;
}

/* Put a command into the table and set its id. The table must have a free entry (tide_moves_open). */
void tide_moves_issue(tide_moves *moves, tide_command *command);
/* Find the open command `id`; close it, as the last action when it has ended. */
const tide_command *tide_moves_find(const tide_moves *moves, uint32_t id);
void tide_moves_close(tide_moves *moves, uint32_t id);

/* --- moves --- */

/* Make a FETCH of a chunk into its own device slot or a free one: from its host copy or, if it has no
 * content, zeroed (an ACTIVATION chunk is not zeroed). The chunk must have a slot, or one must be free. */
void tide_moves_fetch(tide_moves *moves, tide_chunk chunk, tide_reason reason, tide_command *command);
/* Make an EVICT of a chunk, with a copy or without, or a WRITE_BACK of a dirty chunk. With a copy, a host
 * slot must be free. */
void tide_moves_out(tide_moves *moves, tide_command_kind kind, tide_chunk chunk, bool copy,
                    tide_reason reason, tide_command *command);
/* Call when a move is done (`ok`), or has failed and changed nothing. */
void tide_moves_finish(tide_moves *moves, const tide_command *command, bool ok);

#endif
