#include "stream_hash.h"

#include "chunk/manager.h"

static uint64_t hash = UINT64_C(14695981039346656037), count;

bool __real_tide_manager_next(tide_manager *manager, tide_command *command);
bool __wrap_tide_manager_next(tide_manager *manager, tide_command *command);

static void add(uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(1099511628211);
}

bool __wrap_tide_manager_next(tide_manager *manager, tide_command *command)
{
    if (!__real_tide_manager_next(manager, command))
        return false;
    const bool is_task = command->kind > TIDE_COMMAND_WRITE_BACK;
    add(command->kind);
    add(command->reason);
    add(command->chunk);
    add(is_task ? command->tier : command->device_slot);
    add(is_task ? command->piece : command->copy ? command->host_slot : UINT32_MAX);
    add((uint64_t)command->copy << 2 | (uint64_t)command->zero << 1 | command->in_place);
    for (uint32_t i = 0; i < command->task_count; i++) {
        add(command->task[i].chunk);
        add(command->task[i].slot);
        add(command->task[i].needs_zero);
    }
    count++;
    return true;
}

uint64_t stream_hash(uint64_t *commands)
{
    *commands = count;
    return hash;
}
