/* An import: reads a folder of Hugging Face weights into a model's params. */
#ifndef TIDE_TRAIN_WEIGHTS_IMPORT_H
#define TIDE_TRAIN_WEIGHTS_IMPORT_H

#include "src/model/decoder.h"

/* An open folder of weights, and the list of its model's tensors. */
typedef struct tide_weights_import tide_weights_import;

/* Open and check a folder of this model's weights. Statuses of tide_weights_open; MISMATCH also for a
 * duplicate with other values. */
TIDE_NODISCARD tide_status tide_weights_import_open(const tide_model_config *model, const char *folder,
                                                    tide_weights_import **import);
void tide_weights_import_close(tide_weights_import *import); /* NULL is allowed */

/* Do the folder's tensors have the family's other names (config.h: names_otherwise)? */
bool tide_weights_import_named_otherwise(const tide_weights_import *import);

/* Set the params of `model`, whose config is that of the import, to the folder's values; moments stay zero.
 * Calls `progress`, unless NULL, on the caller's thread. Sets *hash, unless NULL, to a hash of all values, as
 * they are in the folder. Statuses of tide_weights_read_raw and tide_decoder_values_set_as; NO_MEMORY. */
TIDE_NODISCARD tide_status tide_weights_import_run(const tide_weights_import *import, tide_decoder *model,
                                                   tide_progress_callback progress, void *progress_context,
                                                   uint64_t *hash);

#endif
