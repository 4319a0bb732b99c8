/* The simulated disk is one array of nodes; a node is a file or a folder.
 *
 *     folder   names now;   names at the last sync;   changes since (name added, name removed, renamed)
 *     file     bytes now;   how many of them the last sync covered (files are only appended to)
 *
 * A power cut builds a new disk. Each folder gets its synced names with a random subset of the changes,
 * applied in order; each file gets its synced bytes, and a random part of the rest. Nodes are never
 * reused: if the removal of a name is lost, its file is still there. */
#include "tests/support/fake_files.h"

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

typedef struct fake_name {
    char name[NAME_BYTES];
    int node;
} fake_name;

typedef struct fake_names {
    fake_name items[NAMES_MAX];
    int count;
} fake_names;

typedef enum change_kind { ADDED, REMOVED, RENAMED } change_kind;

typedef struct fake_change {
    change_kind kind;
    char name[NAME_BYTES];
    char new_name[NAME_BYTES]; /* used by RENAMED */
    int node;
} fake_change;

typedef struct fake_folder {
    fake_names now, synced;
    fake_change changes[CHANGES_MAX];
    int change_count;
} fake_folder;

typedef struct fake_node {
    fake_folder *folder; /* NULL in a file */
    unsigned char *bytes;
    size_t byte_count, capacity, synced_bytes;
} fake_node;

typedef struct fake_handle {
    bool open, writing, locked;
    int node;
} fake_handle;

struct fake_files {
    tide_files table;
    fake_node nodes[NODES_MAX];
    int node_count;
    fake_handle handles[HANDLES_MAX];
    uint64_t process_id;
    unsigned operations, syncs;
    unsigned stop_at, ignored_sync, fault_at;
    fake_fault fault;
    bool fault_armed, fault_met;
};

/* ---- nodes and names ---- */

/* Returns zeroed memory for the simulation itself. It does not call malloc, which a test may make fail for
 * the code under test. */
static void *own_memory(size_t bytes)
{
    void *memory = aligned_alloc(16, (bytes + 15) / 16 * 16);
    if (memory == NULL)
        abort();
    return memset(memory, 0, bytes);
}

static int node_new(fake_files *fake, bool is_folder)
{
    assert(fake->node_count < NODES_MAX);
    fake_node *node = &fake->nodes[fake->node_count];
    memset(node, 0, sizeof *node);
    if (is_folder)
        node->folder = own_memory(sizeof *node->folder);
    return fake->node_count++;
}

static int names_find(const fake_names *names, const char *name)
{
    for (int i = 0; i < names->count; i++) {
        if (strcmp(names->items[i].name, name) == 0)
            return i;
    }
    return NOBODY;
}

static void names_remove(fake_names *names, const char *name)
{
    int at = names_find(names, name);
    if (at != NOBODY)
        names->items[at] = names->items[--names->count];
}

static void names_set(fake_names *names, const char *name, int node)
{
    names_remove(names, name);
    assert(names->count < NAMES_MAX);
    fake_name *item = &names->items[names->count++];
    snprintf(item->name, sizeof item->name, "%s", name);
    item->node = node;
}

static void change_apply(const fake_change *change, fake_names *names)
{
    if (change->kind != ADDED)
        names_remove(names, change->name);
    if (change->kind == ADDED)
        names_set(names, change->name, change->node);
    if (change->kind == RENAMED)
        names_set(names, change->new_name, change->node);
}

static void folder_change(fake_folder *folder, change_kind kind, const char *name, const char *new_name,
                          int node)
{
    assert(folder->change_count < CHANGES_MAX);
    fake_change *change = &folder->changes[folder->change_count++];
    *change = (fake_change){.kind = kind, .node = node};
    snprintf(change->name, sizeof change->name, "%s", name);
    snprintf(change->new_name, sizeof change->new_name, "%s", new_name);
    change_apply(change, &folder->now);
}

/* Finds the folder that holds the path's last part; returns 0 or ENOENT. */
static int walk(const fake_files *fake, const char *path, int *folder_node, char name[NAME_BYTES])
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
        int found = names_find(&fake->nodes[at].folder->now, name);
        if (found == NOBODY)
            return ENOENT;
        at = fake->nodes[at].folder->now.items[found].node;
        if (fake->nodes[at].folder == NULL)
            return ENOTDIR;
    }
}

static int lookup(const fake_files *fake, const char *path, int *node)
{
    int folder;
    char name[NAME_BYTES];
    int error = walk(fake, path, &folder, name);
    if (error != 0)
        return error;
    if (name[0] == '\0' || strcmp(name, ".") == 0) {
        *node = folder;
        return 0;
    }
    const fake_names *names = &fake->nodes[folder].folder->now;
    int found = names_find(names, name);
    if (found == NOBODY)
        return ENOENT;
    *node = names->items[found].node;
    return 0;
}

