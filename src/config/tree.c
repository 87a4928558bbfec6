/* tree.c - contract in tree.h.  Recursive descent over libyaml's events. */
#include "config/tree.h"

#include <yaml.h>

#define DEPTH_MAX 16 /* a configuration needs four; libyaml itself would go down 1000 */

struct reader {
    yaml_parser_t parser;
    const char *name;
    const char *text;
    size_t len;
    struct mandor_err *err;
};

static int no_memory(struct reader *reader)
{
    return err_set(reader->err, -ENOMEM, FAULT_HOST, "read '%.100s'", reader->name);
}

/* Is the problem a tab where only spaces may indent?  libyaml only says that it "cannot start any token". */
static bool is_tab(const struct reader *reader)
{
    const char *at = reader->text, *end = reader->text + reader->len;

    for (size_t line = reader->parser.problem_mark.line; line > 0 && at != NULL; line--) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at != NULL ? at + 1 : NULL;
    }
    for (; at != NULL && at < end && (*at == ' ' || *at == '\t'); at++)
        if (*at == '\t')
            return true;
    return false;
}

/* libyaml says what and where; the context, when there is one, says in the middle of what. */
static int parser_failed(struct reader *reader)
{
    const yaml_parser_t *parser = &reader->parser;
    const char *problem = parser->problem != NULL ? parser->problem : "malformed YAML";

    if (parser->error == YAML_SCANNER_ERROR && is_tab(reader))
        return err_set(reader->err, -EINVAL, FAULT_CALLER,
                       "%.100s:%zu:%zu: a tab in the indentation, expected spaces", reader->name,
                       parser->problem_mark.line + 1, parser->problem_mark.column + 1);
    if (parser->error == YAML_MEMORY_ERROR)
        return no_memory(reader);
    if (parser->error == YAML_READER_ERROR) /* before there are lines */
        return err_set(reader->err, -EINVAL, FAULT_CALLER, "%.100s: byte %zu: %s, expected UTF-8",
                       reader->name, parser->problem_offset + 1, problem);
    return err_set(reader->err, -EINVAL, FAULT_CALLER, "%.100s:%zu:%zu: %s%s%s", reader->name,
                   parser->problem_mark.line + 1, parser->problem_mark.column + 1, problem,
                   parser->context != NULL ? " " : "",
                   parser->context != NULL ? parser->context : "");
}

static int at_mark(struct reader *reader, const yaml_event_t *event, const char *what)
{
    return err_set(reader->err, -EINVAL, FAULT_CALLER, "%.100s:%zu:%zu: %s", reader->name,
                   event->start_mark.line + 1, event->start_mark.column + 1, what);
}

static int line_of(const yaml_event_t *event)
{
    return (int)event->start_mark.line + 1;
}

static void event_cleanup(yaml_event_t *event)
{
    yaml_event_delete(event);
}
#define SCOPED_EVENT __attribute__((cleanup(event_cleanup), unused)) yaml_event_t

static int next_event(struct reader *reader, yaml_event_t *event)
{
    return yaml_parser_parse(&reader->parser, event) ? 0 : parser_failed(reader);
}

struct tree *tree_free(struct tree *tree)
{
    if (tree == NULL)
        return NULL;

    for (size_t i = 0; i < tree->count; i++) {
        free(tree->items[i].key);
        (void)tree_free(tree->items[i].value);
    }
    free(tree->items);
    free(tree->text);
    free(tree);
    return NULL;
}

bool tree_is_null(const struct tree *tree)
{
    return tree->kind == TREE_SCALAR && tree->plain &&
           (tree->text[0] == '\0' || str_eq(tree->text, "~") || str_eq(tree->text, "null"));
}

static struct tree *tree_new(enum tree_kind kind, int line)
{
    struct tree *tree = calloc(1, sizeof *tree);

    if (tree != NULL)
        *tree = (struct tree){ .kind = kind, .line = line };
    return tree;
}

/* Append an empty item; or NULL. */
static struct tree_item *add_item(struct tree *tree)
{
    /* 0, 1, 3, 7…: room for one more than twice as many. */
    if ((tree->count & (tree->count + 1)) == 0) {
        struct tree_item *items = realloc(tree->items, (tree->count * 2 + 1) * sizeof *items);
        if (items == NULL)
            return NULL;
        tree->items = items;
    }
    tree->items[tree->count] = (struct tree_item){ 0 };
    return &tree->items[tree->count++];
}

/* The text of a scalar event; malloc'ed. */
static int take_text(struct reader *reader, const yaml_event_t *event, char **ret)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t len = event->data.scalar.length;

    if (memchr(value, '\0', len) != NULL)
        return at_mark(reader, event, "a scalar holds a NUL character, which is not allowed");
    *ret = strdup(value);
    return *ret != NULL ? 0 : no_memory(reader);
}

