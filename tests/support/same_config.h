/* Initializers of positions, and assertions that two configs describe the same model, in all fields but the
 * name. */
#ifndef TIDE_TESTS_SAME_CONFIG_H
#define TIDE_TESTS_SAME_CONFIG_H

#include "src/model/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Initialize a tide_rope of this kind with the factors that most models have. */
#define LLAMA3(...)                                                                                          \
    {                                                                                                        \
        .kind = TIDE_ROPE_LLAMA3, .low_factor = 1, .high_factor = 4, __VA_ARGS__                             \
    }
#define YARN(...)                                                                                            \
    {                                                                                                        \
        .kind = TIDE_ROPE_YARN, .beta_fast = 32, .beta_slow = 1, __VA_ARGS__                                 \
    }

#define ASSERT_SAME_FIELD(field)                                                                             \
    do {                                                                                                     \
        if (memcmp(&one->field, &other->field, sizeof one->field) != 0)                                      \
            fail_msg("%s: another " #field, what);                                                           \
    } while (0)

static inline void assert_same_rope(const tide_rope *one, const tide_rope *other, const char *what)
{
    ASSERT_SAME_FIELD(theta);
    ASSERT_SAME_FIELD(kind);
    ASSERT_SAME_FIELD(factor);
    ASSERT_SAME_FIELD(low_factor);
    ASSERT_SAME_FIELD(high_factor);
    ASSERT_SAME_FIELD(original_context);
    ASSERT_SAME_FIELD(attention_factor);
    ASSERT_SAME_FIELD(beta_fast);
    ASSERT_SAME_FIELD(beta_slow);
    ASSERT_SAME_FIELD(exact);
}

static inline void assert_same_config(const tide_model_config *one, const tide_model_config *other,
                                      const char *what)
{
    ASSERT_SAME_FIELD(family);
    ASSERT_SAME_FIELD(layers);
    ASSERT_SAME_FIELD(width);
    ASSERT_SAME_FIELD(heads);
    ASSERT_SAME_FIELD(kv_heads);
    ASSERT_SAME_FIELD(head_width);
    ASSERT_SAME_FIELD(mlp_width);
    ASSERT_SAME_FIELD(context);
    ASSERT_SAME_FIELD(vocab_size);
    ASSERT_SAME_FIELD(norm_epsilon);
    ASSERT_SAME_FIELD(tied);
    ASSERT_SAME_FIELD(attention_bias);
    ASSERT_SAME_FIELD(output_bias);
    ASSERT_SAME_FIELD(mlp_bias);
    assert_same_rope(&one->rope, &other->rope, what);
    ASSERT_SAME_FIELD(padding_row);
    ASSERT_SAME_FIELD(names_otherwise);
}

#endif
