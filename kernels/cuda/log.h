/* What the GPU's side tells on standard error, when it is asked to: TIDEPOOL_LOG in the environment, a list of topics with
 * commas between them, as NCCL_DEBUG is. Without it the library is silent.
 *
 *   matmul   a line for each shape that is prepared: the product, and which of cuBLASLt's candidates it takes
 *
 * A line begins with "tidepool: " and the topic. The variable is read once, when something could be told for the first time;
 * a word in it that is no topic gets one line then, which names those there are.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_LOG_H
#define TIDEPOOL_KERNELS_CUDA_LOG_H

#include <stdbool.h>

typedef enum tide_cuda_log_topic { TIDE_CUDA_LOG_MATMUL, TIDE_CUDA_LOG_TOPICS } tide_cuda_log_topic;

/* Was it asked for? Any thread. */
bool tide_cuda_log_wants(tide_cuda_log_topic topic);

/* One line, printf's, without its end; nothing if it was not asked for. Lines of several threads do not mix. */
void tide_cuda_log(tide_cuda_log_topic topic, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
