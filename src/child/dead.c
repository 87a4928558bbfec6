/* dead.c - empty what a dead worker left: nursery_empty_dead() of nursery.h, also run by the guard. */
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "child/nursery.h"
#include "child/sweep.h"
#include "os/cgroup.h"
#include "os/tree.h"

#define PATIENCE_MS 1000

/* A text from a database names directories that will be emptied: it must look like one of ours. */
static bool plausible(const char *cgroup)
{
    const char *last = strrchr(cgroup, '/');
    return cgroup[0] == '/' && last != NULL && strncmp(last, "/mandor-", 8) == 0 &&
           strstr(cgroup, "/../") == NULL;
}

/* A scratch directory is called by the worker's name, or was made for one owner alone ("mandor-run-XXXXXX"): not any directory can be
 * passed off as one. */
static bool plausible_scratch(const char *scratch, const char *name)
{
    const char *last = strrchr(scratch, '/');
    return scratch[0] == '/' && last[1] != 0 && strstr(scratch, "/../") == NULL &&
           (str_eq(last + 1, name) || strncmp(last, "/mandor-", 8) == 0);
}

/* Is nothing alive in it, for certain? */
static bool is_empty(const char *path)
{
    SCOPED_FD dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    SCOPED_FD events = dir < 0 ? -1 : openat(dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
    return events >= 0 ? cgroup_populated(events) == 0 : dir < 0 && errno == ENOENT;
}

/* Remove each slot below the base, and the base. */
static int empty_cgroup(const char *path)
{
    int r = 0;
    for (int64_t end = clock_mono_ms() + PATIENCE_MS, wait = 1; clock_mono_ms() < end;
         wait = MIN(wait * 2, (int64_t)20)) {
        SCOPED_FD dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
            return errno == ENOENT ? 0 : -EAGAIN; /* who cannot look does not know */
        SCOPED_FD events = openat(dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
        if (events >= 0 && cgroup_populated(events) == 1)
            (void)cgroup_kill(dir);
        r = cgroup_remove(path);
        if (r == 0)
            return 0;
        (void)poll(NULL, 0, (int)wait);
    }
    return r == -EBUSY || !is_empty(path) ? -EAGAIN : r;
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

/* Keep the first failure, but before all that something may be alive. */
static void note(int *first, int result, struct mandor_err *err, const char *what, const char *path)
{
    if (result < 0 && (*first == 0 || (result == -EAGAIN && *first != -EAGAIN)))
        *first = err_set(err, result, FAULT_HOST, "%s '%s'", what, path);
}

int nursery_empty_dead(const char *base_text, struct mandor_err *err)
{
    SCOPED_JSON *base = NULL;
    const char *boot, *name, *cgroup, *scratch;
    json_t *limits;
    int r = json_parse(base_text, strlen(base_text), &base, err);
    if (r < 0)
        return err_wrap(err, r, "base containments of a dead worker");
    if (json_unpack(base, "{s:s s:s s:s s:s s:o}", "boot", &boot, "name", &name, "cgroup", &cgroup,
                    "scratch", &scratch, "limits", &limits) != 0 ||
        (*cgroup != 0 && !plausible(cgroup)) || !plausible_scratch(scratch, name))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "base containments of a dead worker: not a text of mandor");

    int first = 0;
    if (str_eq(boot, clock_boot_id())) { /* after a reboot only files are left */
        if (*cgroup != 0)
            note(&first, empty_cgroup(cgroup), err, "empty cgroup", cgroup);
        note(&first, sweep_scratch(scratch), err, "kill what was started below", scratch);
        size_t i;
        json_t *path;
        json_array_foreach(limits, i, path) {
            const char *text = json_string_value(path);
            if (text != NULL && plausible(text))
                note(&first, empty_limits(text), err, "remove cgroup", text);
        }
    }
    if (first == -EAGAIN) /* what is alive may still write there */
        return first;
    note(&first, tree_remove(scratch), err, "remove scratch directory", scratch);
    return first;
}