/* ---- operations ---- */

/* Every operation calls this first: it counts the operation and returns the errno of a fault, or 0. */
static int begin(fake_files *fake)
{
    unsigned operation = fake->operations++;
    if (operation >= fake->stop_at)
        return EIO;
    if (!fake->fault_armed || operation < fake->fault_at)
        return 0;
    bool first = !fake->fault_met;
    fake->fault_met = true;
    return fake->fault == FAKE_FAULT_EIO && first ? EIO : 0;
}

static bool disk_is_full(const fake_files *fake)
{
    return fake->fault_met && fake->fault == FAKE_FAULT_NO_SPACE;
}

static size_t transfer_limit(const fake_files *fake, size_t bytes)
{
    size_t limit = 1 + fake->operations % 7;
    bool is_short = fake->fault_met && fake->fault == FAKE_FAULT_SHORT_WRITE;
    return is_short && bytes > limit ? limit : bytes;
}

static int handle_new(fake_files *fake, int node, bool writing, int *handle)
{
    int free_handle = 0;
    while (fake->handles[free_handle].open)
        free_handle++;
    assert(free_handle < HANDLES_MAX);
    fake->handles[free_handle] = (fake_handle){.open = true, .writing = writing, .node = node};
    *handle = free_handle;
    return 0;
}

static fake_node *handle_node(fake_files *fake, int handle)
{
    assert(handle >= 0 && handle < HANDLES_MAX && fake->handles[handle].open);
    return &fake->nodes[fake->handles[handle].node];
}

static int fake_open(void *context, const char *path, int *handle)
{
    fake_files *fake = context;
    int node;
    int error = begin(fake);
    if (error == 0)
        error = lookup(fake, path, &node);
    if (error == 0 && fake->nodes[node].folder != NULL)
        error = EISDIR;
    return error != 0 ? error : handle_new(fake, node, false, handle);
}

static int add_name(fake_files *fake, const char *path, bool is_folder, int *node)
{
    int folder;
    char name[NAME_BYTES];
    int error = begin(fake);
    if (error == 0 && disk_is_full(fake))
        error = ENOSPC;
    if (error == 0)
        error = walk(fake, path, &folder, name);
    if (error == 0 && names_find(&fake->nodes[folder].folder->now, name) != NOBODY)
        error = EEXIST;
    if (error != 0)
        return error;
    *node = node_new(fake, is_folder);
    folder_change(fake->nodes[folder].folder, ADDED, name, "", *node);
    return 0;
}

static int fake_create(void *context, const char *path, int *handle)
{
    int node;
    int error = add_name(context, path, false, &node);
    return error != 0 ? error : handle_new(context, node, true, handle);
}

static int fake_make_folder(void *context, const char *path)
{
    int node;
    return add_name(context, path, true, &node);
}

static int fake_read(void *context, int handle, uint64_t offset, void *buffer, size_t bytes, size_t *done)
{
    fake_files *fake = context;
    const fake_node *node = handle_node(fake, handle);
    int error = begin(fake);
    if (error != 0)
        return error;
    size_t left = offset < node->byte_count ? node->byte_count - (size_t)offset : 0;
    *done = transfer_limit(fake, bytes < left ? bytes : left);
    if (*done > 0)
        memcpy(buffer, node->bytes + offset, *done);
    return 0;
}

static void node_append(fake_node *node, const void *bytes, size_t count)
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

static int fake_write(void *context, int handle, const void *buffer, size_t bytes, size_t *done)
{
    fake_files *fake = context;
    fake_node *node = handle_node(fake, handle);
    assert(fake->handles[handle].writing);
    bool was_full = disk_is_full(fake);
    int error = begin(fake);
    if (error != 0)
        return error;
    if (was_full || (disk_is_full(fake) && bytes < 2))
        return ENOSPC;
    *done = disk_is_full(fake) ? bytes / 2 : transfer_limit(fake, bytes);
    node_append(node, buffer, *done);
    return 0;
}

static int fake_size(void *context, int handle, uint64_t *bytes)
{
    const fake_node *node = handle_node(context, handle);
    int error = begin(context);
    if (error == 0)
        *bytes = node->byte_count;
    return error;
}

/* Counts a sync and returns whether it shall take effect. */
static bool sync_counts(fake_files *fake)
{
    return fake->syncs++ != fake->ignored_sync;
}

static int fake_sync(void *context, int handle)
{
    fake_files *fake = context;
    fake_node *node = handle_node(fake, handle);
    int error = begin(fake);
    if (error == 0 && sync_counts(fake))
        node->synced_bytes = node->byte_count;
    return error;
}

