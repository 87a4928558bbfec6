/* dead.c - empty what a dead worker left: nursery_empty_dead() of nursery.h, also run by the guard. */
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/json.h"
#include "child/nursery.h"
#include "child/sweep.h"
#include "os/cgroup.h"
#include "os/tree.h"

#include <stdio.h>

#define PATIENCE_MS 1000

/* A text from a database names directories that will be emptied: it must look like one of ours. */
static bool plausible(const char *cgroup)
{
    const char *last = strrchr(cgroup, '/');
    return cgroup[0] == '/' && last != NULL && strncmp(last, "/mandor-", 8) == 0 &&
           strstr(cgroup, "/../") == NULL;
}

/* Remove each slot below the base, and the base. */
static int empty_cgroup(const char *path)
{
    int r = 0;
    for (int64_t end = clock_mono_ms() + PATIENCE_MS, wait = 1; clock_mono_ms() < end;
         wait = MIN(wait * 2, (int64_t)20)) {
        SCOPED_FD dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
            return errno == ENOENT ? 0 : -errno;
        SCOPED_FD events = openat(dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
        if (events >= 0 && cgroup_populated(events) == 1)
            r = cgroup_kill(dir);
        r = cgroup_remove(path);
        if (r == 0)
            return 0;
        (void)poll(NULL, 0, (int)wait);
    }
    return r == -EBUSY ? -EAGAIN : r;
}

/* Version 1 directories hold what version 2 killed already; whoever is still in one is killed one by one. */
static int empty_limits(const char *path)
{
    int r = 0;
    for (int64_t end = clock_mono_ms() + PATIENCE_MS, wait = 1; clock_mono_ms() < end;
         wait = MIN(wait * 2, (int64_t)20)) {
        r = cgroup_remove(path);
        if (r != -EBUSY)
            return r;
        SCOPED_FD dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir >= 0)
            (void)cgroup_kill(dir);
        (void)poll(NULL, 0, (int)wait);
    }
    return -EAGAIN;
}

/* Whatever was started below this scratch directory, in any rung.  Only a trace in the environment: what wiped it is not seen. */
static int sweep_scratch(const char *scratch)
{
    char mark[4096];
    (void)snprintf(mark, sizeof mark, "TMPDIR=%s/", scratch);
    for (int64_t end = clock_mono_ms() + PATIENCE_MS, wait = 1; clock_mono_ms() < end;
         wait = MIN(wait * 2, (int64_t)20)) {
        int alive = sweep_marked(mark);
        if (alive <= 0)
            return alive;
        (void)poll(NULL, 0, (int)wait);
    }
    return -EAGAIN;
}

int nursery_empty_dead(const char *base_text, struct mandor_err *err)
{
    SCOPED_JSON *base = NULL;
    const char *boot, *cgroup, *scratch;
    json_t *limits;
    int r = json_parse(base_text, strlen(base_text), &base, err);
    if (r < 0)
        return err_wrap(err, r, "base containments of a dead worker");
    if (json_unpack(base, "{s:s s:s s:s s:o}", "boot", &boot, "cgroup", &cgroup, "scratch",
                    &scratch, "limits", &limits) != 0 ||
        (*cgroup != 0 && !plausible(cgroup)) || *scratch != '/')
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "base containments of a dead worker: not a text of mandor");

    int first = 0;
    if (str_eq(boot, clock_boot_id())) { /* after a reboot only files are left */
        if (*cgroup != 0 && (r = empty_cgroup(cgroup)) < 0)
            first = err_set(err, r, FAULT_HOST, "empty cgroup '%s'", cgroup);
        r = sweep_scratch(scratch);
        if (r < 0 && first == 0)
            first = err_set(err, r, FAULT_HOST, "kill what was started below '%s'", scratch);
        size_t i;
        json_t *path;
        json_array_foreach(limits, i, path) {
            const char *text = json_string_value(path);
            r = text != NULL && plausible(text) ? empty_limits(text) : 0;
            if (r < 0 && first == 0)
                first = err_set(err, r, FAULT_HOST, "remove cgroup '%s'", text);
        }
    }
    if (first < 0)
        return first;
    r = tree_remove(scratch);
    return r < 0 ? err_set(err, r, FAULT_HOST, "remove scratch directory '%s'", scratch) : 0;
}
