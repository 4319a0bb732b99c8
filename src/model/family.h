/* A family of decoder-only transformers, as data: its params and their names in files, the fields of its
 * config.json, and which of the few kinds of norm, activation function and positions its blocks use. The
 * decoder (decoder.h) runs every family from this data.
 *
 * docs/code.md lists the places of a new family, and of another activation function.
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
    TIDE_ROLE_QKV_WEIGHT, /* makes queries, keys and values in one matmul */
    TIDE_ROLE_QKV_BIAS,
    TIDE_ROLE_Q_NORM_WEIGHT,
    TIDE_ROLE_K_NORM_WEIGHT,
    TIDE_ROLE_ATTENTION_WEIGHT, /* the projection of attention's output */
    TIDE_ROLE_ATTENTION_BIAS,
    TIDE_ROLE_NORM_2_WEIGHT,
    TIDE_ROLE_NORM_2_BIAS,
    TIDE_ROLE_FC_WEIGHT, /* the MLP's first layer; with SwiGLU gate and up in one matmul */
    TIDE_ROLE_FC_BIAS,
    TIDE_ROLE_MLP_WEIGHT, /* the MLP's last layer */
    TIDE_ROLE_MLP_BIAS,   /* last of the per-layer roles */
    TIDE_ROLE_NORM_F_WEIGHT,
    TIDE_ROLE_NORM_F_BIAS,
    TIDE_ROLE_HEAD, /* only in models whose head is not the token embedding */
    TIDE_ROLES,
} tide_role;

/* The activation function of the MLP. A gated one takes a gate and a value for each of its results. */
typedef enum tide_mlp {
    TIDE_MLP_GELU = 0,
    TIDE_MLP_SWIGLU, /* gated */
} tide_mlp;

static inline bool tide_mlp_is_gated(tide_mlp mlp)
{
    return mlp == TIDE_MLP_SWIGLU;
}

/* The length of one dimension of a param or an activation. */
typedef enum tide_dimension {
    TIDE_DIMENSION_NONE = 0, /* 1: a vector's second dimension */
    TIDE_DIMENSION_VOCABULARY,
    TIDE_DIMENSION_CONTEXT,
    TIDE_DIMENSION_WIDTH,
    TIDE_DIMENSION_QUERY, /* heads x head_width */
    TIDE_DIMENSION_KV,    /* kv_heads x head_width */
    TIDE_DIMENSION_QKV,   /* QUERY + 2 KV */
    TIDE_DIMENSION_HEAD,  /* head_width */
    TIDE_DIMENSION_MLP,
    TIDE_DIMENSION_FC, /* inputs of the activation function: MLP, or 2 MLP if it is gated */
} tide_dimension;

typedef enum tide_init_rule {
    TIDE_INIT_RULE_MATRIX = 0, /* normal(0.02) */
    TIDE_INIT_RULE_POSITION,   /* normal(0.01) */
    TIDE_INIT_RULE_RESIDUAL,   /* normal(0.02 / sqrt(2 layers)) */
    TIDE_INIT_RULE_BIAS,       /* zeros */
    TIDE_INIT_RULE_SCALE,      /* ones */
} tide_init_rule;

enum { TIDE_ROLE_TENSORS_MAX = 3 };

/* A param: one tensor of the files, or several tensors that are stored in it row after row, so that one
 * matmul uses them all. */
typedef struct tide_role_entry {
    tide_role role;
    struct {
        const char *name;    /* in files; of a per-layer role without the layer's prefix */
        tide_dimension rows; /* NONE past the last tensor */
    } tensors[TIDE_ROLE_TENSORS_MAX];
    tide_dimension columns; /* NONE: a vector */
    tide_init_rule init;
    bool (*is_there)(const tide_model_config *config); /* does the model have this param? NULL: always */
} tide_role_entry;

/* The kind of value that a field of config.json has, and where the reader stores it. A field that is not
 * `needed` may be absent or null. */
