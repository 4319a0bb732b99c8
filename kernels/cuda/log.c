/* Log lines on standard error (log.h). */
#include "kernels/cuda/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 512 };

static const char *const names[TIDE_CUDA_LOG_TOPICS] = {[TIDE_CUDA_LOG_MATMUL] = "matmul"};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool wanted[TIDE_CUDA_LOG_TOPICS]; /* written once, by `once` */

static void unknown_tell(const char *word, int length)
{
    char list[LINE_BYTES] = "";
    for (int i = 0; i < TIDE_CUDA_LOG_TOPICS; i++) {
        const size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : ", ", names[i]);
    }
    fprintf(stderr, "tidepool: TIDEPOOL_LOG knows no topic '%.*s', but: %s\n", length, word, list);
}

static void word_take(const char *word, int length)
{
    for (int i = 0; i < TIDE_CUDA_LOG_TOPICS; i++)
        if (strlen(names[i]) == (size_t)length && memcmp(names[i], word, (size_t)length) == 0) {
            wanted[i] = true;
            return;
        }
    unknown_tell(word, length);
}

static void topics_read(void)
{
    const char *text = getenv("TIDEPOOL_LOG");
    while (text != NULL && *text != '\0') {
        const size_t length = strcspn(text, ",");
        if (length > 0)
            word_take(text, (int)length);
        text += length + (text[length] == ',');
    }
}

bool tide_cuda_log_wants(tide_cuda_log_topic topic)
{
    pthread_once(&once, topics_read);
    return wanted[topic];
}

void tide_cuda_log(tide_cuda_log_topic topic, const char *format, ...)
{
    char text[LINE_BYTES];
    va_list arguments;
    if (!tide_cuda_log_wants(topic))
        return;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "tidepool: %s: %s\n", names[topic], text);
}