static int fake_close(void *context, int handle)
{
    fake_files *fake = context;
    handle_node(fake, handle);
    fake->handles[handle].open = false;
    return begin(fake);
}

static bool is_locked(const fake_files *fake, int node)
{
    for (int i = 0; i < HANDLES_MAX; i++)
        if (fake->handles[i].open && fake->handles[i].locked && fake->handles[i].node == node)
            return true;
    return false;
}

static int fake_lock(void *context, const char *path, bool create, int *handle)
{
    fake_files *fake = context;
    int node;
    int error = create ? add_name(fake, path, false, &node) : begin(fake);
    if (error == 0 && !create)
        error = lookup(fake, path, &node);
    if (error == 0 && is_locked(fake, node))
        error = EWOULDBLOCK;
    if (error != 0)
        return error;
    handle_new(fake, node, false, handle);
    fake->handles[*handle].locked = true;
    return 0;
}

static int fake_sync_folder(void *context, const char *path)
{
    fake_files *fake = context;
    int node;
    int error = begin(fake);
    if (error == 0)
        error = lookup(fake, path, &node);
    if (error == 0 && fake->nodes[node].folder == NULL)
        error = ENOTDIR;
    if (error == 0 && sync_counts(fake)) {
        fake_folder *folder = fake->nodes[node].folder;
        folder->synced = folder->now;
        folder->change_count = 0;
    }
    return error;
}

static int fake_rename(void *context, const char *from, const char *to)
{
    fake_files *fake = context;
    int node, folder, to_folder, to_node;
    char name[NAME_BYTES], to_name[NAME_BYTES];
    int error = begin(fake);
    if (error == 0)
        error = lookup(fake, from, &node);
    if (error != 0)
        return error;
    if (walk(fake, from, &folder, name) != 0 || walk(fake, to, &to_folder, to_name) != 0)
        return ENOENT;
    assert(folder == to_folder); /* checkpoints rename within one folder only */
    if (lookup(fake, to, &to_node) == 0 && fake->nodes[to_node].folder != NULL &&
        fake->nodes[to_node].folder->now.count > 0)
        return ENOTEMPTY;
    folder_change(fake->nodes[folder].folder, RENAMED, name, to_name, node);
    return 0;
}

static int remove_name(fake_files *fake, const char *path, bool is_folder)
{
    int node, folder;
    char name[NAME_BYTES];
    int error = begin(fake);
    if (error == 0)
        error = lookup(fake, path, &node);
    if (error != 0)
        return error;
    const fake_folder *removed = fake->nodes[node].folder;
    if ((removed != NULL) != is_folder)
        return is_folder ? ENOTDIR : EISDIR;
    if (is_folder && removed->now.count > 0)
        return ENOTEMPTY;
    error = walk(fake, path, &folder, name);
    if (error == 0)
        folder_change(fake->nodes[folder].folder, REMOVED, name, "", node);
    return error;
}

static int fake_remove_file(void *context, const char *path)
{
    return remove_name(context, path, false);
}

static int fake_remove_folder(void *context, const char *path)
{
    return remove_name(context, path, true);
}

static int fake_list(void *context, const char *path, tide_files_visit visit, void *visitor)
{
    fake_files *fake = context;
    int node;
    int error = begin(fake);
    if (error == 0)
        error = lookup(fake, path, &node);
    if (error == 0 && fake->nodes[node].folder == NULL)
        error = ENOTDIR;
    if (error != 0)
        return error;
    fake_names names = fake->nodes[node].folder->now; /* a copy, since the visitor may change the folder */
    for (int i = 0; i < names.count && error == 0; i++)
        error = visit(visitor, names.items[i].name);
    return error;
}

static int fake_free_space(void *context, const char *path, uint64_t *bytes)
{
    (void)context, (void)path;
    *bytes = UINT64_MAX;
    return 0;
}

static uint64_t fake_process_id(void *context)
{
    return ((fake_files *)context)->process_id;
}

static bool fake_process_is_alive(void *context, uint64_t process_id)
{
    return process_id >= ((fake_files *)context)->process_id;
}

/* --- creation and destruction --- */

static fake_files *fake_bare(void)
{
    fake_files *fake = own_memory(sizeof *fake);
    fake->table = (tide_files){.context = fake,
                               .open = fake_open,
                               .create = fake_create,
                               .read = fake_read,
                               .write = fake_write,
                               .size = fake_size,
                               .sync = fake_sync,
                               .close = fake_close,
                               .lock = fake_lock,
                               .sync_folder = fake_sync_folder,
                               .rename = fake_rename,
                               .make_folder = fake_make_folder,
                               .remove_file = fake_remove_file,
                               .remove_folder = fake_remove_folder,
                               .list = fake_list,
                               .free_space = fake_free_space,
                               .process_id = fake_process_id,
                               .process_is_alive = fake_process_is_alive};
    fake->process_id = 1000;
    fake->stop_at = fake->ignored_sync = UINT32_MAX;
    return fake;
}

