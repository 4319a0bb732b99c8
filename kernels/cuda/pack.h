/* A pack: 16 bytes of successive elements of a row, the unit in which kernels over rows and columns read and
 * write.
 *
 * Element i of a row always belongs to pack i / per_16_bytes, and a kernel distributes packs, not elements,
 * over threads. The order of its sums is therefore the same whether a pack is accessed at once or, because of
 * an odd row length, element by element. The template parameter WHOLE says which; pack_whole_rows decides at
 * launch. If a row's last pack is incomplete, the missing elements are read as zeros and not written.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_PACK_H
#define TIDEPOOL_KERNELS_CUDA_PACK_H

#include "kernels/cuda/launch.h"

/* Do all rows of `width` elements, one after another from `base` on, consist of whole packs at multiples of
 * 16 bytes? */
template <typename T> static inline bool pack_whole_rows(const void *base, size_t width)
{
    return (uintptr_t)base % 16 == 0 && width % T::per_16_bytes == 0;
}

/* The number of packs in a row of `width` elements. */
template <typename T> static __host__ __device__ __forceinline__ unsigned pack_count(size_t width)
{
    return (unsigned)((width + T::per_16_bytes - 1) / T::per_16_bytes);
}

/* Load the pack at `begin` of `row`: the elements before `end`, zeros for the others. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ tide_cuda_vector<T> pack_load(const typename T::stored *row, size_t begin,
                                                                size_t end)
{
    tide_cuda_vector<T> pack = {};
    if (WHOLE) {
        if (begin < end)
            pack = *(const tide_cuda_vector<T> *)(row + begin);
    } else {
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            if (begin + e < end)
                pack.element[e] = row[begin + e];
    }
    return pack;
}

/* Store the pack at `begin` of `row`, without the elements from `end` on. For a whole pack the code names the
 * instruction, since nvcc 13.0 makes four stores of 4 bytes of the assignments in swiglu and the norms.
 * (CUDA's __stwb would be a STG.E.128.STRONG.SM instead of the weak store.) */
template <typename T, bool WHOLE>
static __device__ __forceinline__ void pack_store(typename T::stored *row, size_t begin, size_t end,
                                                  const tide_cuda_vector<T> &pack)
{
    if (WHOLE) {
        if (begin < end) {
#if defined(__CUDA_ARCH__)
            uint4 words;
            memcpy(&words, &pack, sizeof words);
            asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(row + begin), "r"(words.x),
                         "r"(words.y), "r"(words.z), "r"(words.w)
                         : "memory");
#else
            *(tide_cuda_vector<T> *)(row + begin) = pack;
#endif
        }
    } else {
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            if (begin + e < end)
                row[begin + e] = pack.element[e];
    }
}

/* Load a pack like pack_load, but as four words. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ uint4 pack_words(const typename T::stored *row, size_t begin, size_t end)
{
    uint4 words = {};
    if (WHOLE) {
        if (begin < end)
            words = *(const uint4 *)(row + begin);
    } else {
        const tide_cuda_vector<T> pack = pack_load<T, WHOLE>(row, begin, end);
        memcpy(&words, &pack, sizeof words);
    }
    return words;
}

/* Convert a pack's 16 bytes to fp32 numbers, and numbers to a pack. For bf16 the GPU converts a word, two
 * elements, at a time. NaN payloads are not kept. */
template <typename T> static __device__ __forceinline__ void pack_values(const uint4 &words, float *values)
{
    tide_cuda_vector<T> pack;
    memcpy(&pack, &words, sizeof pack);
    for (unsigned e = 0; e < T::per_16_bytes; e++)
        values[e] = T::load(pack.element[e]);
}
template <typename T>
static __device__ __forceinline__ tide_cuda_vector<T> pack_of_values(const float *values)
{
    tide_cuda_vector<T> pack;
    for (unsigned e = 0; e < T::per_16_bytes; e++)
        pack.element[e] = T::store(values[e]);
    return pack;
}
#if defined(__CUDA_ARCH__)
template <> __device__ __forceinline__ void pack_values<tide_cuda_bf16>(const uint4 &words, float *values)
{
    const uint32_t pairs[] = {words.x, words.y, words.z, words.w};
    for (unsigned i = 0; i < 4; i++) {
        values[2 * i] = __uint_as_float(pairs[i] << 16);
        values[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
}
template <>
__device__ __forceinline__ tide_cuda_vector<tide_cuda_bf16>
pack_of_values<tide_cuda_bf16>(const float *values)
{
    uint32_t words[4];
    for (unsigned i = 0; i < 4; i++)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words[i]) : "f"(values[2 * i + 1]), "f"(values[2 * i]));
    tide_cuda_vector<tide_cuda_bf16> pack;
    memcpy(&pack, words, sizeof words);
    return pack;
}
#endif

/* sums[e] += each element of the pack. */
template <typename T> static __device__ __forceinline__ void pack_add(float *sums, const uint4 &words)
{
    float values[T::per_16_bytes];
    pack_values<T>(words, values);
    for (unsigned e = 0; e < T::per_16_bytes; e++)
        sums[e] += values[e];
}

/* row[begin + e] += sums[e] for every element e of a pack of T. Since `row` is fp32, these are two packs
 * in it if T has 16 bits. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ void pack_accumulate(float *row, size_t begin, size_t end,
                                                       const float *sums)
{
    for (unsigned part = 0; part < T::per_16_bytes; part += tide_cuda_fp32::per_16_bytes) {
        tide_cuda_vector<tide_cuda_fp32> total = pack_load<tide_cuda_fp32, WHOLE>(row, begin + part, end);
        for (unsigned e = 0; e < tide_cuda_fp32::per_16_bytes; e++)
            total.element[e] += sums[part + e];
        pack_store<tide_cuda_fp32, WHOLE>(row, begin + part, end, total);
    }
}

#endif
