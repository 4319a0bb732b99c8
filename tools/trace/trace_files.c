#include "tools/trace/trace_files.h"

#include "tools/command.h"
#include "tools/train/file_use.h"

int tide_trace_read_or_tell(const char *command, const char *path, tide_trace_model **model)
{
    tide_status status = tide_trace_model_read(path, model);
    if (status == TIDE_OK)
        return TIDE_EXIT_OK;
    (void)tide_command_failed(command, status); /* the file is at fault, not the command line */
    return TIDE_EXIT_FAILURE;
}

tide_status tide_trace_output_check(const char *command, const char *file, const char *out)
{
    const tide_file_use read = {"the trace", file, TIDE_FILE_TRACE}, write = {"-o", out, TIDE_FILE_PLAIN};
    return tide_file_uses_check(command, &read, 1, &write, 1);
}
