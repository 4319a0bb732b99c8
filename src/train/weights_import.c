#include "src/train/weights_import.h"

#include "base/hash.h"
#include "src/export/weight_list.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Large enough that every core gets a part, small beside any budget and the last-level cache. */
enum { RANGE_BYTES = 4 << 20 };

struct tide_weights_import {
    tide_weight_list list;
    tide_weights *weights;
};

tide_status tide_weights_import_open(const tide_model_config *model, const char *folder,
                                     tide_weights_import **import)
{
    tide_weights_import *made = calloc(1, sizeof *made);
    if (!made)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a folder of weights");
    tide_status status = tide_weight_list_make(model, &made->list);
    if (status == TIDE_OK) {
        const tide_weights_names names = tide_weight_list_names(model, &made->list);
        status = tide_weights_open(folder, &names, &made->weights);
    }
    if (status == TIDE_OK)
        status = tide_weights_check_duplicate(made->weights);
    if (status != TIDE_OK) {
        tide_weights_import_close(made);
        return status;
    }
    *import = made;
    return TIDE_OK;
}

bool tide_weights_import_named_otherwise(const tide_weights_import *import)
{
    return tide_weights_named_otherwise(import->weights);
}

void tide_weights_import_close(tide_weights_import *import)
{
    if (!import)
        return;
    tide_weights_close(import->weights);
    tide_weight_list_free(&import->list);
    free(import);
}

/* A part of a tensor. */
typedef struct range {
    size_t tensor;
    uint64_t first, count;
} range;

/* An import. While the caller's thread sets one range in the pool, a second thread reads the next range, so
 * that neither the disk nor memory waits for the other. */
typedef struct import_work {
    tide_decoder *model;
    tide_progress_callback progress; /* or NULL */
    void *progress_context;
    const tide_weights_import *from;
    uint64_t *hash;  /* of all values so far; or NULL */
    char *values[2]; /* [RANGE_BYTES] each, in the file's dtype; range n is in values[n % 2] */
    uint64_t done_bytes, bytes;

    pthread_mutex_t mutex; /* guards the members below */
    pthread_cond_t changed;
    range next;           /* the range to read */
    uint64_t asked, read; /* how many ranges so far the caller has asked for, and the thread has read */
    bool ended;
    tide_status status; /* the status of the last range that the thread read; `message` belongs to it */
    char message[1024];
} import_work;

static tide_dtype dtype_of(const import_work *work, size_t tensor)
{
    const tide_weights_dtype dtype = tide_weights_tensor_dtype(work->from->weights, tensor);
    return dtype == TIDE_WEIGHTS_BF16  ? TIDE_DTYPE_BF16
           : dtype == TIDE_WEIGHTS_F16 ? TIDE_DTYPE_FP16
                                       : TIDE_DTYPE_FP32;
}

/* Move to the next range; false: `it` was the last one. */
static bool advance(const import_work *work, range *it)
{
    const uint64_t elements = work->from->list.described[it->tensor].elements;
    it->first += it->count;
    if (it->first == elements) {
        it->tensor++;
        it->first = 0;
    }
    if (it->tensor == work->from->list.count)
        return false;
    const uint64_t left = work->from->list.described[it->tensor].elements - it->first;
    const uint64_t most = RANGE_BYTES / tide_dtype_bytes(dtype_of(work, it->tensor));
    it->count = left < most ? left : most;
    return true;
}

static void *read_ranges(void *argument)
{
    import_work *work = argument;
    pthread_mutex_lock(&work->mutex);
    for (;;) {
        while (work->asked == work->read && !work->ended)
            pthread_cond_wait(&work->changed, &work->mutex);
        if (work->ended)
            break;
        const range it = work->next;
        void *values = work->values[work->read % 2];
        pthread_mutex_unlock(&work->mutex);
        const tide_status status =
            tide_weights_read_raw(work->from->weights, it.tensor, it.first, it.count, values);
        pthread_mutex_lock(&work->mutex);
        work->status = status;
        if (status != TIDE_OK)
            snprintf(work->message, sizeof work->message, "%s", tide_message());
        work->read++;
        pthread_cond_signal(&work->changed);
    }
    pthread_mutex_unlock(&work->mutex);
    return NULL;
}

static void ask(import_work *work, const range *next)
{
    pthread_mutex_lock(&work->mutex);
    work->next = *next;
    work->asked++;
    pthread_cond_signal(&work->changed);
    pthread_mutex_unlock(&work->mutex);
}

/* Wait until the thread has read the last range that the caller asked for. */
static tide_status await(import_work *work)
{
    pthread_mutex_lock(&work->mutex);
    while (work->read < work->asked)
        pthread_cond_wait(&work->changed, &work->mutex);
    const tide_status status = work->status;
    pthread_mutex_unlock(&work->mutex);
    return status == TIDE_OK ? TIDE_OK : tide_fail(status, "%s", work->message);
}

static void end(import_work *work)
{
    pthread_mutex_lock(&work->mutex);
    work->ended = true;
    pthread_cond_signal(&work->changed);
    pthread_mutex_unlock(&work->mutex);
}

static void import_tell(const import_work *work)
{
    if (work->progress)
        work->progress(work->progress_context, "values from the weights", work->done_bytes, work->bytes);
}

static tide_status import_ranges(import_work *work)
{
    range it = {.count = 0}, next;
    bool more = advance(work, &it);
    tide_status status = TIDE_OK;
    import_tell(work);
    if (more)
        ask(work, &it);
    for (uint64_t number = 0; more && status == TIDE_OK; number++) {
        const tide_dtype dtype = dtype_of(work, it.tensor);
        const uint64_t bytes = it.count * tide_dtype_bytes(dtype);
        status = await(work);
        next = it;
        more = status == TIDE_OK && advance(work, &next);
        if (more)
            ask(work, &next);
        if (status == TIDE_OK && work->hash != NULL)
            *work->hash = tide_hash_end(*work->hash, work->values[number % 2], bytes, bytes);
        if (status == TIDE_OK)
            status = tide_decoder_values_set_as(work->model, it.tensor, TIDE_VALUE_MASTER, it.first, it.count,
                                                dtype, work->values[number % 2]);
        work->done_bytes += bytes;
        it = next;
        import_tell(work);
    }
    return status;
}

tide_status tide_weights_import_run(const tide_weights_import *import, tide_decoder *model,
                                    tide_progress_callback progress, void *progress_context, uint64_t *hash)
{
    pthread_t thread;
    import_work work = {.model = model,
                        .progress = progress,
                        .progress_context = progress_context,
                        .from = import,
                        .hash = hash,
                        .bytes = tide_weights_bytes(import->weights),
                        .mutex = PTHREAD_MUTEX_INITIALIZER,
                        .changed = PTHREAD_COND_INITIALIZER};
    char *values = malloc((size_t)2 * RANGE_BYTES);
    if (!values)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %d bytes of values on their way",
                         2 * RANGE_BYTES);
    work.values[0] = values;
    work.values[1] = values + RANGE_BYTES;
    const int error = pthread_create(&thread, NULL, read_ranges, &work);
    tide_status status =
        error == 0 ? TIDE_OK
                   : tide_fail(TIDE_ERROR_NO_MEMORY, "no thread to read weights: %s", strerror(error));
    if (status == TIDE_OK) {
        status = import_ranges(&work);
        end(&work);
        pthread_join(thread, NULL);
    }
    free(values);
    return status;
}
