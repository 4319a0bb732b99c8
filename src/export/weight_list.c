#include "src/export/weight_list.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

tide_status tide_weight_list_make(const tide_model_config *config, tide_weight_list *list)
{
    const size_t count = tide_model_tensor_count(config);
    *list = (tide_weight_list){.tensors = calloc(count, sizeof *list->tensors),
                               .described = calloc(count, sizeof *list->described),
                               .count = count};
    if (!list->tensors || !list->described) {
        tide_weight_list_free(list);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the names of %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        tide_model_tensor *tensor = &list->described[i];
        tide_model_tensor_describe(config, i, tensor);
        list->tensors[i] = (tide_weights_tensor){.name = tensor->name, .rank = tensor->rank};
        memcpy(list->tensors[i].shape, tensor->shape, sizeof tensor->shape);
    }
    return TIDE_OK;
}

void tide_weight_list_free(tide_weight_list *list)
{
    free(list->tensors);
    free(list->described);
    *list = (tide_weight_list){.count = 0};
}

/* Removes the prefix from the names if the first tensor's name has it, and else adds it to all. */
void tide_weight_list_rename(const tide_model_config *config, tide_weight_list *list)
{
    const char *prefix = config->family->optional_prefix;
    const size_t length = strlen(prefix);
    const bool strip = strncmp(list->tensors[0].name, prefix, length) == 0;
    for (size_t i = 0; i < list->count; i++) {
        char *name = list->described[i].name;
        const size_t bytes = strlen(name) + 1;
        if (strip && strncmp(name, prefix, length) == 0) {
            memmove(name, name + length, bytes - length);
        } else if (!strip) {
            assert(length + bytes <= sizeof list->described[i].name);
            memmove(name + length, name, bytes);
            memcpy(name, prefix, length);
        }
    }
}

/* The list has one duplicate, a tied head: files may hold it besides the token embedding or instead of it,
 * with the same values. */
tide_weights_names tide_weight_list_names(const tide_model_config *config, const tide_weight_list *list)
{
    const tide_family *family = config->family;
    size_t ignored = 0;
    while (family->ignored[ignored])
        ignored++;
    assert(tide_model_param_index(config, TIDE_ROLE_TOKEN_EMBEDDING, 0) ==
           0); /* it is the first tensor, in every family */
    return (tide_weights_names){.tensors = list->tensors,
                                .count = list->count,
                                .optional_prefix = family->optional_prefix,
                                .ignored = family->ignored,
                                .ignored_count = ignored,
                                .duplicate = config->tied ? family->head_name : NULL,
                                .duplicate_of = 0};
}
