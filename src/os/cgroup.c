/* cgroup.c - contract in cgroup.h; the kernel's side is Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/. */
#include "os/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#include "os/pidfd.h"

#define DEPTH_MAX      128 /* nested cgroups that a job may have made */
#define FREEZE_WAIT_MS 50 /* a process in uninterruptible sleep does not freeze: go on without it */

/* Is word one of the items of a list that is separated by commas and ends at end? */
static bool list_has(const char *list, const char *end, const char *word)
{
    size_t want = strlen(word);
    while (list < end) {
        const char *comma = memchr(list, ',', (size_t)(end - list));
        const char *stop = comma == NULL ? end : comma;
        if ((size_t)(stop - list) == want && strncmp(list, word, want) == 0)
            return true;
        list = stop + 1;
    }
    return false;
}

static int copy_path(char ret[CGROUP_PATH_MAX], const char *text, size_t len)
{
    if (len >= CGROUP_PATH_MAX)
        return -ENAMETOOLONG;
    memcpy(ret, text, len);
    ret[len] = 0;
    return 0;
}

int cgroup_parse_self(const char *text, const char *controller, char ret[CGROUP_PATH_MAX])
{
    while (*text != 0) { /* number:controllers:path */
        const char *end = strchrnul(text, '\n');
        const char *first = memchr(text, ':', (size_t)(end - text));
        const char *second =
            first == NULL ? NULL : memchr(first + 1, ':', (size_t)(end - first - 1));
        if (second != NULL) {
            bool hit = *controller == 0 ? second == first + 1 && *text == '0'
                                        : list_has(first + 1, second, controller);
            if (hit)
                return copy_path(ret, second + 1, (size_t)(end - second - 1));
        }
        text = *end == 0 ? end : end + 1;
    }
    return -ENOENT;
}

/* Undo "\040" and the like. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from != 0; to++) {
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' &&
            from[2] <= '7' && from[3] >= '0' && from[3] <= '7') {
            *to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = 0;
}

int cgroup_parse_mount(const char *text, const char *controller, char ret_point[CGROUP_PATH_MAX],
                       char ret_root[CGROUP_PATH_MAX])
{
    while (*text != 0) { /* id parent dev root point options … - type source super-options */
        const char *end = strchrnul(text, '\n');
        char line[2048], root[CGROUP_PATH_MAX], point[CGROUP_PATH_MAX], type[32], super[512];
        size_t len = MIN((size_t)(end - text), sizeof line - 1);
        memcpy(line, text, len);
        line[len] = 0;
        text = *end == 0 ? end : end + 1;

        const char *tail = strstr(line, " - cgroup");
        if (tail == NULL || sscanf(line, "%*d %*d %*s %511s %511s", root, point) != 2 ||
            sscanf(tail, " - %31s %*s %511s", type, super) != 2)
            continue;
        bool hit = *controller == 0 ? str_eq(type, "cgroup2")
                                    : str_eq(type, "cgroup") &&
                                          list_has(super, super + strlen(super), controller);
        if (!hit)
            continue;
        unescape(root);
        unescape(point);
        memcpy(ret_root, root, sizeof root);
        memcpy(ret_point, point, sizeof point);
        return 0;
    }
    return -ENOENT;
}

/* The whole of a /proc file, malloc'ed; NULL with errno. */
static char *read_whole(const char *path)
{
    SCOPED_FD fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;

    size_t len = 0, cap = 8192;
    char *text = malloc(cap);
    while (text != NULL) {
        ssize_t n = RETRY_EINTR(read(fd, text + len, cap - 1 - len));
        if (n <= 0) {
            text[len] = 0;
            break;
        }
        len += (size_t)n;
        if (cap - 1 - len < 1024) {
            char *grown = realloc(text, cap *= 2);
            if (grown == NULL)
                free(text);
            text = grown;
        }
    }
    return text;
}

int cgroup_self_read(struct cgroup_self *ret)
{
    *ret = (struct cgroup_self){ .cgroup = read_whole("/proc/self/cgroup") };
    if (ret->cgroup != NULL && (ret->mounts = read_whole("/proc/self/mountinfo")) != NULL)
        return 0;
    int r = -errno;
    cgroup_self_done(ret);
    return r;
}

