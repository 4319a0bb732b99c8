/* The simulated disk: nodes in one array, a node being a file or a folder.
 *
 *     folder   names now;   names at the last sync;   changes since (name added, name removed, renamed)
 *     file     bytes now;   how many of them the last sync covered (files are only appended to)
 *
 * A power cut builds a new disk: per folder the synced names with a random subset of the changes applied in
 * order, per file the synced bytes and a random fate for the rest. Nodes are never reused, so a removed file
 * whose removal is lost is found again.
 */
#include "tests/sim_files.h"

#include "src/data/random.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NODES_MAX = 256,
    NAMES_MAX = 16,
    CHANGES_MAX = 64,
    HANDLES_MAX = 16,
    NAME_BYTES = 64,
    ROOT = 0,
    NOBODY = -1
};

typedef struct sim_name {
    char name[NAME_BYTES];
    int node;
} sim_name;

typedef struct sim_names {
    sim_name items[NAMES_MAX];
    int count;
} sim_names;

typedef enum change_kind { ADDED, REMOVED, RENAMED } change_kind;

typedef struct sim_change {
    change_kind kind;
    char name[NAME_BYTES];
    char new_name[NAME_BYTES]; /* RENAMED */
    int node;
} sim_change;

typedef struct sim_folder {
    sim_names now, synced;
    sim_change changes[CHANGES_MAX];
    int change_count;
} sim_folder;

typedef struct sim_node {
    sim_folder *folder; /* NULL for a file */
    unsigned char *bytes;
    size_t byte_count, capacity, synced_bytes;
} sim_node;

typedef struct sim_handle {
    bool open, writing, locked;
    int node;
} sim_handle;

struct sim_files {
    tide_files table;
    sim_node nodes[NODES_MAX];
    int node_count;
    sim_handle handles[HANDLES_MAX];
    uint64_t process_id;
    unsigned operations, syncs;
    unsigned stop_at, ignored_sync, fault_at;
    sim_fault fault;
    bool fault_armed, fault_met;
};

/* ---- nodes and names ---- */

/* The simulation's own memory, zeroed. Not by malloc, which a test may make fail for the code under test. */
static void *own_memory(size_t bytes)
{
    void *memory = aligned_alloc(16, (bytes + 15) / 16 * 16);
    if (memory == NULL)
        abort();
    return memset(memory, 0, bytes);
}

static int node_new(sim_files *sim, bool is_folder)
{
    assert(sim->node_count < NODES_MAX);
    sim_node *node = &sim->nodes[sim->node_count];
    memset(node, 0, sizeof *node);
    if (is_folder)
        node->folder = own_memory(sizeof *node->folder);
    return sim->node_count++;
}

static int names_find(const sim_names *names, const char *name)
{
    for (int i = 0; i < names->count; i++) {
        if (strcmp(names->items[i].name, name) == 0)
            return i;
    }
    return NOBODY;
}

static void names_remove(sim_names *names, const char *name)
{
    int at = names_find(names, name);
    if (at != NOBODY)
        names->items[at] = names->items[--names->count];
}

static void names_set(sim_names *names, const char *name, int node)
{
    names_remove(names, name);
    assert(names->count < NAMES_MAX);
    sim_name *item = &names->items[names->count++];
    snprintf(item->name, sizeof item->name, "%s", name);
    item->node = node;
}

static void change_apply(const sim_change *change, sim_names *names)
{
    if (change->kind != ADDED)
        names_remove(names, change->name);
    if (change->kind == ADDED)
        names_set(names, change->name, change->node);
    if (change->kind == RENAMED)
        names_set(names, change->new_name, change->node);
}

static void folder_change(sim_folder *folder, change_kind kind, const char *name, const char *new_name,
                          int node)
{
    assert(folder->change_count < CHANGES_MAX);
    sim_change *change = &folder->changes[folder->change_count++];
    *change = (sim_change){.kind = kind, .node = node};
    snprintf(change->name, sizeof change->name, "%s", name);
    snprintf(change->new_name, sizeof change->new_name, "%s", new_name);
    change_apply(change, &folder->now);
}

