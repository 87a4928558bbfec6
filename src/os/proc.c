/* proc.c - contract in proc.h. */
#include "os/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>

int proc_stat_parse(const char *text, struct proc_stat *ret)
{
    /* pid (name) state ppid pgrp session tty …; the name may contain ") R 1", so take the last parenthesis. */
    const char *tail = strrchr(text, ')');
    if (tail == NULL)
        return -EINVAL;

    struct proc_stat stat = { 0 };
    int got = sscanf(text, "%d", &stat.pid);
    got += sscanf(tail + 1,
                  " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d"
                  " %" SCNu64,
                  &stat.state, &stat.ppid, &stat.pgid, &stat.sid, &stat.threads, &stat.start_ticks);
    if (got != 7)
        return -EINVAL;

    *ret = stat;
    return 0;
}

bool proc_stat_dead(const struct proc_stat *stat)
{
    return stat->state == 'X' || (stat->state == 'Z' && stat->threads <= 1);
}

/* Read a small file below /proc; returns bytes (text is terminated) or -errno. */
static ssize_t read_small(const char *path, char *text, size_t size)
{
    SCOPED_FD fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;

    size_t len = 0;
    while (len < size - 1) {
        ssize_t n = RETRY_EINTR(read(fd, text + len, size - 1 - len));
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        len += (size_t)n;
    }
    text[len] = 0;
    return (ssize_t)len;
}

int proc_stat_read(pid_t pid, struct proc_stat *ret)
{
    char path[64], text[1024];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    ssize_t n = read_small(path, text, sizeof text);
    if (n < 0)
        return n == -ENOENT ? -ESRCH : (int)n;
    return n == 0 ? -ESRCH : proc_stat_parse(text, ret);
}

int proc_pids_add(struct proc_pids *pids, pid_t pid)
{
    if (pids->count == pids->cap) {
        size_t cap = pids->cap == 0 ? 64 : pids->cap * 2;
        pid_t *grown = realloc(pids->pid, cap * sizeof *grown);
        if (grown == NULL)
            return -ENOMEM;
        pids->pid = grown;
        pids->cap = cap;
    }
    pids->pid[pids->count++] = pid;
    return 0;
}

bool proc_pids_has(const struct proc_pids *pids, pid_t pid)
{
    for (size_t i = 0; i < pids->count; i++)
        if (pids->pid[i] == pid)
            return true;
    return false;
}

void proc_pids_done(struct proc_pids *pids)
{
    free(pids->pid);
    *pids = (struct proc_pids){ 0 };
}

/* Append the numbers that a file lists. */
static int add_numbers(FILE *file, struct proc_pids *pids)
{
    int pid, r = 0;
    while (r == 0 && fscanf(file, "%d", &pid) == 1)
        r = proc_pids_add(pids, pid);
    return r;
}

/* Append the numeric entries of a directory; -errno when it cannot be opened. */
static int add_entries(const char *path, struct proc_pids *pids)
{
    DIR *dir = opendir(path);
    if (dir == NULL)
        return -errno;

    int r = 0;
    for (struct dirent *entry; r == 0 && (entry = readdir(dir)) != NULL;) {
        char *end;
        long number = strtol(entry->d_name, &end, 10);
        if (end != entry->d_name && *end == 0)
            r = proc_pids_add(pids, (pid_t)number);
    }
    (void)closedir(dir);
    return r;
}

int proc_all(struct proc_pids *pids)
{
    return add_entries("/proc", pids);
}

/* Does this kernel have the children files (CONFIG_PROC_CHILDREN)? */
static bool lists_children(void)
{
    return access("/proc/thread-self/children", F_OK) == 0;
}

/* Kernels that do not: look at everybody's parent. */
static int children_by_scan(pid_t parent, struct proc_pids *pids)
{
    struct proc_pids all = { 0 };
    int r = proc_all(&all);
    for (size_t i = 0; r == 0 && i < all.count; i++) {
        struct proc_stat stat;
        if (proc_stat_read(all.pid[i], &stat) == 0 && stat.ppid == parent)
            r = proc_pids_add(pids, stat.pid);
    }
    proc_pids_done(&all);
    return r;
}

int proc_children(pid_t pid, struct proc_pids *pids)
{
    char path[96];
    (void)snprintf(path, sizeof path, "/proc/%d/task", pid);
    struct proc_pids tasks = { 0 };
    int r = add_entries(path, &tasks);
    if (r == -ENOENT)
        r = 0; /* gone */

    for (size_t i = 0; r == 0 && i < tasks.count; i++) {
        (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, tasks.pid[i]);
        FILE *file = fopen(path, "re");
        if (file != NULL) {
            r = add_numbers(file, pids);
            (void)fclose(file);
        } else if (errno == ENOENT && !lists_children()) {
            r = children_by_scan(pid, pids);
            break;
        } else if (errno != ENOENT && errno != ESRCH) {
            r = -errno;
        }
    }
    proc_pids_done(&tasks);
    return r;
}

/* Does the file have a variable that begins with prefix?  1, 0, or -ENODATA: it is empty. */
static int environ_has(const char *path, const char *prefix)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;

    size_t want = strlen(prefix);
    char *var = NULL;
    size_t cap = 0;
    int found = -ENODATA;
    while (found <= 0 && getdelim(&var, &cap, 0, file) > 0)
        found = strncmp(var, prefix, want) == 0;
    free(var);
    (void)fclose(file);
    return found;
}

bool proc_environ_has(pid_t pid, const char *prefix)
{
    char path[96];
    (void)snprintf(path, sizeof path, "/proc/%d/environ", pid);
    int r = environ_has(path, prefix);
    if (r != -ENODATA)
        return r > 0;

    /* A leading thread that has exited has no memory to read from; those that live on have. */
    struct proc_pids tasks = { 0 };
    (void)snprintf(path, sizeof path, "/proc/%d/task", pid);
    if (add_entries(path, &tasks) < 0)
        tasks.count = 0;
    for (size_t i = 0; r <= 0 && i < tasks.count; i++) {
        (void)snprintf(path, sizeof path, "/proc/%d/task/%d/environ", pid, tasks.pid[i]);
        r = environ_has(path, prefix);
    }
    proc_pids_done(&tasks);
    return r > 0;
}

bool proc_cgroup_has(pid_t pid, const char *text)
{
    char path[64], content[8192];
    (void)snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
    return read_small(path, content, sizeof content) > 0 && strstr(content, text) != NULL;
}
