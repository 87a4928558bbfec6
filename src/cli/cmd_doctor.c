/* cmd_doctor.c - `mandor doctor`: what this machine offers, and whether broker and data directory are sound.
 *
 * Each check adds one finding; the exit code is 1 when one of them is broken.
 */
#include <fcntl.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#include "base/module.h"
#include "base/units.h"
#include "cli/client.h"
#include "cli/doctor.h"
#include "cli/out.h"
#include "sink/left.h"
#include "sink/sweeper.h"

static const struct {
    const char *name;
    enum out_style style;
} healths[] = {
    [HEALTH_OK] = { "ok", STYLE_GREEN },
    [HEALTH_WARN] = { "warn", STYLE_YELLOW },
    [HEALTH_BROKEN] = { "broken", STYLE_RED },
};

void doctor_found(struct doctor *doctor, enum health health, const char *check, const char *fmt,
                  ...)
{
    SCOPED_BUF safe = { .data = NULL };
    char text[1024];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (text_escape(&safe, text, strlen(text)) < 0 ||
        json_array_append_new(doctor->checks, json_pack("{s:s, s:s, s:s}", "check", check, "health",
                                                        healths[health].name, "text",
                                                        safe.data != NULL ? safe.data : "")) < 0)
        doctor->no_memory = true;
    doctor->worst = MAX(doctor->worst, health);
}

/* ---- the machine ---- */

static void check_kernel(struct doctor *doctor)
{
    struct utsname name;
    int major = 0, minor = 0;

    if (uname(&name) < 0) {
        doctor_found(doctor, HEALTH_BROKEN, "kernel", "uname: %s", strerror(errno));
        return;
    }
    (void)sscanf(name.release, "%d.%d", &major, &minor);
    bool old = major < 5 || (major == 5 && minor < 4);
    doctor_found(doctor, old ? HEALTH_BROKEN : HEALTH_OK, "kernel", "%s %s%s", name.sysname,
                 name.release, old ? ", expected 5.4 or later (waiting for a pidfd)" : "");
}

/* First line of a small file, "" when it cannot be read. */
static const char *first_line(const char *path, char *buf, int size)
{
    FILE *file = fopen(path, "re");

    buf[0] = '\0';
    if (file != NULL) {
        if (fgets(buf, size, file) == NULL)
            buf[0] = '\0';
        (void)fclose(file);
    }
    buf[strcspn(buf, "\n")] = '\0';
    return buf;
}

static void check_bounds(struct doctor *doctor)
{
    struct rlimit files;
    char text[64];

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        bool low = files.rlim_max < 4096;
        doctor_found(doctor, low ? HEALTH_WARN : HEALTH_OK, "open files",
                     "%ju at once, up to %ju%s", (uintmax_t)files.rlim_cur,
                     (uintmax_t)files.rlim_max,
                     low ? ": each running job takes about 8 descriptors" : "");
    }
    if (first_line("/proc/sys/kernel/pid_max", text, sizeof text)[0] != '\0')
        doctor_found(doctor, HEALTH_OK, "pid_max", "%s", text);
}

/* ---- containment ---- */

static void check_hierarchy(struct doctor *doctor, const char *name,
                            const struct contain_hierarchy *hierarchy, bool is_v2)
{
    char check[64];

    (void)snprintf(check, sizeof check, "cgroup %s", name);
    if (hierarchy->usable)
        doctor_found(doctor, HEALTH_OK, check, "%s, cgroup %s", hierarchy->base,
                     is_v2 ? "v2" : "v1");
    else
        doctor_found(doctor, HEALTH_WARN, check, "%s: %s",
                     hierarchy->mounted ? "not usable" : "not mounted",
                     hierarchy->why[0] != '\0' ? hierarchy->why : "no such hierarchy here");
}

/* Can this limit be enforced, and who does it? */
static void check_limit(struct doctor *doctor, const char *limit, bool usable, const char *how)
{
    char check[64];

    (void)snprintf(check, sizeof check, "limit %s", limit);
    doctor_found(doctor, usable ? HEALTH_OK : HEALTH_WARN, check,
                 usable ? "enforced by %s" : "cannot be enforced here: it takes %s", how);
}

