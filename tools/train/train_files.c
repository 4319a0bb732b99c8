#include "tools/train/train_files.h"

#include "src/checkpoint/folder.h"
#include "tools/train/file_use.h"

#include <string.h>

tide_status tide_train_files_check(const tide_train_settings *settings)
{
    char run[TIDE_CHECKPOINT_PATH_BYTES];
    const char *from = settings->resume_from;
    const bool resumes = from != NULL && from[0] != '\0' && strlen(from) < sizeof run;
    if (resumes)
        tide_folder_parent(from, run);
    const tide_file_use reads[] = {
        {"--data", settings->data, TIDE_FILE_DATA},
        {"--eval-data", settings->eval_data, TIDE_FILE_DATA},
        {"--model", tide_model_is_preset(settings->model) ? NULL : settings->model, TIDE_FILE_MODEL},
        {"--machine", settings->machine, TIDE_FILE_PLAIN},
        {"--checkpoint", settings->checkpoint, TIDE_FILE_RUN},
        {"--resume-from", resumes ? from : NULL, TIDE_FILE_WHOLE},
        {"--resume-from", resumes ? run : NULL, TIDE_FILE_RUN},
    };
    const tide_file_use writes[] = {
        {"--metrics", settings->metrics, TIDE_FILE_PLAIN},
        {"--trace", settings->trace, TIDE_FILE_TRACE},
        {"--checkpoint", settings->checkpoint, TIDE_FILE_PLAIN},
        {"--export", settings->export, TIDE_FILE_PLAIN},
    };
    return tide_file_uses_check("tidepool train", reads, sizeof reads / sizeof reads[0], writes,
                                sizeof writes / sizeof writes[0]);
}
