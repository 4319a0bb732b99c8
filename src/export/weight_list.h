/* A model's tensors, as a folder of Hugging Face weights has them. */
#ifndef TIDE_EXPORT_WEIGHT_LIST_H
#define TIDE_EXPORT_WEIGHT_LIST_H

#include "src/model/params.h"
#include "src/weights/reader.h"

typedef struct tide_weight_list {
    tide_weights_tensor *tensors; /* [count], in the model's order */
    tide_model_tensor *described; /* [count], whose names they have */
    size_t count;
} tide_weight_list;

/* NO_MEMORY. */
TIDE_NODISCARD tide_status tide_weight_list_make(const tide_model_config *config, tide_weight_list *list);
void tide_weight_list_free(tide_weight_list *list); /* may be zeroed */

/* Let the tensors have the names that they have in files where config->names_otherwise. */
void tide_weight_list_rename(const tide_model_config *config, tide_weight_list *list);

/* What a folder of the model's family must hold, and may. */
tide_weights_names tide_weight_list_names(const tide_model_config *config, const tide_weight_list *list);

#endif