static void check_rungs(struct doctor *doctor, const struct contain_host *host)
{
    doctor_found(doctor, host->v2.usable && host->cgroup_kill ? HEALTH_OK : HEALTH_WARN,
                 "containment cgroup", "%s%s",
                 host->v2.usable ? host->cgroup_kill ? "can be had" : "no cgroup.kill (Linux 5.14)"
                                 : "cannot be had: ",
                 host->v2.usable ? host->clone_into_cgroup ? ", clone into a cgroup works" : ""
                                 : host->v2.why);
    doctor_found(
        doctor, host->pidns ? HEALTH_OK : HEALTH_WARN, "containment pidns", "%s%s",
        host->pidns ? "can be had" : "cannot be had: ", host->pidns ? "" : host->pidns_why);
    doctor_found(doctor, HEALTH_OK, "containment group", "can always be had");

    bool strict = host->v2.usable && host->cgroup_kill && host->pidns;
    doctor_found(
        doctor, strict ? HEALTH_OK : HEALTH_WARN, "containment strict",
        strict ? "can be had (cgroup and pidns together)"
               : "cannot be had: it takes cgroup and pidns together; jobs that ask for it are "
                 "refused");
}

static void check_automatic(struct doctor *doctor, const struct contain_host *host)
{
    const char *why = host->automatic == CONTAIN_CGROUP  ? "the first that can be had"
                      : host->automatic == CONTAIN_PIDNS ? "cgroups cannot be had"
                      : host->automatic == CONTAIN_GROUP
                          ? "neither cgroups nor PID namespaces can be had"
                          : "asked for by MANDOR_CONTAINMENT";

    doctor_found(doctor, HEALTH_OK, "containment auto", "is '%s': %s",
                 spec_containment_name(host->automatic), why);
    if (host->automatic == CONTAIN_GROUP)
        doctor_found(
            doctor, HEALTH_WARN, "group rung",
            "weaker: when worker and guard are both killed at once, what a job left behind is "
            "found only by the next "
            "start of 'mandor work'");
    if (host->automatic == CONTAIN_CGROUP)
        doctor_found(
            doctor, HEALTH_WARN, "same uid",
            "jobs without 'user' run with uid %u, the worker's own, and could move themselves "
            "out of its cgroups; for jobs "
            "that are not trusted set 'user' or 'containment: strict'",
            (unsigned)geteuid());
}

static void check_containment(struct doctor *doctor)
{
    const struct contain_host *host = &doctor->host;

    contain_probe(&doctor->host);
    check_hierarchy(doctor, "v2", &host->v2, true);
    check_hierarchy(doctor, "memory", &host->memory, host->memory_is_v2);
    check_hierarchy(doctor, "pids", &host->pids, host->pids_is_v2);
    check_hierarchy(doctor, "cpu", &host->cpu, host->cpu_is_v2);
    check_rungs(doctor, host);
    check_automatic(doctor, host);
    check_limit(doctor, "memory", host->memory.usable, "the memory cgroup");
    check_limit(doctor, "pids", host->pids.usable, "the pids cgroup");
    check_limit(doctor, "cpu", host->cpu.usable, "the cpu cgroup");
    check_limit(doctor, "cpu_time", true, "RLIMIT_CPU");
    check_limit(doctor, "open_files", true, "RLIMIT_NOFILE");
    check_limit(doctor, "file_size", true, "RLIMIT_FSIZE");
}

/* ---- data ---- */

static const char *file_system_trouble(const char *path, enum health *ret)
{
    static const struct {
        uint32_t magic; /* statfs(2) */
        const char *trouble;
    } known[] = { { 0x6969, "is on NFS: locks and WAL are not reliable there" },
                  { 0xff534d42, "is on CIFS: locks and WAL are not reliable there" },
                  { 0xfe534d42, "is on SMB2: locks and WAL are not reliable there" },
                  { 0x01021994, "is on tmpfs: jobs do not survive a restart of the machine" } };
    struct statfs fs;

    *ret = HEALTH_OK;
    if (statfs(path, &fs) < 0)
        return NULL;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if ((uint32_t)fs.f_type == known[i].magic) {
            *ret = HEALTH_WARN;
            return known[i].trouble;
        }
    return NULL;
}