/* Walk to the folder that holds the path's last part; 0 or ENOENT. */
static int walk(const sim_files *sim, const char *path, int *folder_node, char name[NAME_BYTES])
{
    int at = ROOT;
    while (*path == '/')
        path++;
    for (;;) {
        size_t length = strcspn(path, "/");
        if (length >= NAME_BYTES)
            return ENAMETOOLONG;
        memcpy(name, path, length);
        name[length] = '\0';
        path += length;
        if (*path == '\0') {
            *folder_node = at;
            return 0;
        }
        path++;
        int found = names_find(&sim->nodes[at].folder->now, name);
        if (found == NOBODY)
            return ENOENT;
        at = sim->nodes[at].folder->now.items[found].node;
        if (sim->nodes[at].folder == NULL)
            return ENOTDIR;
    }
}

static int lookup(const sim_files *sim, const char *path, int *node)
{
    int folder;
    char name[NAME_BYTES];
    int error = walk(sim, path, &folder, name);
    if (error != 0)
        return error;
    if (name[0] == '\0' || strcmp(name, ".") == 0) {
        *node = folder;
        return 0;
    }
    const sim_names *names = &sim->nodes[folder].folder->now;
    int found = names_find(names, name);
    if (found == NOBODY)
        return ENOENT;
    *node = names->items[found].node;
    return 0;
}

/* ---- operations ---- */

/* Every operation begins here: count it, and see whether it may happen. */
static int begin(sim_files *sim)
{
    unsigned operation = sim->operations++;
    if (operation >= sim->stop_at)
        return EIO;
    if (!sim->fault_armed || operation < sim->fault_at)
        return 0;
    bool first = !sim->fault_met;
    sim->fault_met = true;
    return sim->fault == SIM_FAULT_EIO && first ? EIO : 0;
}

static bool disk_is_full(const sim_files *sim)
{
    return sim->fault_met && sim->fault == SIM_FAULT_NO_SPACE;
}

static size_t transfer_limit(const sim_files *sim, size_t bytes)
{
    size_t limit = 1 + sim->operations % 7;
    bool is_short = sim->fault_met && sim->fault == SIM_FAULT_SHORT_WRITE;
    return is_short && bytes > limit ? limit : bytes;
}

static int handle_new(sim_files *sim, int node, bool writing, int *handle)
{
    int free_handle = 0;
    while (sim->handles[free_handle].open)
        free_handle++;
    assert(free_handle < HANDLES_MAX);
    sim->handles[free_handle] = (sim_handle){.open = true, .writing = writing, .node = node};
    *handle = free_handle;
    return 0;
}

static sim_node *handle_node(sim_files *sim, int handle)
{
    assert(handle >= 0 && handle < HANDLES_MAX && sim->handles[handle].open);
    return &sim->nodes[sim->handles[handle].node];
}

static int sim_open(void *context, const char *path, int *handle)
{
    sim_files *sim = context;
    int node;
    int error = begin(sim);
    if (error == 0)
        error = lookup(sim, path, &node);
    if (error == 0 && sim->nodes[node].folder != NULL)
        error = EISDIR;
    return error != 0 ? error : handle_new(sim, node, false, handle);
}

static int add_name(sim_files *sim, const char *path, bool is_folder, int *node)
{
    int folder;
    char name[NAME_BYTES];
    int error = begin(sim);
    if (error == 0 && disk_is_full(sim))
        error = ENOSPC;
    if (error == 0)
        error = walk(sim, path, &folder, name);
    if (error == 0 && names_find(&sim->nodes[folder].folder->now, name) != NOBODY)
        error = EEXIST;
    if (error != 0)
        return error;
    *node = node_new(sim, is_folder);
    folder_change(sim->nodes[folder].folder, ADDED, name, "", *node);
    return 0;
}

static int sim_create(void *context, const char *path, int *handle)
{
    int node;
    int error = add_name(context, path, false, &node);
    return error != 0 ? error : handle_new(context, node, true, handle);
}

