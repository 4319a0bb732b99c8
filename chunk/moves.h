/* Open commands, and what moves do to places when they are handed out and when they are done.
 *
 * Owns the table of open commands (moves and tasks alike) and what of it is about to give slots back. Calls places.
 */
#ifndef TIDE_CHUNK_MOVES_H
#define TIDE_CHUNK_MOVES_H

#include "chunk/command.h"
#include "chunk/places.h"

enum { TIDE_OPEN_COMMANDS_MAX = 256 };

typedef struct tide_moves {
    const tide_layout *layout;
    tide_places *places;
    tide_command open[TIDE_OPEN_COMMANDS_MAX]; /* of one that is not: the id of the next there */
    uint32_t free[TIDE_OPEN_COMMANDS_MAX], free_count;
    uint32_t evictions_open;         /* device slots about to be free */
    uint32_t promotions_open;        /* host slots about to be free */
    tide_manager_counters *counters; /* its moves */
} tide_moves;

void tide_moves_init(tide_moves *moves, const tide_layout *layout, tide_places *places,
                     tide_manager_counters *counters);

static inline uint32_t tide_moves_open(const tide_moves *moves)
{
    return TIDE_OPEN_COMMANDS_MAX - moves->free_count;
}

/* Register a command and give it its id. There is room: tide_moves_open. */
void tide_moves_issue(tide_moves *moves, tide_command *command);
/* The open command `id`. Close it when all is done about it. */
const tide_command *tide_moves_find(const tide_moves *moves, uint32_t id);
void tide_moves_close(tide_moves *moves, uint32_t id);

/* --- moves --- */

/* Let a chunk in: FETCH from its host copy, or zeroed, or as it comes. There is a slot for it. */
void tide_moves_fetch(tide_moves *moves, tide_chunk chunk, tide_reason reason, tide_command *command);
/* Let it out (EVICT), with a copy or without; or only copy a dirty one out (WRITE_BACK). For a copy there is a free host slot. */
void tide_moves_out(tide_moves *moves, tide_command_kind kind, tide_chunk chunk, bool copy,
                    tide_reason reason, tide_command *command);
/* A move is done, or failed and changed nothing. */
void tide_moves_finish(tide_moves *moves, const tide_command *command, bool ok);

#endif
