/* A model's tensors, as a folder of Hugging Face weights has them. */
#ifndef TIDE_EXPORT_WEIGHT_LIST_H
#define TIDE_EXPORT_WEIGHT_LIST_H

#include "src/model/params.h"
#include "src/weights/reader.h"

typedef struct tide_weight_list {
    tide_weights_tensor *tensors; /* [count], in the model's order */
    tide_model_tensor *described; /* [count]; has the text of the tensors' names */
    size_t count;
} tide_weight_list;

/* Make the list of a model's tensors. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_weight_list_make(const tide_model_config *config, tide_weight_list *list);
void tide_weight_list_free(tide_weight_list *list); /* a zeroed list may be freed, too */

/* Add the family's optional prefix to the names, or remove it from them. Call it if
 * config->names_otherwise. */
void tide_weight_list_rename(const tide_model_config *config, tide_weight_list *list);

/* The tensors that a folder of the model's weights must hold, and those that it may hold. */
tide_weights_names tide_weight_list_names(const tide_model_config *config, const tide_weight_list *list);

#endif