typedef enum tide_field_kind {
    TIDE_FIELD_SIZE = 0,  /* uint32_t at `offset`, 1 to `most` */
    TIDE_FIELD_REAL,      /* double at `offset`, between 0 and 1 */
    TIDE_FIELD_FLAG,      /* bool at `offset` */
    TIDE_FIELD_TRUE,      /* must be true */
    TIDE_FIELD_FALSE,     /* must be false */
    TIDE_FIELD_NOT_FALSE, /* must be true; not written */
    TIDE_FIELD_WORD,      /* must be the string `word` */
    TIDE_FIELD_NOTHING,   /* must be null; not written */
    TIDE_FIELD_NO_COUNT,  /* must be null or 0; not written */
    TIDE_FIELD_WINDOW,    /* config_window.h reads it; written with the value that means no window */
    /* a dropout rate: double at `offset`, 0 to 1; written as 0, but only if the family's default is not 0 */
    TIDE_FIELD_RATE,
    TIDE_FIELD_TOKEN, /* stored as 1 + the token, uint32_t at `offset`; not written */
} tide_field_kind;

/* The fields of config.json that limit the attention of some layers to a window of positions. */
typedef enum tide_window {
    TIDE_WINDOW_UNREAD = 0, /* no field: layers never have a window */
    TIDE_WINDOW_TYPES,      /* layer_types, which must not ask for a window */
    TIDE_WINDOW_ALL,        /* sliding_window, which limits every layer */
    /* with use_sliding_window: the layers that layer_types lists, or else those from max_window_layers on */
    TIDE_WINDOW_UPPER,
} tide_window;

typedef struct tide_config_field {
    const char *key;
    /* an older name of the field, or NULL; if both are there, their values must be equal */
    const char *legacy_key;
    tide_field_kind kind;
    /* false: the field may be absent, and `offset` then keeps the family's default; it may also be null,
     * and other fields then decide a size */
    bool needed;
    size_t offset;
    uint32_t most;
    const char *word;
} tide_config_field;

struct tide_family {
    const char *name;         /* model_type */
    const char *architecture; /* architectures[0] */
    const char *layer_name;   /* stands before a layer's number: "h." of "h.11.attn.c_attn.weight" */
    /* a prefix that the names have in some files and lack in others, such as "model."; the head's name never
     * has it */
    const char *optional_prefix;
    /* patterns (fnmatch) of tensors that files may hold and the model does not need; NULL ends them */
    const char *const *ignored;
    /* the head's name; files of a tied model may hold the token embedding once more under this name */
    const char *head_name;
    const tide_model_config *presets; /* an entry with `family` NULL ends them */
    /* in creation order: params before the layers, of each layer, after them */
    const tide_role_entry *roles;
    size_t role_count;
    const tide_config_field *fields; /* in the order in which they are read and written */
    size_t field_count;
    tide_model_config defaults; /* values of fields that a config.json may lack */
    tide_window window;
    bool rms_norm; /* else layer norm */
    tide_mlp mlp;
    bool rotary;         /* else a position embedding */
    bool head_norms;     /* queries and keys have norms of their own */
    uint32_t mlp_widths; /* mlp_width must be so many times width; 0: any mlp_width */
    bool stored_in_out;  /* matrices are [in, out] (Conv1D), else [out, in] (Linear) */
    /* the family's part of tide_model_config_complete; NULL: none */
    void (*complete)(tide_model_config *config);
};

extern const tide_family tide_family_gpt2;
extern const tide_family tide_family_llama;
extern const tide_family tide_family_mistral;
extern const tide_family tide_family_qwen2;
extern const tide_family tide_family_qwen3;

/* The index-th family; NULL past the last. */
const tide_family *tide_model_family_at(size_t index);

/* The field of kind SIZE whose value is stored at this offset of a config; NULL: there is none. */
const tide_config_field *tide_model_config_field(const tide_family *family, size_t offset);

/* The length that a dimension has in a model. */
uint64_t tide_model_dimension(const tide_model_config *config, tide_dimension dimension);

#endif
