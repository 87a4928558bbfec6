/* macro.h - the standard headers and the few macros that every file uses. */
#ifndef BASE_MACRO_H
#define BASE_MACRO_H

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h> /* its MIN and MAX evaluate twice: ours replace them */
#include <unistd.h>

#undef MIN
#undef MAX

#define MUST_CHECK             __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* Each argument is evaluated once; calls nest (every use has names of its own). */
#define GLUE_(a, b) a##b
#define GLUE(a, b)  GLUE_(a, b)
#define PICK_(op, a, b, x, y)  \
    ({                         \
        __typeof__(a) x = (a); \
        __typeof__(b) y = (b); \
        x op y ? x : y;        \
    })
#define PICK(op, a, b, n)               PICK_(op, a, b, GLUE(a_, n), GLUE(b_, n))
#define MIN(a, b)                       PICK(<, a, b, __COUNTER__)
#define MAX(a, b)                       PICK(>, a, b, __COUNTER__)
#define ARRAY_LEN(a)                    (sizeof(a) / sizeof((a)[0]))
#define CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* Repeat a system call while a signal handler interrupts it. */
#define RETRY_EINTR(call)                   \
    ({                                      \
        __typeof__(call) r_;                \
        do                                  \
            r_ = (call);                    \
        while (r_ == -1 && errno == EINTR); \
        r_;                                 \
    })

/* `SCOPED(ring_free) struct ring *ring = NULL;` runs ring_free(ring) at the end of the scope.
 * DEFINE_CLEANUP(struct ring *, ring_free) stands once, behind ring_free()'s declaration. */
#define DEFINE_CLEANUP(type, func)              \
    static inline void func##_cleanup_(type *p) \
    {                                           \
        (void)func(*p);                         \
    }
#define SCOPED(func) __attribute__((cleanup(func##_cleanup_), unused))

/* Hand a SCOPED pointer over: yields it and leaves NULL behind. */
#define STEAL(ptr)                  \
    ({                              \
        __typeof__(ptr) p_ = (ptr); \
        (ptr) = NULL;               \
        p_;                         \
    })

/* Hand a descriptor over: yields it and leaves -1 behind. */
#define STEAL_FD(fd)    \
    ({                  \
        int fd_ = (fd); \
        (fd) = -1;      \
        fd_;            \
    })

static inline void close_cleanup_(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
}
#define SCOPED_FD __attribute__((cleanup(close_cleanup_), unused)) int
static inline void free_cleanup_(void *p)
{
    free(*(void **)p);
}
#define SCOPED_FREE __attribute__((cleanup(free_cleanup_), unused))

/* A bug of ours: say where and abort.  On in release builds too. */
_Noreturn void bug_at(const char *file, int line, const char *what);
#define BUG_ON(cond)                           \
    do {                                       \
        if (__builtin_expect(!!(cond), 0))     \
            bug_at(__FILE__, __LINE__, #cond); \
    } while (0)
#define BUG(what) bug_at(__FILE__, __LINE__, (what))

/* Every heap object starts with `uint32_t magic`; a stale or foreign pointer trips OBJ_CHECK. */
#define OBJ_CHECK(obj, MAGIC) BUG_ON((obj) == NULL || (obj)->magic != (MAGIC))
#define OBJ_FINI(obj)         (*(volatile uint32_t *)&(obj)->magic = 0)

static inline bool is_pow2(size_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}
static inline bool str_eq(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

#endif