static int sim_make_folder(void *context, const char *path)
{
    int node;
    return add_name(context, path, true, &node);
}

static int sim_read(void *context, int handle, uint64_t offset, void *buffer, size_t bytes, size_t *done)
{
    sim_files *sim = context;
    const sim_node *node = handle_node(sim, handle);
    int error = begin(sim);
    if (error != 0)
        return error;
    size_t left = offset < node->byte_count ? node->byte_count - (size_t)offset : 0;
    *done = transfer_limit(sim, bytes < left ? bytes : left);
    if (*done > 0)
        memcpy(buffer, node->bytes + offset, *done);
    return 0;
}

static void node_append(sim_node *node, const void *bytes, size_t count)
{
    if (node->byte_count + count > node->capacity) {
        node->capacity = 2 * (node->byte_count + count);
        unsigned char *grown = own_memory(node->capacity);
        if (node->byte_count > 0)
            memcpy(grown, node->bytes, node->byte_count);
        free(node->bytes);
        node->bytes = grown;
    }
    memcpy(node->bytes + node->byte_count, bytes, count);
    node->byte_count += count;
}

static int sim_write(void *context, int handle, const void *buffer, size_t bytes, size_t *done)
{
    sim_files *sim = context;
    sim_node *node = handle_node(sim, handle);
    assert(sim->handles[handle].writing);
    bool was_full = disk_is_full(sim);
    int error = begin(sim);
    if (error != 0)
        return error;
    if (was_full || (disk_is_full(sim) && bytes < 2))
        return ENOSPC;
    *done = disk_is_full(sim) ? bytes / 2 : transfer_limit(sim, bytes);
    node_append(node, buffer, *done);
    return 0;
}

static int sim_size(void *context, int handle, uint64_t *bytes)
{
    const sim_node *node = handle_node(context, handle);
    int error = begin(context);
    if (error == 0)
        *bytes = node->byte_count;
    return error;
}

/* Count a sync; whether it is to be done. */
static bool sync_counts(sim_files *sim)
{
    return sim->syncs++ != sim->ignored_sync;
}

static int sim_sync(void *context, int handle)
{
    sim_files *sim = context;
    sim_node *node = handle_node(sim, handle);
    int error = begin(sim);
    if (error == 0 && sync_counts(sim))
        node->synced_bytes = node->byte_count;
    return error;
}

static int sim_close(void *context, int handle)
{
    sim_files *sim = context;
    handle_node(sim, handle);
    sim->handles[handle].open = false;
    return begin(sim);
}

static bool is_locked(const sim_files *sim, int node)
{
    for (int i = 0; i < HANDLES_MAX; i++)
        if (sim->handles[i].open && sim->handles[i].locked && sim->handles[i].node == node)
            return true;
    return false;
}

static int sim_lock(void *context, const char *path, bool create, int *handle)
{
    sim_files *sim = context;
    int node;
    int error = create ? add_name(sim, path, false, &node) : begin(sim);
    if (error == 0 && !create)
        error = lookup(sim, path, &node);
    if (error == 0 && is_locked(sim, node))
        error = EWOULDBLOCK;
    if (error != 0)
        return error;
    handle_new(sim, node, false, handle);
    sim->handles[*handle].locked = true;
    return 0;
}

static int sim_sync_folder(void *context, const char *path)
{
    sim_files *sim = context;
    int node;
    int error = begin(sim);
    if (error == 0)
        error = lookup(sim, path, &node);
    if (error == 0 && sim->nodes[node].folder == NULL)
        error = ENOTDIR;
    if (error == 0 && sync_counts(sim)) {
        sim_folder *folder = sim->nodes[node].folder;
        folder->synced = folder->now;
        folder->change_count = 0;
    }
    return error;
}

