/* inspect.c - contract in inspect.h. */
#include "pool/inspect.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <xxhash.h>

#include "base/units.h"
#include "os/proc.h"

#define TREE_MAX      ((size_t)4096)      /* processes that are followed */
#define GROWTH_FLOOR  ((int64_t)64 << 20) /* memory that any library may take at its first use */
#define GROWTH_FACTOR 4

/* A small file of /proc/PID.  Bytes (text is terminated), or -errno. */
static ssize_t read_proc(pid_t pid, const char *file, char *text, size_t size)
{
    char path[64];
    size_t len = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    SCOPED_FD fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    while (len + 1 < size) {
        ssize_t n = RETRY_EINTR(read(fd, text + len, size - 1 - len));
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        len += (size_t)n;
    }
    text[len] = '\0';
    return (ssize_t)len;
}

static int64_t resident(pid_t pid)
{
    char text[128];
    long long pages = 0;

    if (read_proc(pid, "statm", text, sizeof text) < 0 || sscanf(text, "%*d %lld", &pages) != 1)
        return 0;
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* Copies of one forked process share most of their pages: their sum would be a multiple of the truth. */
static int64_t proportional(pid_t pid)
{
    char text[2048];
    long long kib = 0;

    if (read_proc(pid, "smaps_rollup", text, sizeof text) < 0)
        return resident(pid);
    const char *line = strstr(text, "\nPss:");
    return line != NULL && sscanf(line, "\nPss: %lld", &kib) == 1 ? (int64_t)kib * 1024
                                                                  : resident(pid);
}

static int look_at_tree(pid_t pid, struct inspection *ret)
{
    struct proc_pids tree = { 0 };
    int r = proc_pids_add(&tree, pid);

    for (size_t i = 0; r == 0 && i < tree.count && tree.count < TREE_MAX; i++)
        r = proc_children(tree.pid[i], &tree);
    if (r == 0) {
        ret->processes = tree.count - 1;
        for (size_t i = 0; i < tree.count; i++)
            ret->memory_bytes += tree.count == 1 ? resident(pid) : proportional(tree.pid[i]);
    }
    proc_pids_done(&tree);
    return r;
}

static int look_at_fds(pid_t pid, struct inspection *ret)
{
    char path[64];
    struct dirent *entry;

    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return -errno;
    while ((entry = readdir(dir)) != NULL) {
        char *end;
        unsigned long fd = strtoul(entry->d_name, &end, 10);
        if (end == entry->d_name)
            continue;
        ret->fds++;
        if (fd < INSPECT_FDS)
            ret->fd_bits[fd / 64] |= UINT64_C(1) << (fd % 64);
    }
    (void)closedir(dir);
    return 0;
}

static int look_deep(pid_t pid, struct inspection *ret)
{
    char path[64], env[32768];

    ret->deep = true;
    int r = look_at_fds(pid, ret);
    if (r < 0)
        return r;
    (void)snprintf(path, sizeof path, "/proc/%d/cwd", (int)pid);
    ssize_t n = readlink(path, ret->cwd, sizeof ret->cwd - 1);
    if (n < 0)
        return -errno;
    ret->cwd[n] = '\0';
    n = read_proc(pid, "environ", env, sizeof env);
    if (n < 0)
        return (int)n;
    ret->env_hash = XXH3_64bits(env, (size_t)n);
    return 0;
}

/* The first descriptor that base did not have, and what it is. */
static void name_new_fd(pid_t pid, const struct inspection *base, struct inspection *ret)
{
    char path[64], target[100] = "?";

    for (unsigned fd = 0; fd < INSPECT_FDS; fd++) {
        if (((ret->fd_bits[fd / 64] & ~base->fd_bits[fd / 64]) >> (fd % 64) & 1) == 0)
            continue;
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%u", (int)pid, fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        (void)snprintf(ret->drift, sizeof ret->drift,
                       "%zu descriptors, %zu after HELLO; %u is '%s'", ret->fds, base->fds, fd,
                       target);
        return;
    }
    (void)snprintf(ret->drift, sizeof ret->drift, "%zu descriptors, %zu after HELLO", ret->fds,
                   base->fds);
}

static void compare(pid_t pid, const struct inspection *base, struct inspection *ret)
{
    char now[UNITS_TEXT_SIZE], then[UNITS_TEXT_SIZE];

    if (ret->fds > base->fds)
        name_new_fd(pid, base, ret);
    else if (ret->processes > base->processes)
        (void)snprintf(ret->drift, sizeof ret->drift, "%zu processes below it, %zu after HELLO",
                       ret->processes, base->processes);
    else if (!str_eq(ret->cwd, base->cwd))
        (void)snprintf(ret->drift, sizeof ret->drift, "working directory '%.150s'", ret->cwd);
    else if (ret->env_hash != base->env_hash)
        (void)snprintf(ret->drift, sizeof ret->drift, "its environment was written to");
    else if (ret->memory_bytes > base->memory_bytes * GROWTH_FACTOR &&
             ret->memory_bytes - base->memory_bytes > GROWTH_FLOOR)
        (void)snprintf(ret->drift, sizeof ret->drift, "memory %s, %s after HELLO",
                       units_print_size(ret->memory_bytes, now),
                       units_print_size(base->memory_bytes, then));
}

int inspect(pid_t pid, bool deep, const struct inspection *base, struct inspection *ret)
{
    *ret = (struct inspection){ 0 };

    int r = look_at_tree(pid, ret);
    if (r == 0 && deep)
        r = look_deep(pid, ret);
    if (r == 0 && deep && base != NULL && base->deep)
        compare(pid, base, ret);
    return r;
}
