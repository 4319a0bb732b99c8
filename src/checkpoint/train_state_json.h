/* The training state as a JSON object. */
#ifndef TIDE_CHECKPOINT_TRAIN_STATE_JSON_H
#define TIDE_CHECKPOINT_TRAIN_STATE_JSON_H

#include "src/checkpoint/train_state.h"

struct json_t;

/* A new reference; NULL when there is no memory. The state must be valid. */
struct json_t *tide_train_state_to_json(const tide_train_state *state);

/* Fields of the right types and ranges; one that earlier checkpoints lack has its default where it is absent.
 * CORRUPT: a field is missing or malformed; UNSUPPORTED: one is not known; both name it. Then *state is
 * unchanged. */
TIDE_NODISCARD tide_status tide_train_state_from_json(const struct json_t *object, const char *where,
                                                      tide_train_state *state);

#endif
