/* weights: measures the import of a folder of Hugging Face weights into a pool (--model DIR).
 *
 *     usage: bench_weights [--quick]
 *
 * The folder is in /tmp: two layers of Llama 3.2 1B with its vocabulary, BF16, in three shards. A trainer
 * reads it into new host slots; the device budget is the least that works. Each param moves 12 bytes: 2
 * read from the system's cache and 2 written by its copy, these 2 read, 2 of the param and 4 of its master
 * written. (The moments are zero, in memory that the system gave as zeros.)
 *
 *     cached      these bytes a second over the rate of reading alone and writing alone, one after the
 *                 other (bench_memory.h)
 *     not cached  the time of a plain read of the files by two threads over the import's time, in turn,
 *                 both after the files were dropped from the system's cache (POSIX_FADV_DONTNEED) */
#include "src/export/export.h"
#include "src/export/weight_list.h"
#include "tests/support/bench.h"
#include "tests/support/bench_memory.h"
#include "tests/support/bench_plan.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ROUNDS_MAX = 7,
    QUICK_ROUNDS = 1,
    MOVED_BYTES = 12,
    PIECE_BYTES = 4 << 20,
    YARDSTICK_BYTES = 512 << 20
};

static char weights[BENCH_PATH_BYTES], data_path[BENCH_PATH_BYTES];

static void each_file(void (*visit)(const char *path, void *context), void *context)
{
    DIR *opened = opendir(weights);
    if (opened == NULL)
        bench_die("no folder %s", weights);
    for (const struct dirent *entry; (entry = readdir(opened)) != NULL;) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", weights, entry->d_name);
        if (entry->d_name[0] != '.')
            visit(path, context);
    }
    closedir(opened);
}

/* --- the folder --- */

static tide_status get_value(void *context, size_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)context;
    (void)tensor;
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)((first + i) % 251) * 1e-3F;
    return TIDE_OK;
}

static void make_folder(const tide_model_config *model, uint64_t params)
{
    bench_path("weights", weights);
    bench_data(data_path);
    const tide_export made = {.files = tide_files_posix(),
                              .out = weights,
                              .model = model,
                              .dtype = TIDE_WEIGHTS_BF16,
                              .max_shard_bytes = params / 2};
    bench_check(tide_export_write(&made, get_value, NULL), "weights");
}

static void forget(const char *path, void *context)
{
    (void)context;
    const int handle = open(path, O_RDONLY);
    if (handle < 0 || posix_fadvise(handle, 0, 0, POSIX_FADV_DONTNEED) != 0)
        bench_die("%s can't be put out of the cache", path);
    close(handle);
}

/* --- the reference: reads alone --- */

static void read_file(const char *path, void *context)
{
    char *buffers = context;
    struct stat about;
    const int handle = open(path, O_RDONLY);
    if (handle < 0 || fstat(handle, &about) != 0)
        bench_die("%s can't be opened", path);
#pragma omp parallel for num_threads(2) schedule(dynamic, 1)
    for (off_t at = 0; at < about.st_size; at += PIECE_BYTES) {
        const off_t left = about.st_size - at;
        char *buffer = buffers + (size_t)((at / PIECE_BYTES) % 4) * PIECE_BYTES;
        if (pread(handle, buffer, left < PIECE_BYTES ? (size_t)left : PIECE_BYTES, at) <= 0)
            bench_die("%s can't be read", path);
    }
    close(handle);
}

static double reference_seconds(void)
{
    char *buffers = malloc(4 * (size_t)PIECE_BYTES);
    if (buffers == NULL)
        bench_die("no memory");
    const double begin = bench_seconds();
    each_file(read_file, buffers);
    const double seconds = bench_seconds() - begin;
    free(buffers);
    return seconds;
}

/* --- the import --- */

/* An import, and a plain read of the same files next to it. The read runs in the import's first or last
 * call of progress. At that time the system has already given the pool its memory, and the cost of filling
 * the cache is the same for both. */
typedef struct importing {
    tide_trainer_options options;
    bool cached, reference_first;
    double begin, seconds, reference_seconds;
} importing;