/* The nearest directory above path that exists: where it would be made. */
static void existing_above(char *path)
{
    struct stat st;

    while (path[0] != '\0' && stat(path, &st) < 0 && errno == ENOENT) {
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            (void)strcpy(path, ".");
        else
            slash[slash == path] = '\0';
    }
}

/* Can files be made at path, or where it will be made? */
static void check_writable(struct doctor *doctor, const char *check, char *path)
{
    enum health health;
    struct stat st;
    bool there = stat(path, &st) == 0;

    existing_above(path);
    const char *trouble = file_system_trouble(path, &health);
    if (access(path, W_OK | X_OK) < 0)
        doctor_found(doctor, HEALTH_BROKEN, check, "'%s': %s", path, strerror(errno));
    else
        doctor_found(doctor, health, check, "'%s' %s%s%s", path,
                     there ? "is writable" : "is where it will be made",
                     trouble != NULL ? ", and " : "", trouble != NULL ? trouble : "");
}

/* Uploads of attempts that are gone, which their server could not be asked to end. */
static void check_left(struct doctor *doctor, const char *data_dir)
{
    SCOPED_FREE char *dir = left_dir(data_dir);

    if (dir != NULL && sweeper_wanted(dir))
        doctor_found(doctor, HEALTH_WARN, "uploads",
                     "what dead attempts have begun waits in '%s' until a worker can end it", dir);
}

/* The directory of the database, and the one beside it for output, locks and sockets. */
static void check_directories(struct doctor *doctor, const char *database)
{
    char path[PATH_MAX];

    if (strlen(database) + sizeof ".d" > sizeof path) {
        doctor_found(doctor, HEALTH_BROKEN, "database", "the path of '%s' is too long", database);
        return;
    }
    (void)snprintf(path, sizeof path, "%s.d", database);
    check_writable(doctor, "data directory", path);
    check_left(doctor, path);

    (void)snprintf(path, sizeof path, "%s", database);
    char *slash = strrchr(path, '/');
    if (slash != NULL)
        slash[slash == path] = '\0';
    else
        (void)strcpy(path, ".");
    check_writable(doctor, "database directory", path);
}

/* Run quick_check on its own read-only connection. */
static void check_database(struct doctor *doctor, const char *path)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *check = NULL;
    struct stat st;
    char size[UNITS_TEXT_SIZE];

    if (stat(path, &st) < 0 && errno == ENOENT) {
        doctor_found(doctor, HEALTH_OK, "database", "'%s' will be made by the first 'mandor add'",
                     path);
        return;
    }
    int r = sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL);
    if (r == SQLITE_OK)
        (void)sqlite3_busy_timeout(db, 2000);
    if (r == SQLITE_OK)
        r = sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &check, NULL);
    if (r == SQLITE_OK)
        r = sqlite3_step(check);

    const char *said = r == SQLITE_ROW ? (const char *)sqlite3_column_text(check, 0) : NULL;
    if (said != NULL && str_eq(said, "ok"))
        doctor_found(doctor, HEALTH_OK, "database", "'%s' is sound, %s", path,
                     units_human_size(st.st_size, size));
    else
        doctor_found(doctor, HEALTH_BROKEN, "database", "'%s': %s", path,
                     said != NULL ? said
                     : db != NULL ? sqlite3_errmsg(db)
                                  : "out of memory");
    (void)sqlite3_finalize(check);
    (void)sqlite3_close(db);
}

/* Of a broker that is a server: {"name", "software", "evicts"}. */
static void check_server(struct doctor *doctor, const json_t *server)
{
    const char *name = json_string_value(json_object_get(server, "name"));
    const char *software = json_string_value(json_object_get(server, "software"));
    const char *evicts = json_string_value(json_object_get(server, "evicts"));

    if (name == NULL)
        return;
    doctor_found(doctor, HEALTH_OK, "server", "'%s' answers: %s", name,
                 software != NULL ? software : "unknown");
    if (evicts != NULL)
        doctor_found(
            doctor, HEALTH_WARN, "server memory",
            "maxmemory-policy is %s: when its memory is full jobs can be lost, expected noeviction",
            evicts);
}

