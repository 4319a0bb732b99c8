/* What a model consists of: the struct behind tidepool/description.h, for the layout, the ops and the pool.
 *
 * Params of one state format form a class, and so do all frozen params; classes are numbered as their first
 * params were added. Offsets in a description do not depend on the size of chunks: a param's counts elements
 * from its class's first one, an activation's bytes from the ACTIVATION space's start.
 *
 * Only description.c writes it, and nobody after it is fixed. Owns all names and uses. Calls names and base's array.
 */
#ifndef TIDE_CHUNK_DESCRIPTION_H
#define TIDE_CHUNK_DESCRIPTION_H

#include "chunk/names.h"
#include "tidepool/description.h"

enum { TIDE_CLASSES_MAX = 8 };

#define TIDE_OP_NONE UINT32_MAX

typedef struct tide_described_class {
    tide_state_format format; /* no planes: frozen */
    uint64_t elements;        /* the end of its last param, from the class's start */
    uint32_t params;
} tide_described_class;

struct tide_description {
    tide_dtype dtype;
    uint64_t nonmodel_bytes;
    bool is_fixed;
    tide_names params, activations;
    uint64_t activation_bytes; /* the end of the last activation, from the space's start */
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

/* Has the description an op, and a param that is not frozen? */
bool tide_description_is_trainable(const tide_description *description);

#endif