fake_files *fake_files_new(void)
{
    fake_files *fake = fake_bare();
    node_new(fake, true);
    return fake;
}

void fake_files_free(fake_files *fake)
{
    for (int i = 0; i < fake->node_count; i++) {
        free(fake->nodes[i].folder);
        free(fake->nodes[i].bytes);
    }
    free(fake);
}

fake_files *fake_files_clone(const fake_files *fake)
{
    fake_files *clone = fake_bare();
    clone->process_id = fake->process_id;
    for (int i = 0; i < fake->node_count; i++) {
        const fake_node *from = &fake->nodes[i];
        fake_node *to = &clone->nodes[node_new(clone, from->folder != NULL)];
        if (from->folder != NULL)
            *to->folder = *from->folder;
        else if (from->byte_count > 0)
            node_append(to, from->bytes, from->byte_count);
        to->synced_bytes = from->synced_bytes;
    }
    return clone;
}

fake_files *fake_files_after_kill(const fake_files *fake)
{
    fake_files *after = fake_files_clone(fake);
    after->process_id++;
    return after;
}

typedef struct luck {
    uint64_t seed, drawn;
} luck;

/* Returns a number below `sides`; seed 0 always draws 0, the loss of data, and seed 1 the largest number,
 * which saves it. */
static uint32_t luck_draw(luck *dice, uint32_t sides)
{
    if (dice->seed <= 1)
        return dice->seed == 0 ? 0 : sides - 1;
    return (uint32_t)(tide_random_uniform(dice->seed, TIDE_RANDOM_USE_TEST, 0, dice->drawn++) * sides);
}

static void folder_survive(fake_folder *folder, luck *dice)
{
    fake_names names = folder->synced;
    for (int i = 0; i < folder->change_count; i++) {
        if (luck_draw(dice, 2) == 1)
            change_apply(&folder->changes[i], &names);
    }
    folder->now = folder->synced = names;
    folder->change_count = 0;
}

/* Decides about a file's bytes that were not synced: all are lost, some are cut off, some are damaged, or
 * all survive. */
static void file_survive(fake_node *file, luck *dice)
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

fake_files *fake_files_after_power_cut(const fake_files *fake, uint64_t seed)
{
    fake_files *after = fake_files_after_kill(fake);
    luck dice = {.seed = seed};
    for (int i = 0; i < after->node_count; i++) {
        if (after->nodes[i].folder != NULL)
            folder_survive(after->nodes[i].folder, &dice);
        else
            file_survive(&after->nodes[i], &dice);
    }
    return after;
}

const tide_files *fake_files_table(const fake_files *fake)
{
    return &fake->table;
}

unsigned fake_files_operations(const fake_files *fake)
{
    return fake->operations;
}

unsigned fake_files_syncs(const fake_files *fake)
{
    return fake->syncs;
}

unsigned fake_files_open_count(const fake_files *fake)
{
    unsigned count = 0;
    for (int i = 0; i < HANDLES_MAX; i++)
        count += fake->handles[i].open;
    return count;
}

void fake_files_fault(fake_files *fake, fake_fault fault, unsigned operation)
{
    fake->fault = fault;
    fake->fault_at = operation;
    fake->fault_armed = true;
    fake->fault_met = false;
}

bool fake_files_fault_met(const fake_files *fake)
{
    return fake->fault_met;
}

void fake_files_clear_fault(fake_files *fake)
{
    fake->fault_armed = fake->fault_met = false;
}

void fake_files_stop(fake_files *fake, unsigned operation)
{
    fake->stop_at = operation;
}

void fake_files_ignore_sync(fake_files *fake, unsigned sync)
{
    fake->ignored_sync = sync;
}

unsigned char *fake_files_bytes(fake_files *fake, const char *path, size_t *bytes)
{
    int node;
    if (lookup(fake, path, &node) != 0 || fake->nodes[node].folder != NULL)
        return NULL;
    *bytes = fake->nodes[node].byte_count;
    return fake->nodes[node].bytes;
}

void fake_files_truncate(fake_files *fake, const char *path, size_t bytes)
{
    int node;
    if (lookup(fake, path, &node) != 0 || bytes > fake->nodes[node].byte_count)
        abort(); /* a test's mistake */
    fake->nodes[node].byte_count = bytes;
}

bool fake_files_exists(const fake_files *fake, const char *path)
{
    int node;
    return lookup(fake, path, &node) == 0;
}
