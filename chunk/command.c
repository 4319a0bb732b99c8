#include "chunk/command.h"

const char *tide_command_kind_name(tide_command_kind kind)
{
    static const char *const names[] = {"fetch",   "evict",  "write_back", "update",
                                        "restore", "access", "collective"};
    return (unsigned)kind <= TIDE_COMMAND_COLLECTIVE ? names[kind] : "unknown";
}