static int check_features(struct reader *reader, const yaml_event_t *event)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;

    switch (event->type) {
    case YAML_ALIAS_EVENT:
        return at_mark(reader, event,
                       "aliases (*name) are not supported, expected the value itself");
    case YAML_SCALAR_EVENT:
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
        break;
    default:
        break;
    }
    if (anchor != NULL)
        return at_mark(reader, event, "anchors (&name) are not supported, expected a plain value");
    return tag != NULL
               ? at_mark(reader, event, "tags (!name) are not supported, expected a plain value")
               : 0;
}

static int read_node(struct reader *reader, const yaml_event_t *first, int depth,
                     struct tree **ret);

static int read_list(struct reader *reader, struct tree *tree, int depth)
{
    for (;;) {
        SCOPED_EVENT event = { 0 };
        int r = next_event(reader, &event);
        if (r < 0 || event.type == YAML_SEQUENCE_END_EVENT)
            return r;
        struct tree_item *item = add_item(tree);
        if (item == NULL)
            return no_memory(reader);
        item->line = line_of(&event);
        r = read_node(reader, &event, depth, &item->value);
        if (r < 0)
            return r;
    }
}

static int read_key(struct reader *reader, struct tree *tree, const yaml_event_t *event,
                    struct tree_item **ret)
{
    SCOPED_FREE char *key = NULL;

    int r = check_features(reader, event);
    if (r < 0)
        return r;
    if (event->type != YAML_SCALAR_EVENT)
        return at_mark(reader, event, "a list or a mapping as key, expected a word");
    r = take_text(reader, event, &key);
    if (r < 0)
        return r;
    for (size_t i = 0; i < tree->count; i++)
        if (str_eq(tree->items[i].key, key))
            return err_set(reader->err, -EINVAL, FAULT_CALLER,
                           "%.100s:%d: duplicate key '%.60s', it stands in line %d already",
                           reader->name, line_of(event), key, tree->items[i].line);

    *ret = add_item(tree);
    if (*ret == NULL)
        return no_memory(reader);
    (*ret)->key = STEAL(key);
    (*ret)->line = line_of(event);
    return 0;
}

static int read_map(struct reader *reader, struct tree *tree, int depth)
{
    for (;;) {
        SCOPED_EVENT key = { 0 };
        SCOPED_EVENT value = { 0 };
        struct tree_item *item;

        int r = next_event(reader, &key);
        if (r < 0 || key.type == YAML_MAPPING_END_EVENT)
            return r;
        r = read_key(reader, tree, &key, &item);
        if (r == 0)
            r = next_event(reader, &value);
        if (r == 0)
            r = read_node(reader, &value, depth, &item->value);
        if (r < 0)
            return r;
    }
}

/* The node that starts with the event `first`. */
static int read_node(struct reader *reader, const yaml_event_t *first, int depth, struct tree **ret)
{
    int r = check_features(reader, first);
    if (r < 0)
        return r;
    if (depth >= DEPTH_MAX)
        return at_mark(reader, first, "nested too deeply");

    enum tree_kind kind = first->type == YAML_SCALAR_EVENT           ? TREE_SCALAR
                          : first->type == YAML_SEQUENCE_START_EVENT ? TREE_LIST
                                                                     : TREE_MAP;
    struct tree *tree = tree_new(kind, line_of(first));
    *ret = tree; /* in the tree at once: whoever frees the root frees it, half-read or not */
    if (tree == NULL)
        return no_memory(reader);

    if (kind == TREE_LIST)
        return read_list(reader, tree, depth + 1);
    if (kind == TREE_MAP)
        return read_map(reader, tree, depth + 1);
    tree->plain = first->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return take_text(reader, first, &tree->text);
}

/* One document and nothing behind it. */
static int read_document(struct reader *reader, struct tree **ret)
{
    for (bool seen = false;;) {
        SCOPED_EVENT event = { 0 };
        int r = next_event(reader, &event);
        if (r < 0)
            return r;
        switch (event.type) {
        case YAML_STREAM_END_EVENT:
            return 0;
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_END_EVENT:
            continue;
        case YAML_DOCUMENT_START_EVENT:
            if (seen)
                return at_mark(reader, &event, "a second document, expected one only");
            seen = true;
            continue;
        default:
            r = read_node(reader, &event, 0, ret);
            if (r < 0)
                return r;
        }
    }
}

int tree_parse(const char *name, const char *text, size_t len, struct tree **ret,
               struct mandor_err *err)
{
    SCOPED(tree_free) struct tree *tree = NULL;
    struct reader reader = { .name = name, .text = text, .len = len, .err = err };

    if (!yaml_parser_initialize(&reader.parser))
        return no_memory(&reader);
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, len);
    int r = read_document(&reader, &tree);
    yaml_parser_delete(&reader.parser);

    if (r == 0 && (tree == NULL || tree_is_null(tree))) { /* empty, or comments only */
        (void)tree_free(tree);
        tree = tree_new(TREE_MAP, 1);
        if (tree == NULL)
            return err_set(err, -ENOMEM, FAULT_HOST, "read '%.100s'", name);
    }
    if (r == 0)
        *ret = STEAL(tree);
    return r;
}
