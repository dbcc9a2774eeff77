/* Compiler, memory and error codes, for all libraries of equipoise. */
#ifndef EQUIPOISE_PLATFORM_H
#define EQUIPOISE_PLATFORM_H

#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#if !defined(__GNUC__)
#error "needs the vector extensions of GCC and Clang; without this library equipoise uses torch"
#endif

#define EXPORT __attribute__((visibility("default")))
#define ALIGNED __attribute__((aligned(64)))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define PREFETCH(address) __builtin_prefetch(address, 0, 2)
#define PREFETCH_L1(address) __builtin_prefetch(address, 0, 3)

/* Codes that a function returns instead of a result. */
#define NO_MEMORY (-1)
#define OUT_OF_RANGE (-2) /* an argument beyond a limit, or an index outside of its array */

/* Bytes of a huge page. Larger buffers are placed in huge pages: the rows of a strip are read in
 * any order, and in normal pages each of 10,000 rows would need its own TLB entry. */
#define HUGE_PAGE_BYTES (2 << 20)

static void *allocate(int64_t size) {
    void *memory = NULL;
    size_t alignment = size < HUGE_PAGE_BYTES ? 64 : HUGE_PAGE_BYTES;
    if (posix_memalign(&memory, alignment, (size_t)size + 64)) return NULL;
#ifdef MADV_HUGEPAGE
    if (alignment == HUGE_PAGE_BYTES) madvise(memory, (size_t)size, MADV_HUGEPAGE);
#endif
    return memory;
}

#endif
