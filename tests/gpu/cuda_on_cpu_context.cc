#include "tests/gpu/cuda_on_cpu_context.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

enum { STACK_BYTES = 256 << 10 };

#if defined(__x86_64__)
/* Saves the registers that a call preserves on this stack, stores the stack pointer in *stopped and
 * continues where the other stack stopped. */
extern "C" void cuda_on_cpu_swap(void **stopped, void *other);
asm(".text\n.p2align 4\n.globl cuda_on_cpu_swap\n.hidden cuda_on_cpu_swap\n.type cuda_on_cpu_swap,@function\n"
    "cuda_on_cpu_swap:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
    ".size cuda_on_cpu_swap, . - cuda_on_cpu_swap\n");
enum { SAVED_WORDS = 6, RETURN_WORD = 6 };
#elif defined(__aarch64__)
extern "C" void cuda_on_cpu_swap(void **stopped, void *other);
asm(".text\n.p2align 4\n.globl cuda_on_cpu_swap\n.hidden cuda_on_cpu_swap\n.type cuda_on_cpu_swap,@function\n"
    "cuda_on_cpu_swap:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, "
    "#48]\n"
    "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, "
    "#144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, "
    "#48]\n"
    "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, "
    "#144]\n"
    "  add sp, sp, #160\n  ret\n"
    ".size cuda_on_cpu_swap, . - cuda_on_cpu_swap\n");
enum { SAVED_WORDS = 20, RETURN_WORD = 11 };
#endif

void cuda_on_cpu_context_begin_at(cuda_on_cpu_context *made, void (*entry)(), size_t colour)
{
#if defined(__SANITIZE_ADDRESS__)
    /* Frames that were abandoned left poison there. */
    __asan_unpoison_memory_region(made->stack, made->stack_bytes);
    made->fake_stack = nullptr;
#endif
    const size_t bytes = (made->stack_bytes - colour) & ~(size_t)15;
#if defined(__x86_64__) || defined(__aarch64__)
    /* Lays out the stack as if the context had called cuda_on_cpu_swap(): the saved registers, the return
     * address, and above it the alignment that a call leaves. */
    void **top = (void **)(void *)(made->stack + bytes) - 4;
    void **saved = top - SAVED_WORDS;
    memset((void *)saved, 0, (SAVED_WORDS + 4) * sizeof *saved);
    saved[RETURN_WORD] = (void *)entry;
    made->stopped = saved;
#else
    getcontext(&made->stopped);
    made->stopped.uc_stack.ss_sp = made->stack;
    made->stopped.uc_stack.ss_size = bytes;
    made->stopped.uc_link = nullptr;
    makecontext(&made->stopped, entry, 0);
#endif
}

void cuda_on_cpu_context_arrived(cuda_on_cpu_context *self, cuda_on_cpu_context *from)
{
#if defined(__SANITIZE_ADDRESS__)
    const void *stack = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(self->fake_stack, &stack, &bytes);
    if (from && !from->stack) {
        from->stack = (char *)const_cast<void *>(stack);
        from->stack_bytes = bytes;
    }
#endif
    (void)self, (void)from;
}

void cuda_on_cpu_context_switch(cuda_on_cpu_context *from, cuda_on_cpu_context *to, bool forget)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(forget ? nullptr : &from->fake_stack, to->stack, to->stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    (void)forget;
#if defined(__x86_64__) || defined(__aarch64__)
    cuda_on_cpu_swap(&from->stopped, to->stopped);
#else
    swapcontext(&from->stopped, &to->stopped);
#endif
    cuda_on_cpu_context_arrived(from, nullptr);
}

void cuda_on_cpu_context_of_caller(cuda_on_cpu_context *made)
{
    *made = cuda_on_cpu_context();
#if defined(__SANITIZE_THREAD__)
    made->tsan = __tsan_get_current_fiber();
#endif
}

void cuda_on_cpu_context_make(cuda_on_cpu_context *made, void (*entry)(), size_t colour)
{
    const size_t guard = (size_t)sysconf(_SC_PAGESIZE);
    char *place = (char *)mmap(nullptr, guard + STACK_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED || mprotect(place, guard, PROT_NONE) != 0) {
        perror("cuda_on_cpu: a fiber's stack");
        abort();
    }
    *made = cuda_on_cpu_context();
    made->stack = place + guard;
    made->stack_bytes = STACK_BYTES;
#if defined(__SANITIZE_THREAD__)
    made->tsan = __tsan_create_fiber(0);
#endif
    cuda_on_cpu_context_begin_at(made, entry, colour);
}

void cuda_on_cpu_context_free(cuda_on_cpu_context *freed)
{
    const size_t guard = (size_t)sysconf(_SC_PAGESIZE);
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(freed->stack, freed->stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(freed->tsan);
#endif
    munmap(freed->stack - guard, freed->stack_bytes + guard);
}
