/* Finding the CUDA module.
 *
 * A module that is found but can't be loaded, or is not ours, ends the search with the dynamic linker's
 * message (a missing libcublasLt.so, say), which tells its owner the cause. The search goes on only where
 * there is no file.
 *
 * The answer, good or bad, is kept for the life of the process and given to every thread that asks, so a bad one's message
 * is kept too: a thread's last message is its own.
 */
#include "offload/module.h"

#include "tide_config.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = PATH_MAX, TEXT_BYTES = 1024, FOLDERS = 5 };

#define FILE_NAME "libtidepool_cuda.so"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const tide_module *opened; /* NULL: `refused` and `why` say */
static tide_status refused;
static char why[TEXT_BYTES];

/* --- what the module is given --- */

static tide_status module_fail(tide_status status, const char *text)
{
    return tide_fail(status, "%s", text);
}

static const tide_module_host module_host = {.fail = module_fail, .message = tide_message};

/* --- where it may be --- */

/* The file that this code was loaded from. The program itself has no name in the linker's list. */
static bool own_file(char path[PATH_BYTES])
{
    Dl_info info;
    struct link_map *map = NULL;
    path[0] = 0;
    if (dladdr1(&once, &info, (void **)&map, RTLD_DL_LINKMAP) != 0 && map != NULL && map->l_name[0] != 0)
        return realpath(map->l_name, path) != NULL;
    const ssize_t length = readlink("/proc/self/exe", path, PATH_BYTES - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0;
}

/* A folder as it is seen from where this code lies; "" if there is none. */
static void seen_from(const char *own_folder, const char *relative, char folder[PATH_BYTES])
{
    char joined[PATH_BYTES];
    const int length = snprintf(joined, sizeof joined, "%s/%s", own_folder, relative);
    if (length >= PATH_BYTES || realpath(joined, folder) == NULL)
        folder[0] = 0;
}

/* Is the folder root's or this user's? Beside a program that was copied to a common folder, any user may have
 * put a file. */
static bool is_trusted(const char *folder)
{
    struct stat about;
    return stat(folder, &about) == 0 && (about.st_uid == 0 || about.st_uid == geteuid());
}

/* The folders to look in, in order; "" where there is none. One at a time: a caller's stack may be small. */
static void folder_at(int which, char folder[PATH_BYTES])
{
    static const char *const from_own[FOLDERS] = {
        NULL, ".", TIDE_LIBRARY_FROM_PROGRAM,
        "../kernels/cuda", /* in a build folder: programs and library lie one deep */
        NULL};
    char own[PATH_BYTES];
    const char *named = which == 0 ? getenv("TIDEPOOL_MODULES") : which == 4 ? TIDE_LIBRARY_FOLDER : NULL;
    snprintf(folder, PATH_BYTES, "%s", named != NULL ? named : "");
    if (from_own[which] == NULL || !own_file(own) || strrchr(own, '/') == NULL)
        return;
    *strrchr(own, '/') = 0;
    seen_from(own, from_own[which], folder);
    if (which == 3 && !is_trusted(folder))
        folder[0] = 0;
}

/* The first file that is there; one that can't be looked at is: loading it tells why. */
static bool find(char path[PATH_BYTES])
{
    for (int i = 0; i < FOLDERS; i++) {
        folder_at(i, path);
        const size_t length = strlen(path);
        if (length == 0 || length + sizeof "/" FILE_NAME > PATH_BYTES)
            continue;
        memcpy(path + length, "/" FILE_NAME, sizeof "/" FILE_NAME);
        if (access(path, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR))
            return true;
    }
    return false;
}

static tide_status is_nowhere(void)
{
    char folder[PATH_BYTES], list[TEXT_BYTES] = "";
    size_t used = 0;
    for (int i = 0; i < FOLDERS && used < sizeof list; i++) {
        folder_at(i, folder);
        const int length = folder[0] == 0 ? 0 : snprintf(list + used, sizeof list - used, "%s, ", folder);
        used += (size_t)length;
    }
    return tide_fail(TIDE_ERROR_UNSUPPORTED,
                     "no CUDA module: " FILE_NAME " is not in %sor where the dynamic linker looks", list);
}

/* --- opening it --- */

/* `path` is then where it was looked for: a bare name if only the linker knows. */
static tide_status load(void **handle, char path[PATH_BYTES])
{
    static const char absent[] = FILE_NAME ": cannot open shared object";
    if (!find(path))
        snprintf(path, PATH_BYTES, FILE_NAME);
    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*handle != NULL)
        return TIDE_OK;
    const char *said = dlerror();
    if (said != NULL && strncmp(said, absent, strlen(absent)) == 0)
        return is_nowhere();
    return tide_fail(TIDE_ERROR_UNSUPPORTED, "the CUDA module can't be loaded: %s",
                     said != NULL ? said : "the dynamic linker does not say why");
}

/* Ours, and of this version? */
static tide_status introduce(void *handle, const char *path, const tide_module **module)
{
    union {
        void *symbol;
        tide_module_entry call; /* ISO C has no conversion from one to the other */
    } entry = {.symbol = dlsym(handle, "tide_cuda_module")};
    if (entry.symbol == NULL)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "%s is no module of tidepool: it has no tide_cuda_module",
                         path);
    const tide_module *made = entry.call(&module_host, TIDE_MODULE_VERSION);
    if (made == NULL || made->version != TIDE_MODULE_VERSION)
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "%s belongs to another version of tidepool: its module version is not %d", path,
                         TIDE_MODULE_VERSION);
    if (made->options_bytes != sizeof(tide_device_options) || made->ops_bytes != sizeof(tide_device_ops))
        return tide_fail(
            TIDE_ERROR_UNSUPPORTED,
            "%s belongs to another build of tidepool: its device has %zu bytes of options and %zu of "
            "operations, not %zu and %zu",
            path, made->options_bytes, made->ops_bytes, sizeof(tide_device_options), sizeof(tide_device_ops));
    *module = made;
    return TIDE_OK;
}

/* A module that is refused stays loaded: it may have libraries beneath it that do not like to go. */
static void open_once(void)
{
    char path[PATH_BYTES];
    void *handle;
    refused = load(&handle, path);
    if (refused == TIDE_OK)
        refused = introduce(handle, path, &opened);
    if (refused != TIDE_OK)
        snprintf(why, sizeof why, "%s", tide_message());
}

tide_status tide_module_cuda(const tide_module **module)
{
    pthread_once(&once, open_once);
    if (refused != TIDE_OK)
        return tide_fail(refused, "%s", why);
    *module = opened;
    return TIDE_OK;
}

tide_status tide_module_cuda_ordinal(const char *device, uint32_t *ordinal)
{
    static const char prefix[] = "cuda:";
    const char *number = device + strlen(prefix);
    if (strncmp(device, prefix, strlen(prefix)) != 0 || number[0] == 0 || strlen(number) > 4 ||
        strspn(number, "0123456789") != strlen(number))
        return tide_fail(TIDE_ERROR_ARGUMENT, "device %s: a GPU is named cuda:N, N counting from 0", device);
    *ordinal = (uint32_t)strtoul(number, NULL, 10);
    return TIDE_OK;
}
