#include "chunk/command.h"

const char *tide_command_kind_name(tide_command_kind kind)
{
    static const char *const names[] = {"fetch", "evict", "write_back", "update", "restore", "access"};
    return (unsigned)kind <= TIDE_COMMAND_ACCESS ? names[kind] : "unknown";
}
