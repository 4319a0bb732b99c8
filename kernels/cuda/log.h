/* The module's log on standard error. The environment variable TIDEPOOL_LOG lists the topics, separated by
 * commas (compare NCCL_DEBUG). Without it the module logs nothing.
 *
 *   matmul   a line for each prepared shape: the product and the chosen one of cuBLASLt's candidates
 *
 * A line begins with "tidepool: " and the topic. The module reads the variable once, when it could log for
 * the first time; if a word in it is no topic, a line then lists the topics.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_LOG_H
#define TIDEPOOL_KERNELS_CUDA_LOG_H

#include <stdbool.h>

typedef enum tide_cuda_log_topic { TIDE_CUDA_LOG_MATMUL, TIDE_CUDA_LOG_TOPICS } tide_cuda_log_topic;

/* Does TIDEPOOL_LOG contain the topic? Any thread. */
bool tide_cuda_log_wants(tide_cuda_log_topic topic);

/* Print one line if TIDEPOOL_LOG contains the topic. `format` is printf's, without the newline. Lines of
 * several threads do not mix. */
void tide_cuda_log(tide_cuda_log_topic topic, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