static void check_modules(struct doctor *doctor)
{
    const char *name;

    for (size_t i = 0; (name = module_name(i)) != NULL; i++) {
        char check[64];
        struct mandor_err err = { 0 };
        const struct module *module = module_load(name, &err);
        (void)snprintf(check, sizeof check, "module %s", name);
        doctor_found(doctor, module != NULL ? HEALTH_OK : HEALTH_WARN, check, "%s",
                     module != NULL ? module->libraries : err.msg);
    }
}

static void check_workers(struct doctor *doctor, struct client *client)
{
    struct broker_req req = { .op = BROKER_STATS };
    struct mandor_err err;

    err_clear(&err);
    if (client->broker == NULL) {
        doctor_found(doctor, HEALTH_OK, "workers", "none yet");
        return;
    }
    if (client_ask(client, &req, &err) < 0) {
        doctor_found(doctor, HEALTH_BROKEN, "broker", "%s", err.msg);
        return;
    }
    check_server(doctor, json_object_get(req.stats.stats, "server"));
    size_t count = client_live_workers(req.stats.stats);
    doctor_found(doctor, count > 0 ? HEALTH_OK : HEALTH_WARN, "workers",
                 count > 0 ? "%zu alive" : "%zu alive: 'mandor work' starts one", count);
    json_decref(req.stats.stats);
}

static void check_broker(struct doctor *doctor)
{
    struct client client;
    struct mandor_err err;

    err_clear(&err);
    doctor_found(doctor, HEALTH_OK, "sqlite", "%s", sqlite3_libversion());
    check_modules(doctor);
    int r = client_open(doctor->cli, CLIENT_LOOK, &client, &err);
    char *path = client.url != NULL ? client_sqlite_path(client.url) : NULL;
    if (path != NULL) {
        check_directories(doctor, path);
        check_database(doctor, path);
    }
    if (r < 0)
        doctor_found(doctor, HEALTH_BROKEN, "broker", "%s", err.msg);
    else
        check_workers(doctor, &client);
    free(path);
    client_close(&client);
}

/* ---- report ---- */

static int print_checks(const struct doctor *doctor)
{
    size_t i;
    json_t *check;

    json_array_foreach(doctor->checks, i, check) {
        const char *health = json_string_value(json_object_get(check, "health"));
        enum out_style style = STYLE_PLAIN;
        for (size_t h = 0; h < ARRAY_LEN(healths); h++)
            if (str_eq(healths[h].name, health))
                style = healths[h].style;
        out_line("%s%-7s%s %-20s %s", style_on(style), health, style_off(style),
                 json_string_value(json_object_get(check, "check")),
                 json_string_value(json_object_get(check, "text")));
    }
    return 0;
}

static int report(const struct doctor *doctor)
{
    if (!doctor->cli->json)
        return print_checks(doctor);

    const struct contain_host *host = &doctor->host;
    json_t *json = json_pack(
        "{s:b, s:s, s:s, s:{s:b, s:b, s:b, s:b, s:b, s:b}, s:O}", "ok",
        (int)(doctor->worst != HEALTH_BROKEN), "health", healths[doctor->worst].name, "containment",
        spec_containment_name(host->automatic), "limits", "memory", (int)host->memory.usable,
        "pids", (int)host->pids.usable, "cpu", (int)host->cpu.usable, "cpu_time", 1, "open_files",
        1, "file_size", 1, "checks", doctor->checks);
    int r = json != NULL ? out_json_pretty(json) : -ENOMEM;
    json_decref(json);
    return r;
}

int cmd_doctor(struct cli *cli)
{
    struct doctor doctor = { .cli = cli, .checks = json_array() };

    if (doctor.checks != NULL) {
        check_kernel(&doctor);
        check_bounds(&doctor);
        check_containment(&doctor);
        doctor_pools(&doctor);
        check_broker(&doctor);
        doctor_python(&doctor);
        doctor_wheels(&doctor);
    }
    int r = doctor.checks == NULL || doctor.no_memory ? -ENOMEM : report(&doctor);
    json_decref(doctor.checks);
    if (r < 0) {
        struct mandor_err err;
        (void)err_set(&err, r, FAULT_HOST, "print the findings");
        return cli_fail(cli, &err);
    }
    return doctor.worst == HEALTH_BROKEN ? EXIT_FAILED : EXIT_OK;
}
