/* cmd_wheels.c - `mandor wheels`: which subcommand on which store, and those that need nothing but mandor. */
#include <stdio.h>
#include <sys/stat.h>

#include "base/units.h"
#include "cli/out.h"
#include "cli/wheels.h"
#include "cli/wheels_smoke.h"
#include "python/store.h"

/* ---- ls ---- */

/* A package with its name, as `ls --json` prints it; new reference or NULL. */
static json_t *with_name(const char *name, const json_t *package)
{
    SCOPED_JSON *line = json_pack("{s:s}", "name", name);

    return line != NULL && json_object_update(line, (json_t *)package) == 0 ? STEAL(line) : NULL;
}

static int list_json(const json_t *lock)
{
    const char *name;
    json_t *package;

    json_object_foreach(lockfile_packages(lock), name, package) {
        SCOPED_JSON *line = with_name(name, package);
        if (line == NULL || out_json(line) < 0)
            return -ENOMEM;
    }
    return 0;
}

static const char *extras_of(const json_t *package, char *text, size_t size)
{
    const char *extra;
    json_t *depends;
    size_t at = 0;

    text[0] = '\0';
    json_object_foreach(json_object_get(package, "extras"), extra, depends) {
        if (at < size)
            at += (size_t)snprintf(text + at, size - at, "%s%s", at > 0 ? "," : "", extra);
    }
    return text;
}

static int list_table(const json_t *lock)
{
    static const char *const titles[] = { "NAME", "VERSION", "SIZE", "TAG", "EXTRAS" };
    SCOPED(table_free) struct table *table = table_new(titles, ARRAY_LEN(titles));
    char size[UNITS_TEXT_SIZE], extras[256];
    const char *name;
    json_t *package;

    if (table == NULL)
        return -ENOMEM;
    json_object_foreach(lockfile_packages(lock), name, package) {
        const json_t *tags = json_object_get(package, "tags");
        const char *tag = json_string_value(json_array_get(tags, json_array_size(tags) - 1));
        table_cell(table, STYLE_BOLD, "%s", name);
        table_cell(table, STYLE_PLAIN, "%s", lockfile_text(package, "version"));
        table_cell(table, STYLE_PLAIN, "%s",
                   units_human_size(json_integer_value(json_object_get(package, "size")), size));
        table_cell(table, STYLE_DIM, "%s", tag != NULL ? tag : "");
        table_cell(table, STYLE_DIM, "%s", extras_of(package, extras, sizeof extras));
    }
    return table_print(table);
}

static int wheels_ls(struct wheels *wheels)
{
    SCOPED_JSON *lock = NULL;
    struct mandor_err err = { .code = 0 };

    if (store_read(wheels->store, &lock, &err) < 0)
        return cli_fail(wheels->cli, &err);
    if ((wheels->cli->json ? list_json(lock) : list_table(lock)) < 0) {
        (void)err_set(&err, -ENOMEM, FAULT_HOST, "list the wheels");
        return cli_fail(wheels->cli, &err);
    }
    return EXIT_OK;
}

/* ---- export ---- */

static int wheels_export(struct wheels *wheels)
{
    SCOPED_JSON *lock = NULL;
    SCOPED_BUF text = { .data = NULL };
    struct mandor_err err = { .code = 0 };

    if (store_read(wheels->store, &lock, &err) < 0)
        return cli_fail(wheels->cli, &err);
    if (lockfile_write(&text, lock) < 0) {
        (void)err_set(&err, -ENOMEM, FAULT_HOST, "print the lock file");
        return cli_fail(wheels->cli, &err);
    }
    text.data[text.len - 1] = '\0'; /* out_line() adds it */
    out_line("%s", text.data);
    return EXIT_OK;
}

/* ---- rm ---- */

/* Can these be loaded, as far as the lock says? */
static bool complete(const struct wheels *wheels, const json_t *lock, char *const *packages,
                     struct mandor_err *err)
{
    SCOPED_JSON *names = NULL;

    return store_order(lock, wheels->store, packages, &names, err) == 0;
}

static bool same_directory(const char *a, const char *b)
{
    struct stat sa, sb;

    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev &&
           sa.st_ino == sb.st_ino;
}

/* Who could be loaded before and no longer can?  -EBUSY (exit code 4) names one. */
static int check_unneeded(const struct wheels *wheels, const json_t *before, const json_t *after,
                          struct mandor_err *err)
{
    const struct python_options *python = &wheels->config->python;
    bool ours = python->store != NULL && same_directory(python->store, wheels->store);
    struct mandor_err why;
    const char *name;
    json_t *package;

