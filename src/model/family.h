/* A family of decoder-only transformers, as data: which params it has, under which names, what its config.json says, and which
 * of the few kinds of norm, activation and positions its blocks are made of. The decoder (decoder.h) runs them all.
 *
 * A family that needs no new kernel is one file with such a struct, and a line in family.c.
 */
#ifndef TIDE_MODEL_FAMILY_H
#define TIDE_MODEL_FAMILY_H

#include "src/model/config.h"

/* A param's part in the decoder. */
typedef enum tide_role {
    TIDE_ROLE_TOKEN_EMBEDDING = 0,
    TIDE_ROLE_POSITION_EMBEDDING,
    TIDE_ROLE_NORM_1_WEIGHT, /* first of the per-layer roles */
    TIDE_ROLE_NORM_1_BIAS,
    TIDE_ROLE_QKV_WEIGHT, /* queries, keys and values in one product */
    TIDE_ROLE_QKV_BIAS,
    TIDE_ROLE_Q_NORM_WEIGHT,
    TIDE_ROLE_K_NORM_WEIGHT,
    TIDE_ROLE_ATTENTION_WEIGHT, /* attention's projection */
    TIDE_ROLE_ATTENTION_BIAS,
    TIDE_ROLE_NORM_2_WEIGHT,
    TIDE_ROLE_NORM_2_BIAS,
    TIDE_ROLE_FC_WEIGHT, /* into the MLP: with SwiGLU gate and up in one product */
    TIDE_ROLE_FC_BIAS,
    TIDE_ROLE_MLP_WEIGHT, /* out of it */
    TIDE_ROLE_MLP_BIAS,   /* last of the per-layer roles */
    TIDE_ROLE_NORM_F_WEIGHT,
    TIDE_ROLE_NORM_F_BIAS,
    TIDE_ROLE_HEAD, /* of models whose head is not the token embedding */
    TIDE_ROLES,
} tide_role;

/* A length that params and activations have. */
typedef enum tide_dimension {
    TIDE_DIMENSION_NONE = 0, /* the second of a vector: 1 */
    TIDE_DIMENSION_VOCABULARY,
    TIDE_DIMENSION_CONTEXT,
    TIDE_DIMENSION_WIDTH,
    TIDE_DIMENSION_QUERY, /* heads x head_width */
    TIDE_DIMENSION_KV,    /* kv_heads x head_width */
    TIDE_DIMENSION_QKV,   /* QUERY + 2 KV */
    TIDE_DIMENSION_HEAD,  /* head_width */
    TIDE_DIMENSION_MLP,
    TIDE_DIMENSION_FC, /* what goes into the activation: MLP, with SwiGLU twice */
} tide_dimension;

typedef enum tide_init_rule {
    TIDE_INIT_RULE_MATRIX = 0, /* normal(0.02) */
    TIDE_INIT_RULE_POSITION,   /* normal(0.01) */
    TIDE_INIT_RULE_RESIDUAL,   /* normal(0.02 / sqrt(2 layers)) */
    TIDE_INIT_RULE_BIAS,       /* zeros */
    TIDE_INIT_RULE_SCALE,      /* ones */
} tide_init_rule;

enum { TIDE_ROLE_TENSORS_MAX = 3 };

/* A param: one tensor of the files, or several whose rows stand one after another in it, so that one product makes them all. */
typedef struct tide_role_entry {
    tide_role role;
    struct {
        const char *name;    /* in files; within the layer for the per-layer roles */
        tide_dimension rows; /* NONE past the last tensor */
    } tensors[TIDE_ROLE_TENSORS_MAX];
    tide_dimension columns; /* NONE: a vector */
    tide_init_rule init;
    bool (*is_there)(const tide_model_config *config); /* NULL: always */
} tide_role_entry;

/* What a field of config.json is, and where it goes. */
typedef enum tide_field_kind {
    TIDE_FIELD_SIZE = 0,  /* uint32_t at `offset`, 1 to `most` */
    TIDE_FIELD_REAL,      /* double at `offset`, between 0 and 1 */
    TIDE_FIELD_FLAG,      /* bool at `offset` */
    TIDE_FIELD_TRUE,      /* only true is built */
    TIDE_FIELD_FALSE,     /* only false is built */
    TIDE_FIELD_NOT_FALSE, /* only true is built, which it is when absent; not written */
    TIDE_FIELD_WORD,      /* only `word` is built */
    TIDE_FIELD_NOTHING,   /* only null is built; not written */
    TIDE_FIELD_NO_COUNT,  /* the same, or 0 */
    TIDE_FIELD_WINDOW,    /* config_window.h's; written as what means no window */
    TIDE_FIELD_RATE, /* double at `offset`, 0 to 1: of dropout; written as 0, where absent it would be another */
    TIDE_FIELD_TOKEN, /* 1 + a token, uint32_t at `offset`; not written */
} tide_field_kind;

/* What of config.json says which layers' attention sees no more than a window of positions. */
typedef enum tide_window {
    TIDE_WINDOW_UNREAD = 0, /* nothing */
    TIDE_WINDOW_TYPES,      /* layer_types */
    TIDE_WINDOW_ALL,        /* sliding_window: in every layer */
    TIDE_WINDOW_UPPER, /* layer_types, else max_window_layers: from that layer on, if use_sliding_window */
} tide_window;

typedef struct tide_config_field {
    const char *key;
    const char *legacy_key; /* an older name of the same thing, or NULL; under both, the values must agree */
    tide_field_kind kind;
    /* else it may be absent, and `offset` keeps the family's own value, or null: a size is then what follows
     * from others */
    bool needed;
    size_t offset;
    uint32_t most;
    const char *word;
} tide_config_field;

struct tide_family {
    const char *name;         /* model_type */
    const char *architecture; /* architectures[0] */
    const char *layer_name;   /* before a layer's number: "h." of "h.11.attn.c_attn.weight" */
    /* of names in some files ("model." of models, of embedding models none), all but the head's */
    const char *optional_prefix;
    const char *const
        *ignored; /* patterns (fnmatch) of tensors that files may hold and nobody needs; NULL ends them */
    const char *head_name;            /* of the head: a tied one may be in files once more */
    const tide_model_config *presets; /* what has `family` NULL ends them */
    const tide_role_entry *roles;     /* in creation order: those before the layers, per layer, behind them */
    size_t role_count;
    const tide_config_field *fields; /* in the order in which they are read and written */
    size_t field_count;
    tide_model_config defaults; /* of fields that need not be there */
    tide_window window;
    bool rms_norm;       /* else layer norm */
    bool swiglu;         /* else GELU */
    bool rotary;         /* else a position embedding */
    bool head_norms;     /* queries and keys have norms of their own */
    uint32_t mlp_widths; /* the MLP is so many widths wide; 0: mlp_width is free */
    bool stored_in_out;  /* matrices are [in, out] (Conv1D), else [out, in] (Linear) */
    void (*complete)(tide_model_config *config); /* tide_model_config_complete; NULL: nothing to do */
};

extern const tide_family tide_family_gpt2;
extern const tide_family tide_family_llama;
extern const tide_family tide_family_mistral;
extern const tide_family tide_family_qwen2;
extern const tide_family tide_family_qwen3;

/* Every family there is; NULL past the last. */
const tide_family *tide_model_family_at(size_t index);

/* The field that goes to this place of a config, as people know it; NULL: none. */
const tide_config_field *tide_model_config_field(const tide_family *family, size_t offset);

/* The length that a dimension has in a model. */
uint64_t tide_model_dimension(const tide_model_config *config, tide_dimension dimension);

#endif
