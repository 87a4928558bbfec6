/* doctor_pools.c - contract in doctor.h: what would keep the workers of a pool from starting. */
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cli/doctor.h"
#include "config/config.h"

/* The PATH that the pool's workers will have. */
static const char *path_of(const struct pool_options *pool)
{
    const char *own = getenv("PATH");

    for (char **var = pool->env; var != NULL && *var != NULL; var++)
        if (strncmp(*var, "PATH=", strlen("PATH=")) == 0)
            return *var + strlen("PATH=");
    return own != NULL ? own : "/usr/local/bin:/usr/bin:/bin";
}

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* Where the program of a pool is; false: nowhere. */
static bool find_program(const struct pool_options *pool, char found[static PATH_MAX])
{
    const char *name = pool->command[0], *place = path_of(pool);

    if (strchr(name, '/') != NULL) {
        int n = name[0] == '/' ? snprintf(found, PATH_MAX, "%s", name)
                               : snprintf(found, PATH_MAX, "%s/%s", pool->cwd, name);
        return n < PATH_MAX && is_program(found);
    }
    for (size_t len; place != NULL; place = place[len] == ':' ? place + len + 1 : NULL) {
        len = strcspn(place, ":");
        if (snprintf(found, PATH_MAX, "%.*s/%s", (int)len, place, name) < PATH_MAX &&
            is_program(found))
            return true;
    }
    return false;
}

/* The first limit that this machine does not enforce, or NULL. */
static const char *unenforced(const struct contain_host *host, const struct spec_limits *limits)
{
    if (limits->memory_bytes > 0 && !host->memory.usable)
        return "memory";
    if (limits->pids > 0 && !host->pids.usable)
        return "pids";
    return limits->cpu > 0 && !host->cpu.usable ? "cpu" : NULL;
}

static void look_at(struct doctor *doctor, const struct pool_options *pool)
{
    char check[96], program[PATH_MAX];
    struct stat st;
    const char *limit = unenforced(&doctor->host, &pool->limits);
    bool strict = str_eq(pool->limits_policy, "strict");

    (void)snprintf(check, sizeof check, "pool %.80s", pool->name);
    if (stat(pool->cwd, &st) < 0)
        doctor_found(doctor, HEALTH_BROKEN, check, "cwd '%s': %s", pool->cwd, strerror(errno));
    else if (!find_program(pool, program))
        doctor_found(doctor, HEALTH_BROKEN, check, "no program '%s' in '%s'", pool->command[0],
                     strchr(pool->command[0], '/') != NULL ? pool->cwd : path_of(pool));
    else if (limit != NULL)
        doctor_found(doctor, strict ? HEALTH_BROKEN : HEALTH_WARN, check,
                     "limit '%s' cannot be enforced here%s", limit,
                     strict ? ", and limits_policy is strict: no worker will start" : "");
    else
        doctor_found(doctor, HEALTH_OK, check, "%s, in %s", program, pool->cwd);
}

void doctor_pools(struct doctor *doctor)
{
    SCOPED(config_free) struct config *config = NULL;
    struct mandor_err err;

    err_clear(&err);
    if (config_load(doctor->cli->config_path, &config, &err) < 0) {
        doctor_found(doctor, HEALTH_BROKEN, "configuration", "%s", err.msg);
        return;
    }
    for (size_t i = 0; i < config->pool_count; i++)
        look_at(doctor, &config->pools[i]);
}