    json_object_foreach(lockfile_packages(after), name, package) {
        char *const alone[] = { (char *)name, NULL };
        if (complete(wheels, before, alone, NULL) && !complete(wheels, after, alone, &why))
            return err_set(err, -EBUSY, FAULT_CALLER,
                           "package '%s' could not be loaded any more; remove it, too, or use "
                           "--force",
                           name);
    }
    for (size_t i = 0; i < python->runtime_count; i++) {
        char *const *packages = python->runtimes[i].packages;
        if (ours && complete(wheels, before, packages, NULL) &&
            !complete(wheels, after, packages, &why))
            return err_set(err, -EBUSY, FAULT_CALLER,
                           "runtime '%s' of '%s' could not be started any more: take it from its "
                           "packages first, or use --force",
                           python->runtimes[i].name, wheels->config->path);
    }
    return 0;
}

static int remove_one(struct store_edit *edit, const char *text, char *name, size_t size,
                      struct mandor_err *err)
{
    struct requirement requirement;
    int r = requirement_parse(text, &requirement, err);
    if (r < 0)
        return r;

    bool plain = requirement.rest[0] == '\0' && requirement.extras[0] == '\0';
    (void)snprintf(name, size, "%s", requirement.name);
    requirement_done(&requirement);
    return plain ? store_edit_remove(edit, name, err)
                 : err_set(err, -EINVAL, FAULT_CALLER, "'%.80s': expected a package's name", text);
}

static int remove_all(struct wheels *wheels, struct store_edit *edit, struct mandor_err *err)
{
    SCOPED_JSON *before = json_deep_copy(store_edit_lock(edit));
    char name[WHEEL_NAME_MAX + 1];

    if (before == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "remove packages");
    for (size_t i = 0; i < wheels->arg_count; i++) {
        int r = remove_one(edit, wheels->args[i], name, sizeof name, err);
        if (r < 0)
            return r;
    }
    int r = cli_flag(wheels->cli, "force")
                ? 0
                : check_unneeded(wheels, before, store_edit_lock(edit), err);
    return r < 0 ? r : store_edit_commit(edit, err);
}

static int wheels_rm(struct wheels *wheels)
{
    SCOPED(store_edit_free) struct store_edit *edit = NULL;
    SCOPED_JSON *lock = NULL;
    struct mandor_err err = { .code = 0 };

    if (wheels->arg_count == 0)
        return cli_usage(wheels->cli, "rm: no package named");
    int r = store_read(wheels->store, &lock, &err); /* nothing is made where nothing is */
    if (r == 0)
        r = store_edit_begin(wheels->store, &edit, &err);
    if (r == 0)
        r = remove_all(wheels, edit, &err);
    return r < 0 ? cli_fail(wheels->cli, &err) : EXIT_OK;
}

/* ---- verify ---- */

/* One package: its bytes, its tags, what it needs.  0, or the reason in *err. */
static int verify_one(const struct wheels *wheels, const json_t *lock, const char *name,
                      const json_t *package, struct mandor_err *err)
{
    SCOPED_JSON *names = NULL;
    char *const alone[] = { (char *)name, NULL };
    bool fits = false;
    size_t i;
    json_t *tag;

    int r = store_check_file(wheels->store, name, package, err);
    if (r < 0)
        return r;
    json_array_foreach(json_object_get(package, "tags"), i, tag) {
        fits |= wheel_tag_fits(json_string_value(tag));
    }
    if (!fits)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "none of its tags fits, expected %s-%s-%s or a pure wheel", WHEEL_ABI,
                       WHEEL_ABI, WHEEL_PLATFORM);
    return store_order(lock, wheels->store, alone, &names, err);
}

static int say_verified(const struct wheels *wheels, const char *name, const json_t *package,
                        const char *wrong)
{
    const char *version = lockfile_text(package, "version");

    if (wheels->cli->json) {
        SCOPED_JSON *line = json_pack("{s:s, s:s, s:b, s:s?}", "name", name, "version", version,
                                      "ok", (int)(wrong == NULL), "error", wrong);
        return line != NULL ? out_json(line) : -ENOMEM;
    }
    if (wrong == NULL)
        out_line("%sok%s     %s %s", style_on(STYLE_GREEN), style_off(STYLE_GREEN), name, version);
    else
        out_line("%sWRONG%s  %s %s: %s", style_on(STYLE_RED), style_off(STYLE_RED), name, version,
                 wrong);
    return 0;
}

/* Is this package asked for?  Without names all are. */
static bool chosen(const struct wheels *wheels, const char *name)
{
    for (size_t i = 0; i < wheels->arg_count; i++) {
        struct requirement requirement;
        if (requirement_parse(wheels->args[i], &requirement, NULL) < 0)
            continue;
        bool same = str_eq(requirement.name, name);
        requirement_done(&requirement);
        if (same)
            return true;
    }
    return wheels->arg_count == 0;
}

