/* keys.c - prints the keys of mandor.yaml as scdoc, from the tables that the parser uses.  Runs at build time only. */
#include <ctype.h>
#include <stdio.h>

#include "config/param.h"
#include "job/spec.h"

static const char *type_name(enum opt_type type)
{
    switch (type) {
    case OPT_STRING:
    case OPT_BYTES:
        return "text";
    case OPT_INT:
        return "integer";
    case OPT_REAL:
        return "number";
    case OPT_BOOL:
        return "true or false";
    case OPT_DURATION:
        return "duration";
    case OPT_SIZE:
        return "size";
    case OPT_ENUM:
        return "one of";
    case OPT_ENV:
        return "map of names to values";
    case OPT_ARGV:
        return "list of arguments";
    case OPT_INTS:
        return "list of integers";
    case OPT_JSON:
        return "any value";
    case OPT_SINKS:
        return "text, or a list";
    }
    return "";
}

/* scdoc takes these for markup. */
static void print_text(const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (strchr("*_\\#`<[", *p) != NULL)
            (void)putchar('\\');
        (void)putchar(*p);
    }
}

static void print_key(const char *key, const char *type, const char *choices, const char *fallback,
                      const char *help)
{
    (void)fputs("*", stdout);
    print_text(key);
    (void)printf("* (%s", type);
    if (choices != NULL) {
        (void)putchar(' ');
        print_text(choices);
    }
    (void)printf(")\n\t%c", toupper((unsigned char)help[0]));
    print_text(help + 1);
    (void)putchar('.');
    if (fallback != NULL && fallback[0] != '\0') {
        (void)fputs(" Default: ", stdout);
        print_text(fallback);
        (void)putchar('.');
    }
    (void)fputs("\n\n", stdout);
}

static void print_options(bool on_queue)
{
    size_t count;
    const struct spec_option *options = spec_options(&count);

    for (size_t i = 0; i < count; i++)
        if (options[i].on_queue == on_queue)
            print_key(options[i].key, type_name(options[i].type),
                      options[i].type == OPT_ENUM ? options[i].choices : NULL, options[i].fallback,
                      options[i].help);
}

int main(void)
{
    size_t count;
    const struct param *params = param_rows(&count);

    (void)puts("# KEYS\n");
    for (size_t i = 0; i < count; i++)
        print_key(params[i].path, param_type_name(&params[i]), NULL, params[i].fallback,
                  params[i].help);
    (void)puts("# JOB OPTIONS ON A QUEUE\n\nEach of these may stand on a queue, as the default of "
               "its jobs. "
               "_a.b_ is the key _b_ of the map _a_.\n");
    print_options(true);
    (void)puts("# OTHER JOB OPTIONS\n\nThese belong to a job alone.\n");
    print_options(false);
    return 0;
}
