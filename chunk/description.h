/* The params, activations and ops of a model: the struct behind tidepool/description.h, for the layout, the
 * ops and the pool.
 *
 * All params with the same state format form a class, and all frozen params form one. Classes are numbered in
 * the order in which their first params were added. Offsets in a description do not depend on the chunk size:
 * a param's is in elements from the first element of its class, an activation's in bytes from the start of
 * the ACTIVATION space.
 *
 * Only description.c writes it; after a layout has fixed it, it does not change. Owns all names and uses.
 * Calls names and base's array.
 */
#ifndef TIDE_CHUNK_DESCRIPTION_H
#define TIDE_CHUNK_DESCRIPTION_H

#include "chunk/names.h"
#include "tidepool/description.h"

enum { TIDE_CLASSES_MAX = 8 };

#define TIDE_OP_NONE UINT32_MAX

typedef struct tide_described_class {
    tide_state_format format; /* no planes: frozen */
    uint64_t elements;        /* from the class's first element to the end of its last param */
    uint32_t params;
} tide_described_class;

struct tide_description {
    tide_dtype dtype;
    uint64_t nonmodel_bytes;
    bool is_fixed;
    tide_names params, activations;
    uint64_t activation_bytes; /* end of the last activation in the ACTIVATION space */
    tide_described_class classes[TIDE_CLASSES_MAX];
    uint32_t class_count;
    tide_op_description *ops;
    uint32_t op_count;
};

static inline const tide_state_format *tide_description_state(const tide_description *description,
                                                              tide_param param)
{
    return &description->classes[tide_names_at(&description->params, param)->of_class].format;
}

static inline bool tide_description_is_frozen(const tide_description *description, tide_param param)
{
    return tide_description_state(description, param)->planes == 0;
}

/* Has the description at least one op and one param? */
bool tide_description_is_complete(const tide_description *description);
/* Has it at least one param that is not frozen? */
bool tide_description_is_trainable(const tide_description *description);

#endif