static int check_names(const struct wheels *wheels, const json_t *lock, struct mandor_err *err)
{
    char *const *args = wheels->args;

    for (size_t i = 0; i < wheels->arg_count; i++) {
        struct requirement requirement;
        int r = requirement_parse(args[i], &requirement, err);
        if (r < 0)
            return r;
        if (json_object_get(lockfile_packages(lock), requirement.name) == NULL)
            r = err_set(err, -ENOENT, FAULT_CALLER, "package '%s' is not in the wheel store '%s'",
                        requirement.name, wheels->store);
        requirement_done(&requirement);
        if (r < 0)
            return r;
    }
    return 0;
}

/* What is wrong with each chosen package without running anything: {name: null or the reason}. */
static int look_at_all(const struct wheels *wheels, const json_t *lock, json_t *found,
                       struct mandor_err *err)
{
    const char *name;
    json_t *package;

    json_object_foreach(lockfile_packages(lock), name, package) {
        struct mandor_err why = { .code = 0 };
        if (!chosen(wheels, name))
            continue;
        int r = verify_one(wheels, lock, name, package, &why);
        if (json_object_set_new(found, name, r < 0 ? json_string(why.msg) : json_null()) < 0)
            return err_set(err, -ENOMEM, FAULT_HOST, "look at the wheels");
    }
    return 0;
}

static bool all_well(const json_t *found)
{
    const char *name;
    json_t *wrong;

    json_object_foreach((json_t *)found, name, wrong) {
        if (!json_is_null(wrong))
            return false;
    }
    return true;
}

/* Whoever changes the store meanwhile takes away files that this lock names: then it is looked at anew, as it is now. */
static int look_until_settled(const struct wheels *wheels, json_t **lock, json_t *found,
                              struct mandor_err *err)
{
    for (int turn = 0;; turn++) {
        json_t *before = *lock;
        int r = look_at_all(wheels, *lock, found, err);
        if (r < 0 || all_well(found) || turn == STORE_RACES_MAX)
            return r;
        if ((r = store_read(wheels->store, lock, err)) < 0)
            return r;
        bool same = json_equal(*lock, before);
        json_decref(before);
        if (same)
            return 0;
        (void)json_object_clear(found);
        if ((r = check_names(wheels, *lock, err)) < 0)
            return r;
    }
}

/* Import those that are well so far; found is brought up to date. */
static int import_all(const struct wheels *wheels, const json_t *lock, json_t *found,
                      struct mandor_err *err)
{
    SCOPED_JSON *names = json_array(), *tried = NULL;
    const char *name;
    json_t *wrong;
    bool no_memory = names == NULL;

    json_object_foreach(found, name, wrong) {
        if (json_is_null(wrong))
            no_memory |= json_array_append_new(names, json_string(name)) < 0;
    }
    if (no_memory)
        return err_set(err, -ENOMEM, FAULT_HOST, "import the packages");
    if (json_array_size(names) == 0)
        return 0;
    int r = wheels_smoke(wheels, lock, names, &tried, err);
    return r < 0 || json_object_update(found, tried) == 0
               ? r
               : err_set(err, -ENOMEM, FAULT_HOST, "import the packages");
}

static int say_all(const struct wheels *wheels, const json_t *lock, const json_t *found, int *code,
                   struct mandor_err *err)
{
    const char *name;
    json_t *wrong;

    json_object_foreach((json_t *)found, name, wrong) {
        const json_t *package = json_object_get(lockfile_packages(lock), name);
        if (!json_is_null(wrong))
            *code = EXIT_FAILED;
        if (say_verified(wheels, name, package, json_string_value(wrong)) < 0)
            return err_set(err, -ENOMEM, FAULT_HOST, "print what was found");
    }
    return 0;
}

static int wheels_verify(struct wheels *wheels)
{
    SCOPED_JSON *lock = NULL, *found = json_object();
    struct mandor_err err = { .code = 0 }, not_tried = { .code = 0 };
    int code = EXIT_OK;

    int r = found != NULL ? store_read(wheels->store, &lock, &err)
                          : err_set(&err, -ENOMEM, FAULT_HOST, "look at the wheels");
    if (r == 0)
        r = check_names(wheels, lock, &err);
    if (r == 0)
        r = look_until_settled(wheels, &lock, found, &err);
    if (r == 0 && !cli_flag(wheels->cli, "no-import"))
        (void)import_all(wheels, lock, found, &not_tried); /* what was found is told in any case */
    if (r == 0)
        r = say_all(wheels, lock, found, &code, &err);
    if (r < 0)
        return cli_fail(wheels->cli, &err);
    return not_tried.code != 0 ? cli_fail(wheels->cli, &not_tried) : code;
}

