/* CUDA's functions for arithmetic, bits and atomics on the CPU; a part of cuda_on_cpu.h.
 *
 * Here are those that the kernels use. Functions that CUDA approximates (__expf) are as accurate here as the
 * C library's, so a test's tolerance must allow for the GPU's error. */
#ifndef TIDEPOOL_TESTS_CUDA_ON_CPU_WORDS_H
#define TIDEPOOL_TESTS_CUDA_ON_CPU_WORDS_H

/* ---- bits ---- */

template <typename To, typename From> inline To cuda_on_cpu_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

inline unsigned __float_as_uint(float x)
{
    return cuda_on_cpu_bits<unsigned>(x);
}
inline float __uint_as_float(unsigned x)
{
    return cuda_on_cpu_bits<float>(x);
}

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

/* ---- arithmetic ---- */

inline float __expf(float x)
{
    return expf(x);
}
inline float __fdividef(float a, float b)
{
    return a / b;
}

template <typename T> inline T min(T a, T b)
{
    return b < a ? b : a;
}

/* ---- atomics, on integers in global and in shared memory; each returns the old value ---- */

template <typename T> inline T *cuda_on_cpu_atomic_place(T *place)
{
    static_assert(std::is_integral<T>::value && sizeof(T) >= 4, "atomics on integers of 4 or 8 bytes only");
    return place;
}
template <typename T> inline T *cuda_on_cpu_atomic_place(const cuda_on_cpu_shared<T> &place)
{
    static_assert(std::is_integral<T>::value && sizeof(T) >= 4, "atomics on integers of 4 or 8 bytes only");
    return reinterpret_cast<T *>(cuda_on_cpu_element_use(place.array, place.offset, CUDA_ON_CPU_ATOMIC));
}

template <typename P> inline auto atomicAdd(P place, decltype(*cuda_on_cpu_atomic_place(place) + 0) value)
{
    return __atomic_fetch_add(cuda_on_cpu_atomic_place(place), value, __ATOMIC_SEQ_CST);
}
template <typename P> inline auto atomicMax(P place, decltype(*cuda_on_cpu_atomic_place(place) + 0) value)
{
    auto *at = cuda_on_cpu_atomic_place(place);
    auto old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    while (old < value &&
           !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
    return old;
}

#endif
