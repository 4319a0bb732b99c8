/* CUDA's functions for arithmetic, bits and memory on the CPU; a part of cuda_on_cpu.h.
 *
 * Functions that CUDA approximates (__expf, __logf, rsqrtf, ...) are as accurate here as the C library's,
 * so a test's tolerance must allow for the GPU's error. Functions with a stated rounding (__fmul_rn,
 * __fdiv_rn, ...) are exact: the build compiles the tests with contraction off. */
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
inline int __float_as_int(float x)
{
    return cuda_on_cpu_bits<int>(x);
}
inline float __uint_as_float(unsigned x)
{
    return cuda_on_cpu_bits<float>(x);
}
inline float __int_as_float(int x)
{
    return cuda_on_cpu_bits<float>(x);
}
inline long long __double_as_longlong(double x)
{
    return cuda_on_cpu_bits<long long>(x);
}
inline double __longlong_as_double(long long x)
{
    return cuda_on_cpu_bits<double>(x);
}

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}

/* ---- arithmetic ---- */

inline float __expf(float x)
{
    return expf(x);
}
inline float __exp2f(float x)
{
    return exp2f(x);
}
inline float __logf(float x)
{
    return logf(x);
}
inline float __log2f(float x)
{
    return log2f(x);
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}

inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
inline double __dadd_rn(double a, double b)
{
    return a + b;
}
inline double __dmul_rn(double a, double b)
{
    return a * b;
}
inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}

#define CUDA_ON_CPU_EXTREMES(type)                                                                           \
    inline type min(type a, type b)                                                                          \
    {                                                                                                        \
        return b < a ? b : a;                                                                                \
    }                                                                                                        \
    inline type max(type a, type b)                                                                          \
    {                                                                                                        \
        return a < b ? b : a;                                                                                \
    }
CUDA_ON_CPU_EXTREMES(int)
CUDA_ON_CPU_EXTREMES(unsigned)
CUDA_ON_CPU_EXTREMES(long)
CUDA_ON_CPU_EXTREMES(unsigned long)
CUDA_ON_CPU_EXTREMES(long long)
CUDA_ON_CPU_EXTREMES(unsigned long long)
inline float min(float a, float b)
{
    return fminf(a, b);
}
inline float max(float a, float b)
{
    return fmaxf(a, b);
}
inline double min(double a, double b)
{
    return fmin(a, b);
}
inline double max(double a, double b)
{
    return fmax(a, b);
}

/* ---- memory ---- */

template <typename T> inline T __ldg(const T *from)
{
    return *from;
}
template <typename T> inline T __ldcs(const T *from)
{
    return *from;
}
template <typename T> inline T __ldcg(const T *from)
{
    return *from;
}
template <typename T> inline void __stcs(T *to, T value)
{
    *to = value;
}
template <typename T> inline void __stcg(T *to, T value)
{
    *to = value;
}

inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
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

template <typename P> inline auto atomicExch(P place, decltype(*cuda_on_cpu_atomic_place(place) + 0) value)
{
    return __atomic_exchange_n(cuda_on_cpu_atomic_place(place), value, __ATOMIC_SEQ_CST);
}
template <typename P> inline auto atomicAdd(P place, decltype(*cuda_on_cpu_atomic_place(place) + 0) value)
{
    return __atomic_fetch_add(cuda_on_cpu_atomic_place(place), value, __ATOMIC_SEQ_CST);
}
template <typename P> inline auto atomicOr(P place, decltype(*cuda_on_cpu_atomic_place(place) + 0) value)
{
    return __atomic_fetch_or(cuda_on_cpu_atomic_place(place), value, __ATOMIC_SEQ_CST);
}
template <typename P> inline auto atomicAnd(P place, decltype(*cuda_on_cpu_atomic_place(place) + 0) value)
{
    return __atomic_fetch_and(cuda_on_cpu_atomic_place(place), value, __ATOMIC_SEQ_CST);
}
template <typename P>
inline auto atomicCAS(P place, decltype(*cuda_on_cpu_atomic_place(place) + 0) expected,
                      decltype(*cuda_on_cpu_atomic_place(place) + 0) value)
{
    __atomic_compare_exchange_n(cuda_on_cpu_atomic_place(place), &expected, value, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return expected;
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
template <typename P> inline auto atomicMin(P place, decltype(*cuda_on_cpu_atomic_place(place) + 0) value)
{
    auto *at = cuda_on_cpu_atomic_place(place);
    auto old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    while (value < old &&
           !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
    return old;
}

#endif
