/* module.c - contract in module.h. */
#include "base/module.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static const struct {
    const char *kind, *scheme, *module;
} parts[] = {
#define PART(kind, scheme, module) { kind, scheme, module },
#include "base/modules.def"
#undef PART
};

/* The modules that are loaded; never more than there are parts. */
static const struct module *loaded[ARRAY_LEN(parts)];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#ifndef MODULE_DIR
#define MODULE_DIR "/usr/lib/mandor"
#endif
/* Beside it lies meson's own directory of the build when the program was not installed. */
#define BUILD_MARK "meson-private"

/* The length of url's scheme, without what follows a '+'; 0 when there is none. */
static size_t scheme_len(const char *url)
{
    size_t len = strcspn(url, ":+");

    return url[len] == '\0' ? 0 : len;
}

static const char *lookup(const char *kind, const char *url)
{
    size_t len = scheme_len(url);

    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (str_eq(parts[i].kind, kind) && strlen(parts[i].scheme) == len &&
            memcmp(parts[i].scheme, url, len) == 0)
            return parts[i].module;
    return NULL;
}

bool module_has(const char *kind, const char *url)
{
    return lookup(kind, url) != NULL;
}

const char *module_name(size_t index)
{
    size_t distinct = 0;

    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        size_t before = 0;
        while (before < i && !str_eq(parts[before].module, parts[i].module))
            before++;
        if (before == i && distinct++ == index)
            return parts[i].module;
    }
    return NULL;
}

/* ---- finding the file ---- */

/* Where the program itself is, when that is a directory of a build; "" else. */
static void build_dir(char *dir, size_t size)
{
    char mark[4096];
    ssize_t len = readlink("/proc/self/exe", dir, size - 1);

    dir[MAX(len, (ssize_t)0)] = '\0';
    char *slash = strrchr(dir, '/');
    if (slash == NULL) {
        dir[0] = '\0';
        return;
    }
    *slash = '\0';
    if ((size_t)snprintf(mark, sizeof mark, "%s/" BUILD_MARK, dir) >= sizeof mark ||
        access(mark, F_OK) < 0)
        dir[0] = '\0';
}

static int find_file(const char *name, char *path, size_t size, struct mandor_err *err)
{
    char built[2048];
    const char *given = getenv("MANDOR_MODULES");
    const char *dirs[] = { built, MODULE_DIR };
    size_t first = 0, count = ARRAY_LEN(dirs);

    if (given != NULL && given[0] != '\0') {
        dirs[0] = given;
        count = 1;
    } else {
        build_dir(built, sizeof built);
        first = built[0] == '\0';
    }
    for (size_t i = first; i < count; i++)
        if ((size_t)snprintf(path, size, "%s/mandor-%s.so", dirs[i], name) < size &&
            access(path, F_OK) == 0)
            return 0;
    return err_set(err, -ENOENT, FAULT_HOST,
                   "module '%s' is not installed: there is no 'mandor-%s.so' in '%s'", name, name,
                   dirs[count - 1]);
}

/* ---- loading ---- */

static int check(const struct module *module, const char *name, const char *path,
                 struct mandor_err *err)
{
    if (module == NULL || module->magic != MODULE_MAGIC)
        return err_set(err, -ENOEXEC, FAULT_HOST, "'%s' is no module of mandor", path);
    if (module->abi != MODULE_ABI || !str_eq(module->version, MANDOR_VERSION))
        return err_set(err, -ENOEXEC, FAULT_HOST,
                       "module '%s' is of mandor %s (interface %u), this is mandor %s (interface "
                       "%d): install both from one build",
                       path, module->version, module->abi, MANDOR_VERSION, MODULE_ABI);
    if (!str_eq(module->name, name))
        return err_set(err, -ENOEXEC, FAULT_HOST, "module '%s' says that it is '%s'", path,
                       module->name);
    return 0;
}

static const struct module *open_file(const char *name, struct mandor_err *err)
{
    char path[4096];

    if (find_file(name, path, sizeof path, err) < 0)
        return NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        (void)err_say(err, -ELIBACC, FAULT_HOST, "module '%s' cannot be loaded: %s", name,
                      dlerror());
        return NULL;
    }
    const struct module *module = dlsym(handle, "mandor_module");
    if (check(module, name, path, err) < 0) {
        (void)dlclose(handle);
        return NULL;
    }
    return module;
}

const struct module *module_load(const char *name, struct mandor_err *err)
{
    const struct module *module = NULL;
    struct mandor_err unused;
    size_t free_at = 0;

    (void)pthread_mutex_lock(&lock);
    for (; free_at < ARRAY_LEN(loaded) && loaded[free_at] != NULL; free_at++)
        if (str_eq(loaded[free_at]->name, name))
            module = loaded[free_at];
    if (module == NULL) {
        module = open_file(name, err != NULL ? err : &unused);
        if (module != NULL && free_at < ARRAY_LEN(loaded))
            loaded[free_at] = module;
    }
    (void)pthread_mutex_unlock(&lock);
    return module;
}

const void *module_part(const char *kind, const char *url, struct mandor_err *err)
{
    size_t len = scheme_len(url);
    const char *name = lookup(kind, url);

    if (name == NULL) {
        (void)err_set(err, -ENOENT, FAULT_CALLER, "no module has a %s '%s'", kind, url);
        return NULL;
    }
    const struct module *module = module_load(name, err);
    if (module == NULL)
        return NULL;
    for (size_t i = 0; i < module->part_count; i++)
        if (str_eq(module->parts[i].kind, kind) && strlen(module->parts[i].scheme) == len &&
            memcmp(module->parts[i].scheme, url, len) == 0)
            return module->parts[i].ops;
    (void)err_set(err, -ENOSYS, FAULT_HOST, "module '%s' was built without %s '%.*s:'", name, kind,
                  (int)len, url);
    return NULL;
}
