/* doctor_python.c - the part of `mandor doctor` that looks at Python jobs: what is installed, which walls are there. */
#include <stdio.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/doctor.h"
#include "config/config.h"
#include "os/zygote.h"
#include "python/locate.h"

#define MANIFEST_MAX ((size_t)1 << 20)

/* "version" of an npm package, malloc'ed or NULL. */
static char *package_version(const char *dir)
{
    SCOPED_FREE char *path = NULL;
    SCOPED_BUF text = { .data = NULL };
    SCOPED_JSON *manifest = NULL;

    if (asprintf(&path, "%s/package.json", dir) < 0) {
        path = NULL;
        return NULL;
    }
    if (file_read(path, MANIFEST_MAX, false, &text) < 0 ||
        json_parse(text.data, text.len, &manifest, NULL) < 0)
        return NULL;
    const char *version = json_string_value(json_object_get(manifest, "version"));
    return version != NULL ? strdup(version) : NULL;
}

static void check_programs(struct doctor *doctor, const char *configured)
{
    SCOPED_FREE char *harness = NULL, *node = NULL, *pyodide = NULL;
    struct mandor_err err = { 0 };

    if (locate_harness(&harness, &err) < 0) {
        doctor_found(doctor, HEALTH_WARN, "python", "%s", err.msg);
        return;
    }
    if (asprintf(&pyodide, "%s/node_modules/pyodide", harness) < 0)
        pyodide = NULL;
    SCOPED_FREE char *version = pyodide != NULL ? package_version(pyodide) : NULL;
    doctor_found(doctor, version != NULL ? HEALTH_OK : HEALTH_WARN, "python pyodide", "%s in '%s'",
                 version != NULL ? version : "no version", harness);
    if (locate_node(configured, harness, &node, &err) < 0)
        doctor_found(doctor, HEALTH_WARN, "python node", "%s", err.msg);
    else
        doctor_found(doctor, HEALTH_OK, "python node", "'%s'", node);
}

/* What stands between a tenant's Python and this machine. */
static void check_walls(struct doctor *doctor)
{
    bool root = geteuid() == 0;
    int r = os_seccomp_probe();

    if (r == 0)
        doctor_found(doctor, HEALTH_OK, "python sandbox",
                     "strict can be had: a copy opens no file and no socket, starts no program "
                     "(seccomp)");
    else
        doctor_found(doctor, HEALTH_WARN, "python sandbox",
                     "strict cannot be had, Python jobs are refused: no seccomp: %s", strerror(-r));
    doctor_found(doctor, HEALTH_OK, "python walls", "%s; no capabilities; %s",
                 root ? "runs as nobody" : "runs as the worker's user",
                 root ? "a network namespace of its own"
                      : "no network namespace (that needs root), sockets are refused by seccomp");
}

void doctor_python(struct doctor *doctor)
{
    struct config *config = NULL;
    struct mandor_err err;

    if (config_load(doctor->cli->config_path, &config, &err) < 0)
        return; /* the broker's check says it */
    check_programs(doctor, config->python.node);
    check_walls(doctor);
    config_free(config);
}
