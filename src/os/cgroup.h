/* cgroup.h - control groups as files, both versions.  Directories are named by descriptor once they are made.
 * All of it may block for a moment; cgroup_populated() alone is cheap enough for the loop thread. */
#ifndef OS_CGROUP_H
#define OS_CGROUP_H

#include <sys/types.h>

#include "base/macro.h"
#include "os/proc.h"

#define CGROUP_PATH_MAX 512

/* Pure parsers.  controller: "" for version 2, else a version 1 controller ("memory").
 *
 * cgroup_parse_self: the path in that hierarchy from the text of /proc/PID/cgroup ("/user.slice").
 * cgroup_parse_mount: where the hierarchy is mounted, and which of its directories is mounted there, from the text of
 * /proc/PID/mountinfo.  Octal escapes of mountinfo(5) are undone.
 * Return 0, -ENOENT (no such hierarchy) or -ENAMETOOLONG. */
MUST_CHECK int cgroup_parse_self(const char *text, const char *controller,
                                 char ret[CGROUP_PATH_MAX]);
MUST_CHECK int cgroup_parse_mount(const char *text, const char *controller,
                                  char ret_point[CGROUP_PATH_MAX], char ret_root[CGROUP_PATH_MAX]);

/* Where this process is: the texts of /proc/self/cgroup and mountinfo, read once for questions about several hierarchies. */
struct cgroup_self {
    char *cgroup, *mounts;
};
MUST_CHECK int cgroup_self_read(struct cgroup_self *ret); /* 0 or -errno */
void cgroup_self_done(struct cgroup_self *self);

/* The directory of this process's own cgroup.  0, -ENOENT (not mounted), -EXDEV (outside of what is mounted), -errno. */
MUST_CHECK int cgroup_own(const struct cgroup_self *self, const char *controller,
                          char ret[CGROUP_PATH_MAX]);

/* One file of a cgroup.  write: 0 or -errno.  read: bytes (text is terminated) or -errno. */
int cgroup_write(int dir, const char *file, const char *text);
ssize_t cgroup_read(int dir, const char *file, char *text, size_t size);
/* The number behind "key " in a file of lines "key number"; -ENOENT when the key is not there. */
int64_t cgroup_read_key(int dir, const char *file, const char *key);

/* events_fd: an open cgroup.events.  1, 0 or -errno. */
int cgroup_populated(int events_fd);

/* Processes in the cgroup and below it, appended (those of other PID namespaces, 0, are left out). */
MUST_CHECK int cgroup_pids(int dir, struct proc_pids *pids);

/* Kill all that is in it and below: cgroup.kill (Linux 5.14), and SIGKILL to each that is still there.  0 or -errno. */
int cgroup_kill(int dir);

/* One SIGTERM to each process: freeze, list, open each, list again, signal those that are still there, thaw.
 * Returns how many were signalled, or -errno. */
int cgroup_terminate(int dir);

/* Remove a cgroup and those below it.  0 (gone), -EBUSY (populated) or -errno. */
int cgroup_remove(const char *path);

#endif