void cgroup_self_done(struct cgroup_self *self)
{
    free(self->cgroup);
    free(self->mounts);
    *self = (struct cgroup_self){ 0 };
}

int cgroup_own(const struct cgroup_self *self, const char *controller, char ret[CGROUP_PATH_MAX])
{
    char path[CGROUP_PATH_MAX], point[CGROUP_PATH_MAX], root[CGROUP_PATH_MAX];
    int r = cgroup_parse_self(self->cgroup, controller, path);
    if (r == 0)
        r = cgroup_parse_mount(self->mounts, controller, point, root);
    if (r < 0)
        return r;

    /* A bind mount or container shows only the part of the hierarchy below root. */
    size_t root_len = str_eq(root, "/") ? 0 : strlen(root);
    if (strncmp(path, "/..", 3) == 0 || strncmp(path, root, root_len) != 0 ||
        (path[root_len] != '/' && path[root_len] != 0))
        return -EXDEV;
    const char *rest = str_eq(path + root_len, "/") ? "" : path + root_len;
    int n = snprintf(ret, CGROUP_PATH_MAX, "%s%s", point, rest);
    return n >= CGROUP_PATH_MAX ? -ENAMETOOLONG : 0;
}

int cgroup_write(int dir, const char *file, const char *text)
{
    SCOPED_FD fd = openat(dir, file, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = RETRY_EINTR(write(fd, text, strlen(text)));
    return n < 0 ? -errno : 0;
}

ssize_t cgroup_read(int dir, const char *file, char *text, size_t size)
{
    SCOPED_FD fd = openat(dir, file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = RETRY_EINTR(read(fd, text, size - 1));
    if (n < 0)
        return -errno;
    text[n] = 0;
    return n;
}

int64_t cgroup_read_key(int dir, const char *file, const char *key)
{
    char text[2048];
    ssize_t n = cgroup_read(dir, file, text, sizeof text);
    if (n < 0)
        return n;

    size_t want = strlen(key);
    for (const char *line = text; *line != 0;) {
        if (strncmp(line, key, want) == 0 && line[want] == ' ')
            return strtoll(line + want, NULL, 10);
        const char *end = strchrnul(line, '\n');
        line = *end == 0 ? end : end + 1;
    }
    return -ENOENT;
}

static int events_flag(int events_fd, const char *key)
{
    char text[256];
    ssize_t n = RETRY_EINTR(pread(events_fd, text, sizeof text - 1, 0));
    if (n < 0)
        return -errno;
    text[n] = 0;
    const char *at = strstr(text, key);
    return at == NULL ? -ENOENT : at[strlen(key)] == '1';
}

int cgroup_populated(int events_fd)
{
    return events_flag(events_fd, "populated ");
}

/* The processes of one cgroup alone. */
static int own_pids(int dir, struct proc_pids *pids)
{
    int fd = openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (file == NULL) {
        int r = -errno;
        if (fd >= 0)
            (void)close(fd);
        return r;
    }

    int pid, r = 0;
    while (r == 0 && fscanf(file, "%d", &pid) == 1)
        if (pid > 0)
            r = proc_pids_add(pids, pid);
    if (r == 0 && ferror(file))
        r = errno == ENODEV ? 0 : -errno; /* ENODEV: it was removed meanwhile */
    (void)fclose(file);
    return r;
}

/* Call fn for each directory below dir, deepest first is fn's own affair; stops at the first error. */
static int each_below(int dir, int depth,
                      int (*fn)(int parent, const char *name, int depth, void *arg), void *arg)
{
    struct stat st;
    if (fstat(dir, &st) != 0)
        return -errno;
    if (st.st_nlink <= 2) /* kernfs counts subdirectories: the usual case costs no listing */
        return 0;
    if (depth >= DEPTH_MAX)
        return -ELOOP;

    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (stream == NULL) {
        int r = -errno;
        if (fd >= 0)
            (void)close(fd);
        return r;
    }
    int r = 0;
    for (struct dirent *entry; r == 0 && (entry = readdir(stream)) != NULL;)
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
            r = fn(dir, entry->d_name, depth + 1, arg);
    (void)closedir(stream);
    return r;
}

static int pids_below(int dir, int depth, struct proc_pids *pids);

static int pids_of(int parent, const char *name, int depth, void *arg)
{
    SCOPED_FD dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return errno == ENOENT ? 0 : -errno;
    return pids_below(dir, depth, arg);
}

static int pids_below(int dir, int depth, struct proc_pids *pids)
{
    int r = own_pids(dir, pids);
    if (r == -EOPNOTSUPP) /* a threaded cgroup: its processes are listed in its domain */
        r = 0;
    return r < 0 ? r : each_below(dir, depth, pids_of, pids);
}

int cgroup_pids(int dir, struct proc_pids *pids)
{
    return pids_below(dir, 0, pids);
}

/* Stop everything in it; returns the frozen state that could be reached in time (0 or 1) or -errno. */
static int freeze(int dir)
{
    int r = cgroup_write(dir, "cgroup.freeze", "1");
    if (r < 0)
        return r;
    SCOPED_FD events = openat(dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
    if (events < 0)
        return -errno;

    for (int waited = 0; waited < FREEZE_WAIT_MS; waited++) {
        if (events_flag(events, "frozen ") == 1)
            return 1;
        (void)poll(NULL, 0, 1);
    }
    return 0;
}

/* Send a signal to each process that is in it; returns how many, or -errno. */
static int signal_each(int dir, int sig)
{
    struct proc_pids pids = { 0 }, again = { 0 };
    int r = cgroup_pids(dir, &pids);

    int *pidfds = r == 0 && pids.count > 0 ? malloc(pids.count * sizeof *pidfds) : NULL;
    if (r == 0 && pids.count > 0 && pidfds == NULL)
        r = -ENOMEM;
    for (size_t i = 0; pidfds != NULL && i < pids.count; i++)
        pidfds[i] = os_pidfd_open(pids.pid[i]);
    /* Whoever is still listed had its number all the time: the descriptor is that process. */
    if (r == 0)
        r = cgroup_pids(dir, &again);

    int signalled = 0;
    for (size_t i = 0; pidfds != NULL && i < pids.count; i++) {
        if (pidfds[i] < 0)
            continue;
        if (r == 0 && proc_pids_has(&again, pids.pid[i]) && os_pidfd_signal(pidfds[i], sig) == 0)
            signalled++;
        (void)close(pidfds[i]);
    }
    free(pidfds);
    proc_pids_done(&pids);
    proc_pids_done(&again);
    return r < 0 ? r : signalled;
}

/* Frozen meanwhile, or a process that forks at this moment might be missed.  SIGKILL works on the frozen. */
static int signal_frozen(int dir, int sig)
{
    (void)freeze(dir);
    int r = signal_each(dir, sig);
    (void)cgroup_write(dir, "cgroup.freeze", "0");
    return r;
}

int cgroup_terminate(int dir)
{
    return signal_frozen(dir, SIGTERM);
}

/* cgroup.kill signals each process through its leading thread alone (kernel/cgroup/cgroup.c, __cgroup_kill: PIDTYPE_PID), and one
 * whose leading thread has exited while others run on ignores it for ever (Linux 6.18).  A signal to the process reaches those. */
int cgroup_kill(int dir)
{
    int r = cgroup_write(dir, "cgroup.kill", "1");
    if (r == -ENOENT || r == -EACCES)
        return MIN(signal_frozen(dir, SIGKILL), 0);
    SCOPED_FD events = r < 0 ? -1 : openat(dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
    if (events >= 0 && cgroup_populated(events) == 1)
        (void)signal_each(dir, SIGKILL);
    return r;
}

static int remove_at(int parent, const char *name, int depth, void *arg)
{
    (void)arg;
    if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    SCOPED_FD dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return errno == ENOENT ? 0 : -errno;
    int r = each_below(dir, depth, remove_at, NULL);
    if (r < 0)
        return r;
    return unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -errno;
}

int cgroup_remove(const char *path)
{
    return remove_at(AT_FDCWD, path, 0, NULL);
}