static void forget_unless_cached(const importing *it)
{
    if (!it->cached)
        each_file(forget, NULL);
}

static void measure_reference(importing *it)
{
    forget_unless_cached(it);
    it->reference_seconds = reference_seconds();
    forget_unless_cached(it);
}

static void note(void *context, const char *what, uint64_t done, uint64_t total)
{
    importing *it = context;
    if (strcmp(what, "values from the weights") != 0)
        return;
    if (done == total) {
        it->seconds = bench_seconds() - it->begin;
        if (!it->reference_first)
            measure_reference(it);
    }
    if (done == 0) {
        forget_unless_cached(it);
        if (it->reference_first)
            measure_reference(it);
        it->begin = bench_seconds();
    }
}

static void import(importing *it, bool cached, bool reference_first)
{
    tide_trainer *trainer;
    it->cached = cached;
    it->reference_first = reference_first;
    it->options.pool.progress = note;
    it->options.pool.progress_context = it;
    bench_check(tide_trainer_create(&it->options, &trainer), "import");
    tide_trainer_destroy(trainer);
}

static double memory_bytes_per_second(void)
{
    char *memory = aligned_alloc(4096, 2 * (size_t)YARDSTICK_BYTES);
    double seconds = INFINITY;
    if (memory == NULL)
        bench_die("no memory");
    memset(memory, 1, 2 * (size_t)YARDSTICK_BYTES);
    for (int i = 0; i < 3; i++) {
        const bench_memory_times took =
            bench_memory_measure(memory, memory + YARDSTICK_BYTES, YARDSTICK_BYTES, (int)bench_threads());
        seconds = fmin(seconds, took.read_seconds + took.write_seconds);
    }
    free(memory);
    return 2.0 * YARDSTICK_BYTES / seconds;
}

static void measure(importing *it, uint64_t params, unsigned rounds)
{
    const double file_bytes = 2.0 * (double)params;
    double cached[ROUNDS_MAX], from_disk[ROUNDS_MAX], limit = 0, disk = 0, rate = 0;
    for (unsigned round = 0; round < rounds; round++) {
        import(it, false, round % 2 == 0);
        from_disk[round] = it->reference_seconds / it->seconds;
        disk = file_bytes / it->reference_seconds;
        import(it, true, true);
        rate = MOVED_BYTES * (double)params / it->seconds;
        limit = memory_bytes_per_second();
        cached[round] = rate / limit;
    }
    bench_figure("cached", bench_median(cached, rounds), "ratio", BENCH_AT_LEAST, 0.5,
                 "%.0f million params, %.1f GB/s of %d bytes a param, memory %.1f", (double)params * 1e-6,
                 rate * 1e-9, MOVED_BYTES, limit * 1e-9);
    bench_figure("not cached", bench_median(from_disk, rounds), "ratio", BENCH_AT_LEAST, 0.8,
                 "a plain read %.2f GB/s", disk * 1e-9);
}

int main(int argc, char **argv)
{
    const bool quick = bench_options(argc, argv);
    importing it = {.cached = false};
    tide_trainer_options_default(&it.options);
    bench_check(tide_model_config_open(quick ? "llama-nano" : "llama-3.2-1b", &it.options.model), "model");
    if (!quick)
        it.options.model.layers = 2;
    tide_weight_list list;
    uint64_t params = 0;
    bench_check(tide_weight_list_make(&it.options.model, &list), "model");
    for (size_t i = 0; i < list.count; i++)
        params += list.described[i].elements;
    tide_weight_list_free(&list);
    make_folder(&it.options.model, params);
    it.options.data = data_path;
    it.options.weights = weights;
    it.options.seq_len = 128;
    it.options.global_batch_tokens = 128;
    it.options.recompute = TIDE_RECOMPUTE_ALL;
    it.options.pool.device = "host";
    it.options.pool.threads = bench_threads();
    it.options.pool.device_memory_bytes = bench_plan(&it.options).least_device_bytes;
    bench_begin("weights");
    measure(&it, params, quick ? QUICK_ROUNDS : ROUNDS_MAX);
    bench_end();
    return 0;
}
