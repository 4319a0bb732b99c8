/* A block's shared arrays. The first block that uses an array allocates it. The emulation keeps the array for
 * the following blocks and sets all its bits before each of them uses it, so that no block sees an earlier
 * one's values. A block's arrays together may take the 48 KB that a GPU gives without dynamic shared memory.
 * cuda_on_cpu.h checks each access; this file has the messages. */
#include "tests/gpu/cuda_on_cpu_machine.h"

#include <cstdio>
#include <cstdlib>

using namespace cuda_on_cpu;

/* CUDA's limit for a block's arrays whose size is fixed when the kernel is compiled. */
enum { SHARED_MAX_BYTES = 48 << 10 };

void cuda_on_cpu::arrays_free(machine *m)
{
    for (cuda_on_cpu_array *array = m->arrays; array;) {
        cuda_on_cpu_array *next = array->next;
        free(array->data);
        free(array->uses);
        delete array;
        array = next;
    }
}

size_t cuda_on_cpu_asked_bytes(void)
{
    return this_machine->launch->asked_bytes;
}

cuda_on_cpu_array *cuda_on_cpu_array_enter(cuda_on_cpu_array **place, const char *name, size_t count,
                                           size_t element_bytes, cuda_on_cpu_site site)
{
    machine *m = this_machine;
    cuda_on_cpu_array *array = *place;
    const size_t bytes = (count * element_bytes + 15) / 16 * 16;
    if (array && array->block == m->blocks)
        return array;
    if (!array) {
        array = new cuda_on_cpu_array();
        *array = {name, nullptr, nullptr, 0, element_bytes, 0, m->arrays};
        m->arrays = *place = array;
    }
    /* The array is new, or the launch gave another size. */
    if (array->count != count) {
        free(array->data);
        free(array->uses);
        array->data = (char *)aligned_alloc(16, bytes);
        array->uses = (cuda_on_cpu_uses *)calloc(count, sizeof(cuda_on_cpu_uses));
        array->count = count;
    }
    const size_t most = SHARED_MAX_BYTES + cuda_on_cpu_asked_bytes();
    m->shared_bytes += bytes;
    if (m->shared_bytes > most)
        cuda_on_cpu_fail(site, "the block's shared arrays need %zu bytes with %s, a block has %zu",
                         m->shared_bytes, name, most);
    if (bytes > 0)
        memset(array->data, 0xff, bytes);
    array->block = m->blocks;
    return array;
}

void cuda_on_cpu_array_fail(const cuda_on_cpu_array *array, ptrdiff_t index, const char *problem)
{
    cuda_on_cpu_fail({nullptr, 0}, "%s[%td] of %zu elements %s", array->name, index, array->count, problem);
}

void cuda_on_cpu_race(const cuda_on_cpu_array *array, ptrdiff_t index, const cuda_on_cpu_use *other,
                      bool writes, bool other_wrote)
{
    char who[64] = "threads of several warps";
    if (other->thread < CUDA_ON_CPU_LANES) {
        const uint3 thread = this_machine->thread[other->thread].index;
        snprintf(who, sizeof who, "thread (%u, %u, %u)", thread.x, thread.y, thread.z);
    } else if (other->thread < CUDA_ON_CPU_WARPS) {
        snprintf(who, sizeof who, "lanes of warp %u", other->thread - (uint32_t)CUDA_ON_CPU_LANES);
    }
    cuda_on_cpu_fail({nullptr, 0}, "race: %s %s[%td] that %s %s since the last barrier",
                     writes ? "writes" : "reads", array->name, index, who, other_wrote ? "wrote" : "read");
}
