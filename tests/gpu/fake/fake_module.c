/* The real CUDA module, with its device and the kernels' launchers, on a fake CUDA that needs no GPU. A
 * program loads it like any libtidepool_cuda.so and finds one GPU of 1 GiB, whose streams run the kernels
 * on the CPU. When the process ends, the module prints to stderr which of CUDA's rules the process broke,
 * which objects it did not free and which kernel failed; nothing if there was no fault.
 *
 * The variable TIDE_FAKE_CUDA changes this by words separated by spaces:
 *
 *     memory=BYTES    the GPU's memory
 *     delays=SEED     every other command of a stream sleeps up to 2 ms first
 *     call=N          the N-th call of CUDA fails once; with name=FUNCTION the N-th call of that function
 *     command=N       the N-th copy, fill or kernel that runs fails, and so does everything after it, as
 *                     on a GPU whose context is dead
 *     error=NUMBER    the error of call= or command=, a cudaError_t or CUresult; by default 999 (unknown)
 *                     for a call and 700 (an illegal address) for a command
 *     refuse          the call that fails does nothing; without this word a call that frees something or
 *                     waits does its work and fails afterwards
 *     count=FILE      at the end the module writes to the file the lines "calls N", "commands N", "failed
 *                     0" or "failed 1" (whether an injected failure happened), and "FUNCTION N" for each
 *                     function called */
#include "tests/gpu/fake_cublaslt.h"
#include "tests/gpu/fake_cudart.h"

#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Declared here, since tests/gpu/cuda_on_cpu.h declares them for C++. */
extern int (*cuda_on_cpu_enqueue)(void *stream, const char *label, void (*run)(void *closure), void *closure);
extern void (*cuda_on_cpu_failed)(void *stream, const char *message);

enum { DELAY_MOST_US = 2000 };

typedef struct fake_words {
    uint64_t memory_bytes;
    uint64_t delays;
    uint64_t call;
    uint64_t command;
    uint64_t error;
    bool refuse;
    char name[64];
    char count[256];
} fake_words;

static fake_words words = {.memory_bytes = UINT64_C(1) << 30};
static pthread_mutex_t mistake_lock = PTHREAD_MUTEX_INITIALIZER;
static char mistake[512]; /* error of the first kernel that failed; mistake_lock guards it */

/* Reads one word of TIDE_FAKE_CUDA. The process ends at an unknown word, before it uses CUDA. */
static void word_read(const char *word)
{
    const struct {
        const char *form;
        uint64_t *to;
    } numbers[] = {
        {"memory=%" SCNu64, &words.memory_bytes}, {"delays=%" SCNu64, &words.delays},
        {"call=%" SCNu64, &words.call},           {"command=%" SCNu64, &words.command},
        {"error=%" SCNu64, &words.error},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (sscanf(word, numbers[i].form, numbers[i].to) == 1)
            return;
    if (sscanf(word, "name=%63s", words.name) == 1 || sscanf(word, "count=%255s", words.count) == 1)
        return;
    words.refuse = strcmp(word, "refuse") == 0;
    if (words.refuse)
        return;
    fprintf(stderr, "TIDE_FAKE_CUDA: %s?\n", word);
    abort();
}

static void words_read(const char *text)
{
    char copy[1024], *rest = NULL;
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (const char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        word_read(word);
}

/* Makes the failure sticky, as on a GPU, where the context would be dead. */
static void kernel_failed(void *stream, const char *message)
{
    (void)stream;
    pthread_mutex_lock(&mistake_lock);
    if (mistake[0] == '\0')
        (void)snprintf(mistake, sizeof mistake, "%s", message);
    pthread_mutex_unlock(&mistake_lock);
    fake_cudart_break(cudaErrorLaunchFailure);
}

static void faults_arm(void)
{
    if (words.call > 0)
        fake_cudart_fail(words.name[0] != '\0' ? words.name : NULL, words.call,
                         words.error > 0 ? (int)words.error : cudaErrorUnknown, words.refuse);
    if (words.command > 0)
        fake_cudart_fail_command(words.command, words.error > 0 ? (int)words.error : cudaErrorIllegalAddress);
}

static void __attribute__((constructor)) begin(void)
{
    fake_cudart_options options = fake_cudart_defaults();
    const char *text = getenv("TIDE_FAKE_CUDA");
    if (text != NULL)
        words_read(text);
    options.memory_bytes = words.memory_bytes;
    options.delay_seed = words.delays;
    options.delay_max_us = words.delays > 0 ? DELAY_MOST_US : 0;
    fake_cudart_start(&options);
    faults_arm();
    cuda_on_cpu_enqueue = fake_cudart_enqueue;
    cuda_on_cpu_failed = kernel_failed;
    fake_cublaslt_enqueue = fake_cudart_enqueue;
}

static void counts_write(void)
{
    FILE *file = fopen(words.count, "w");
    /* The test that wants the file notices that it is missing. */
    if (file == NULL)
        return;
    fprintf(file, "calls %" PRIu64 "\ncommands %" PRIu64 "\nfailed %d\n", fake_cudart_count(NULL),
            fake_cudart_commands(), fake_cudart_has_failed());
    for (size_t i = 0; fake_cudart_called(i) != NULL; i++)
        fprintf(file, "%s %" PRIu64 "\n", fake_cudart_called(i), fake_cudart_count(fake_cudart_called(i)));
    (void)fclose(file);
}

static void __attribute__((destructor)) end(void)
{
    char text[512];
    if (words.count[0] != '\0')
        counts_write();
    if (fake_cudart_misuse(text, sizeof text) > 0)
        fprintf(stderr, "misuse of CUDA: %s\n", text);
    if (fake_cublaslt_misuse(text, sizeof text) > 0)
        fprintf(stderr, "misuse of cuBLASLt: %s\n", text);
    if (fake_cudart_live(text, sizeof text) > 0)
        fprintf(stderr, "left behind: %s\n", text);
    if (mistake[0] != '\0')
        fprintf(stderr, "a kernel's mistake: %s\n", mistake);
}