static int sim_rename(void *context, const char *from, const char *to)
{
    sim_files *sim = context;
    int node, folder, to_folder, to_node;
    char name[NAME_BYTES], to_name[NAME_BYTES];
    int error = begin(sim);
    if (error == 0)
        error = lookup(sim, from, &node);
    if (error != 0)
        return error;
    if (walk(sim, from, &folder, name) != 0 || walk(sim, to, &to_folder, to_name) != 0)
        return ENOENT;
    assert(folder == to_folder); /* all that a checkpoint needs */
    if (lookup(sim, to, &to_node) == 0 && sim->nodes[to_node].folder != NULL &&
        sim->nodes[to_node].folder->now.count > 0)
        return ENOTEMPTY;
    folder_change(sim->nodes[folder].folder, RENAMED, name, to_name, node);
    return 0;
}

static int remove_name(sim_files *sim, const char *path, bool is_folder)
{
    int node, folder;
    char name[NAME_BYTES];
    int error = begin(sim);
    if (error == 0)
        error = lookup(sim, path, &node);
    if (error != 0)
        return error;
    const sim_folder *removed = sim->nodes[node].folder;
    if ((removed != NULL) != is_folder)
        return is_folder ? ENOTDIR : EISDIR;
    if (is_folder && removed->now.count > 0)
        return ENOTEMPTY;
    error = walk(sim, path, &folder, name);
    if (error == 0)
        folder_change(sim->nodes[folder].folder, REMOVED, name, "", node);
    return error;
}

static int sim_remove_file(void *context, const char *path)
{
    return remove_name(context, path, false);
}

static int sim_remove_folder(void *context, const char *path)
{
    return remove_name(context, path, true);
}

static int sim_list(void *context, const char *path, tide_files_visit visit, void *visitor)
{
    sim_files *sim = context;
    int node;
    int error = begin(sim);
    if (error == 0)
        error = lookup(sim, path, &node);
    if (error == 0 && sim->nodes[node].folder == NULL)
        error = ENOTDIR;
    if (error != 0)
        return error;
    sim_names names = sim->nodes[node].folder->now; /* a copy: the visitor may change the folder */
    for (int i = 0; i < names.count && error == 0; i++)
        error = visit(visitor, names.items[i].name);
    return error;
}

static int sim_free_space(void *context, const char *path, uint64_t *bytes)
{
    (void)context, (void)path;
    *bytes = UINT64_MAX;
    return 0;
}

static uint64_t sim_process_id(void *context)
{
    return ((sim_files *)context)->process_id;
}

static bool sim_process_is_alive(void *context, uint64_t process_id)
{
    return process_id >= ((sim_files *)context)->process_id;
}

/* ---- life ---- */

static sim_files *sim_bare(void)
{
    sim_files *sim = own_memory(sizeof *sim);
    sim->table = (tide_files){.context = sim,
                              .open = sim_open,
                              .create = sim_create,
                              .read = sim_read,
                              .write = sim_write,
                              .size = sim_size,
                              .sync = sim_sync,
                              .close = sim_close,
                              .lock = sim_lock,
                              .sync_folder = sim_sync_folder,
                              .rename = sim_rename,
                              .make_folder = sim_make_folder,
                              .remove_file = sim_remove_file,
                              .remove_folder = sim_remove_folder,
                              .list = sim_list,
                              .free_space = sim_free_space,
                              .process_id = sim_process_id,
                              .process_is_alive = sim_process_is_alive};
    sim->process_id = 1000;
    sim->stop_at = sim->ignored_sync = UINT32_MAX;
    return sim;
}

sim_files *sim_files_new(void)
{
    sim_files *sim = sim_bare();
    node_new(sim, true);
    return sim;
}

void sim_files_free(sim_files *sim)
{
    for (int i = 0; i < sim->node_count; i++) {
        free(sim->nodes[i].folder);
        free(sim->nodes[i].bytes);
    }
    free(sim);
}

sim_files *sim_files_clone(const sim_files *sim)
{
    sim_files *clone = sim_bare();
    clone->process_id = sim->process_id;
    for (int i = 0; i < sim->node_count; i++) {
        const sim_node *from = &sim->nodes[i];
        sim_node *to = &clone->nodes[node_new(clone, from->folder != NULL)];
        if (from->folder != NULL)
            *to->folder = *from->folder;
        else if (from->byte_count > 0)
            node_append(to, from->bytes, from->byte_count);
        to->synced_bytes = from->synced_bytes;
    }
    return clone;
}

