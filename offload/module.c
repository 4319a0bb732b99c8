/* Finding the CUDA module.
 *
 * If a module is found but can't be loaded, or is not tidepool's, the search ends with the dynamic linker's
 * message (a missing libcublasLt.so, say), which tells the user the cause. The search goes on only where no
 * file exists.
 *
 * The result, success or failure, is kept for the life of the process and returned to every thread that asks.
 * The message of a failure is kept, too, since each thread has a last message of its own.
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
static const tide_module *opened; /* NULL: `refused` and `why` hold the failure */
static tide_status refused;
static char why[TEXT_BYTES];

/* --- functions for the module --- */

static tide_status module_fail(tide_status status, const char *text)
{
    return tide_fail(status, "%s", text);
}

static const tide_module_host module_host = {.fail = module_fail, .message = tide_message};

/* --- places to look in --- */

/* Find the file that this code was loaded from. If that is the program itself, which has no name in the
 * linker's list, ask /proc. */
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

/* Resolve `relative` from the folder of this code; "" if there is no such folder. */
static void seen_from(const char *own_folder, const char *relative, char folder[PATH_BYTES])
{
    char joined[PATH_BYTES];
    const int length = snprintf(joined, sizeof joined, "%s/%s", own_folder, relative);
    if (length >= PATH_BYTES || realpath(joined, folder) == NULL)
        folder[0] = 0;
}

/* Is root or this user the folder's owner? If a program was copied to a folder that all users may write to,
 * another user may have put a file beside it. */
static bool is_trusted(const char *folder)
{
    struct stat about;
    return stat(folder, &about) == 0 && (about.st_uid == 0 || about.st_uid == geteuid());
}

/* Get the folder to look in as number `which`; "" if there is none. One call for each folder, since the
 * caller's stack may be small. */
static void folder_at(int which, char folder[PATH_BYTES])
{
    static const char *const from_own[FOLDERS] = {
        NULL, ".", TIDE_LIBRARY_FROM_PROGRAM,
        "../kernels/cuda", /* in a build folder, where programs and library lie one folder deep */
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

/* Find the first module file that exists. A file whose existence can't be checked counts, since loading it
 * reports why. */
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

/* --- open the module --- */

/* Load the module. Sets `path` to the file found; to a bare name if only the linker may find one. */
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

/* Check that the loaded file is a module of this version of tidepool, and get its functions. */
static tide_status introduce(void *handle, const char *path, const tide_module **module)
{
    union {
        void *symbol;
        tide_module_entry call; /* ISO C has no conversion from an object pointer to a function pointer */
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

/* Load and check the module. A refused one stays loaded, since libraries that it uses may not unload
 * cleanly. */
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