/* ---- which one ---- */

static const struct {
    const char *name;
    int (*run)(struct wheels *wheels);
    const char *options[4]; /* beside --store, --config and --json */
} verbs[] = {
    { "add", wheels_add, { "lock", "upgrade", "pyodide", "pyodide-url" } },
    { "import", wheels_import, { "lock", "no-deps" } },
    { "ls", wheels_ls, { NULL } },
    { "verify", wheels_verify, { "no-import" } },
    { "rm", wheels_rm, { "force" } },
    { "export", wheels_export, { NULL } },
};

static const char *const verb_options[] = { "lock",    "upgrade",   "pyodide", "pyodide-url",
                                            "no-deps", "no-import", "force" };

static bool takes(size_t verb, const char *option)
{
    for (size_t i = 0; i < ARRAY_LEN(verbs[verb].options); i++)
        if (verbs[verb].options[i] != NULL && str_eq(verbs[verb].options[i], option))
            return true;
    return false;
}

/* Index of the subcommand, or -1 after a complaint. */
static int find_verb(const struct cli *cli)
{
    const char *names[ARRAY_LEN(verbs)];

    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        names[i] = verbs[i].name;
        if (str_eq(cli->args[0], verbs[i].name))
            return (int)i;
    }
    const char *near = units_nearest(cli->args[0], names, ARRAY_LEN(names));
    (void)cli_usage(cli, "unknown '%.64s', %s%s%s", cli->args[0],
                    near != NULL ? "did you mean '"
                                 : "expected add, import, ls, verify, rm or export",
                    near != NULL ? near : "", near != NULL ? "'?" : "");
    return -1;
}

static bool options_fit(const struct cli *cli, int verb)
{
    for (size_t i = 0; i < ARRAY_LEN(verb_options); i++) {
        bool given = str_eq(verb_options[i], "lock") || strncmp(verb_options[i], "pyodide", 7) == 0
                         ? cli_text(cli, verb_options[i]) != NULL
                         : cli_flag(cli, verb_options[i]);
        if (given && !takes((size_t)verb, verb_options[i])) {
            (void)cli_usage(cli, "'%s' has no option '--%s'", verbs[verb].name, verb_options[i]);
            return false;
        }
    }
    return true;
}

/* An absolute path for one that need not be there yet. */
static char *absolute(const char *path)
{
    SCOPED_FREE char *here = path[0] != '/' ? getcwd(NULL, 0) : NULL;
    char *whole = NULL;

    if (path[0] == '/')
        return strdup(path);
    return here != NULL && asprintf(&whole, "%s/%s", here, path) >= 0 ? whole : NULL;
}

/* --store, else python.store.  The configuration is read only where something of it is needed. */
static int find_store(struct wheels *wheels, bool with_config, struct mandor_err *err)
{
    const char *given = cli_text(wheels->cli, "store");
    int r = with_config || given == NULL
                ? config_load(wheels->cli->config_path, &wheels->config, err)
                : 0;
    if (r < 0)
        return r;

    if (given != NULL && given[0] == '\0')
        return err_set(err, -EINVAL, FAULT_CALLER, "option '--store': expected a directory");
    const char *path = given != NULL ? given : wheels->config->python.store;
    if (path == NULL)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "which store? expected --store DIR, or python: {store: DIR} in mandor.yaml");
    wheels->store = absolute(path);
    return wheels->store != NULL ? 0 : err_set(err, -ENOMEM, FAULT_HOST, "find the wheel store");
}

int cmd_wheels(struct cli *cli)
{
    struct wheels wheels = { .cli = cli, .args = cli->args + 1, .arg_count = cli->arg_count - 1 };
    struct mandor_err err = { .code = 0 };
    int verb = find_verb(cli);

    if (verb < 0 || !options_fit(cli, verb))
        return EXIT_USAGE;
    if (wheels.arg_count > 0 && (verbs[verb].run == wheels_ls || verbs[verb].run == wheels_export))
        return cli_usage(cli, "%s: unexpected '%.64s'", verbs[verb].name, wheels.args[0]);
    bool with_config = verbs[verb].run == wheels_rm || verbs[verb].run == wheels_verify;
    int code =
        find_store(&wheels, with_config, &err) < 0 ? cli_fail(cli, &err) : verbs[verb].run(&wheels);
    (void)config_free(wheels.config);
    free(wheels.store);
    return code;
}