sim_files *sim_files_after_kill(const sim_files *sim)
{
    sim_files *after = sim_files_clone(sim);
    after->process_id++;
    return after;
}

typedef struct luck {
    uint64_t seed, drawn;
} luck;

/* A number below `sides`; seed 0 always loses, seed 1 always wins: see the callers. */
static uint32_t luck_draw(luck *dice, uint32_t sides)
{
    if (dice->seed <= 1)
        return dice->seed == 0 ? 0 : sides - 1;
    return (uint32_t)(tide_random_uniform(dice->seed, TIDE_RANDOM_USE_TEST, 0, dice->drawn++) * sides);
}

static void folder_survive(sim_folder *folder, luck *dice)
{
    sim_names names = folder->synced;
    for (int i = 0; i < folder->change_count; i++) {
        if (luck_draw(dice, 2) == 1)
            change_apply(&folder->changes[i], &names);
    }
    folder->now = folder->synced = names;
    folder->change_count = 0;
}

/* Lost, cut, damaged, or whole. */
static void file_survive(sim_node *file, luck *dice)
{
    size_t unsynced = file->byte_count - file->synced_bytes;
    uint32_t fate = luck_draw(dice, 4);
    if (unsynced == 0)
        return;
    if (fate == 0)
        file->byte_count = file->synced_bytes;
    else if (fate == 1)
        file->byte_count = file->synced_bytes + luck_draw(dice, (uint32_t)unsynced);
    else if (fate == 2)
        memset(file->bytes + file->synced_bytes + luck_draw(dice, (uint32_t)unsynced), 0, 1);
    file->synced_bytes = file->byte_count;
}

sim_files *sim_files_after_power_cut(const sim_files *sim, uint64_t seed)
{
    sim_files *after = sim_files_after_kill(sim);
    luck dice = {.seed = seed};
    for (int i = 0; i < after->node_count; i++) {
        if (after->nodes[i].folder != NULL)
            folder_survive(after->nodes[i].folder, &dice);
        else
            file_survive(&after->nodes[i], &dice);
    }
    return after;
}

const tide_files *sim_files_table(const sim_files *sim)
{
    return &sim->table;
}

unsigned sim_files_operations(const sim_files *sim)
{
    return sim->operations;
}

unsigned sim_files_syncs(const sim_files *sim)
{
    return sim->syncs;
}

unsigned sim_files_open_count(const sim_files *sim)
{
    unsigned count = 0;
    for (int i = 0; i < HANDLES_MAX; i++)
        count += sim->handles[i].open;
    return count;
}

void sim_files_fault(sim_files *sim, sim_fault fault, unsigned operation)
{
    sim->fault = fault;
    sim->fault_at = operation;
    sim->fault_armed = true;
    sim->fault_met = false;
}

bool sim_files_fault_met(const sim_files *sim)
{
    return sim->fault_met;
}

void sim_files_heal(sim_files *sim)
{
    sim->fault_armed = sim->fault_met = false;
}

void sim_files_stop(sim_files *sim, unsigned operation)
{
    sim->stop_at = operation;
}

void sim_files_ignore_sync(sim_files *sim, unsigned sync)
{
    sim->ignored_sync = sync;
}

unsigned char *sim_files_bytes(sim_files *sim, const char *path, size_t *bytes)
{
    int node;
    if (lookup(sim, path, &node) != 0 || sim->nodes[node].folder != NULL)
        return NULL;
    *bytes = sim->nodes[node].byte_count;
    return sim->nodes[node].bytes;
}

void sim_files_truncate(sim_files *sim, const char *path, size_t bytes)
{
    int node;
    if (lookup(sim, path, &node) != 0 || bytes > sim->nodes[node].byte_count)
        abort(); /* a test's mistake */
    sim->nodes[node].byte_count = bytes;
}

bool sim_files_exists(const sim_files *sim, const char *path)
{
    int node;
    return lookup(sim, path, &node) == 0;
}
