/* The training state as a JSON object. */
#ifndef TIDE_CHECKPOINT_TRAIN_STATE_JSON_H
#define TIDE_CHECKPOINT_TRAIN_STATE_JSON_H

#include "src/checkpoint/train_state.h"

struct json_t;

/* The state as a new reference; NULL: no memory. The state must be valid. */
struct json_t *tide_train_state_to_json(const tide_train_state *state);

/* Read a state. Every field must have its type and range; one that earlier checkpoints lack gets its default
 * if it is missing. CORRUPT: a field is missing or malformed; UNSUPPORTED: a field is not known; the message
 * names it. On failure *state is unchanged. */
TIDE_NODISCARD tide_status tide_train_state_from_json(const struct json_t *object, const char *where,
                                                      tide_train_state *state);

#endif
