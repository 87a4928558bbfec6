/* image.c - contract in image.h.
 *
 *   list what is in memory (maps, pagemap) ─▶ for each: write it into a memfd, map that over it ─▶ gather in huge pages ─▶ seal
 *
 * What is between a write and its mapping may not be touched: no allocation, no stdio. */
#include "image.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#define RUNS_MAX     4096
#define HUGE_BYTES   ((uintptr_t)2 << 20)
/* What lies untouched between two runs, and is not worth a mapping of its own. */
#define GAP_BYTES    HUGE_BYTES
/* In memory, or swapped out: Documentation/admin-guide/mm/pagemap.rst. */
#define PAGE_PRESENT (UINT64_C(3) << 62)

static struct run {
    uintptr_t start, end;
    int protection;
    off_t place; /* in the file */
} runs[RUNS_MAX];
static size_t run_count;

struct mapping {
    uintptr_t start, end;
    unsigned long inode;
    char mode[5];
    char name[4096];
};

/* ---- what there is ---- */

static void add_run(uintptr_t start, uintptr_t end, const char *mode)
{
    if (end > start && run_count < RUNS_MAX)
        runs[run_count++] =
            (struct run){ .start = start,
                          .end = end,
                          .protection = PROT_READ | (mode[1] == 'w' ? PROT_WRITE : 0) |
                                        (mode[2] == 'x' ? PROT_EXEC : 0) };
}

/* The parts of a mapping that are in memory; all of it where that spares a mapping. */
static int add_parts(int pagemap, const struct mapping *mapping)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uint64_t entries[512];
    uintptr_t start = mapping->start, end = 0;

    for (uintptr_t at = mapping->start; at < mapping->end;) {
        uintptr_t pages = (mapping->end - at) / page;
        size_t want = (pages < 512 ? pages : 512) * sizeof *entries;
        ssize_t n = pread(pagemap, entries, want, (off_t)(at / page * sizeof *entries));
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        for (size_t i = 0; i < (size_t)n / sizeof *entries; i++, at += page) {
            if ((entries[i] & PAGE_PRESENT) == 0)
                continue;
            if (at - (end != 0 ? end : start) > GAP_BYTES) {
                add_run(start, end, mapping->mode);
                start = at;
            }
            end = at + page;
        }
    }
    if (end != 0 && mapping->end - end <= GAP_BYTES)
        end = mapping->end;
    add_run(start, end, mapping->mode);
    return 0;
}

/* Anonymous, and not what the kernel and the C library write into as they please: this thread's own variables. */
static bool is_memory(const struct mapping *mapping)
{
    uintptr_t own = (uintptr_t)&errno;

    return (own < mapping->start || own >= mapping->end) && mapping->mode[0] == 'r' &&
           mapping->mode[3] == 'p' && mapping->inode == 0 &&
           (mapping->name[0] == '\0' || strcmp(mapping->name, "[heap]") == 0);
}

/* Node's own instructions: the largest of what copies read. */
static bool is_program(const struct mapping *mapping, const char *program)
{
    return strcmp(mapping->mode, "r-xp") == 0 && strcmp(mapping->name, program) == 0;
}

static int list_runs(void)
{
    char line[4096], program[4096] = "";
    FILE *file = fopen("/proc/self/maps", "re");
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    int r = file == NULL || pagemap < 0 ? -errno : 0;

    (void)!readlink("/proc/self/exe", program, sizeof program - 1);
    while (r == 0 && fgets(line, sizeof line, file) != NULL) {
        struct mapping mapping = { .name = "" };
        if (sscanf(line, "%lx-%lx %4s %*s %*s %lu %4095[^\n]", &mapping.start, &mapping.end,
                   mapping.mode, &mapping.inode, mapping.name) < 4)
            continue;
        if (is_memory(&mapping))
            r = add_parts(pagemap, &mapping);
        else if (is_program(&mapping, program))
            add_run(mapping.start, mapping.end, mapping.mode);
    }
    if (file != NULL)
        (void)fclose(file);
    if (pagemap >= 0)
        (void)close(pagemap);
    return r;
}

/* ---- the file ---- */

static uintptr_t round_up(uintptr_t value)
{
    return (value + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
}

/* Where in the file each run goes: as far from the last one as in memory, so that the kernel makes neighbours one mapping, and can map
 * them by huge pages.  Returns the file's size. */
static off_t place_runs(void)
{
    uintptr_t place = 0;

    for (size_t i = 0; i < run_count; i++) {
        uintptr_t gap = i == 0 ? GAP_BYTES + 1 : runs[i].start - runs[i - 1].end;
        place = gap <= GAP_BYTES ? place + gap : round_up(place) + runs[i].start % HUGE_BYTES;
        runs[i].place = (off_t)place;
        place += runs[i].end - runs[i].start;
    }
    return (off_t)round_up(place);
}

static bool write_run(int fd, const struct run *run)
{
    for (size_t done = 0, len = run->end - run->start; done < len;) {
        ssize_t n =
            pwrite(fd, (const void *)(run->start + done), len - done, run->place + (off_t)done);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

/* One page of page tables for 512 pages, and one step where they are taken up or given back.  A kernel that cannot leaves them small. */
static void gather(int fd, size_t len)
{
    char *space = mmap(NULL, len + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (space == MAP_FAILED)
        return;
    char *start = space + (HUGE_BYTES - (uintptr_t)space % HUGE_BYTES) % HUGE_BYTES;
    if (mmap(start, len, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED)
        for (size_t i = 0; i < run_count; i++) {
            uintptr_t first = (uintptr_t)runs[i].place / HUGE_BYTES * HUGE_BYTES;
            uintptr_t end = round_up((uintptr_t)runs[i].place + (runs[i].end - runs[i].start));
            if (runs[i].end - runs[i].start < HUGE_BYTES / 2)
                continue; /* most of a huge page would be for nothing */
            (void)madvise(start + first, end - first, MADV_COLLAPSE);
        }
    (void)munmap(space, len + HUGE_BYTES);
}

/* A security module may have no leave for it.  Asked before anything is at stake. */
static bool may_run_code_of(int fd)
{
    void *page = mmap(NULL, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);

    return page != MAP_FAILED && munmap(page, 1) == 0;
}

int64_t image_take(void)
{
    int64_t bytes = 0;

    /* RLIMIT_FSIZE: the write fails, and memory stays where it is. */
    (void)signal(SIGXFSZ, SIG_IGN);
    if (list_runs() < 0)
        return 0;
    int fd = memfd_create("python", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return 0;
    off_t size = place_runs();
    if (ftruncate(fd, size) < 0)
        size = 0;
    bool code = may_run_code_of(fd);
    for (size_t i = 0; i < run_count && size > 0 && write_run(fd, &runs[i]); i++) {
        size_t len = runs[i].end - runs[i].start;
        if (!code && (runs[i].protection & PROT_EXEC) != 0)
            continue;
        if (mmap((void *)runs[i].start, len, runs[i].protection,
                 MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, runs[i].place) == MAP_FAILED)
            abort(); /* before Linux 6.12 nothing may be left in its place */
        bytes += (int64_t)len;
    }
    gather(fd, (size_t)size);
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    (void)close(fd);
    return bytes;
}
