/* The real module, device and kernels' launchers and all, on a CUDA that needs no GPU: loaded as any libtidepool_cuda.so, it
 * begins with one GPU of 1 GiB whose streams run the kernels on the CPU. When the process ends it says on stderr which of
 * CUDA's rules were broken and what was left behind.
 */
#include "tests/fake_cublaslt.h"
#include "tests/fake_cudart.h"

#include <stdio.h>

/* Of tests/cuda_on_cpu.h, which is for C++. */
extern void (*cuda_on_cpu_enqueue)(void *stream, const char *label, void (*run)(void *closure),
                                   void *closure);

static void __attribute__((constructor)) begin(void)
{
    fake_cudart_options options = fake_cudart_defaults();
    options.memory_bytes = UINT64_C(1) << 30;
    fake_cudart_start(&options);
    cuda_on_cpu_enqueue = fake_cudart_enqueue;
    fake_cublaslt_enqueue = fake_cudart_enqueue;
}

static void __attribute__((destructor)) end(void)
{
    char text[512];
    if (fake_cudart_misuse(text, sizeof text) > 0)
        fprintf(stderr, "misuse of CUDA: %s\n", text);
    if (fake_cudart_live(text, sizeof text) > 0)
        fprintf(stderr, "left behind: %s\n", text);
}
