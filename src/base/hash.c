/* hash.c - contract in hash.h.
 *
 * Open addressing with linear probing.  Removal shifts the followers back instead of leaving tombstones, so the table
 * never degrades however long it lives.  A slot is free when its value is NULL.
 */
#include "base/hash.h"

#include <xxhash.h>

#define HASH_MAGIC     0x48415348u
#define HASH_SLOTS_MIN ((size_t)16)

struct slot {
    uint64_t code; /* hash of the key; its low bits say where the slot wants to be */
    uint64_t key;
    char *text; /* NULL with number keys */
    void *value;
};

struct hash {
    uint32_t magic;
    size_t count, mask;
    uint64_t seed;
    struct slot *slots;
};

int hash_new(struct hash **ret)
{
    struct hash *hash = malloc(sizeof *hash);
    struct slot *slots = calloc(HASH_SLOTS_MIN, sizeof *slots);
    if (hash == NULL || slots == NULL) {
        free(hash);
        free(slots);
        return -ENOMEM;
    }

    /* The address makes the order differ from process to process: nobody can prepare colliding keys. */
    *hash = (struct hash){
        .magic = HASH_MAGIC, .mask = HASH_SLOTS_MIN - 1, .seed = (uintptr_t)hash, .slots = slots
    };
    *ret = hash;
    return 0;
}

struct hash *hash_free(struct hash *hash)
{
    if (hash == NULL)
        return NULL;
    OBJ_CHECK(hash, HASH_MAGIC);

    for (size_t i = 0; i <= hash->mask; i++)
        free(hash->slots[i].text);
    free(hash->slots);
    OBJ_FINI(hash);
    free(hash);
    return NULL;
}

static uint64_t code_of(const struct hash *hash, uint64_t key, const char *text)
{
    return text != NULL ? XXH3_64bits_withSeed(text, strlen(text), hash->seed)
                        : XXH3_64bits_withSeed(&key, sizeof key, hash->seed);
}

static bool matches(const struct slot *slot, uint64_t code, uint64_t key, const char *text)
{
    if (slot->code != code)
        return false;
    BUG_ON((slot->text != NULL) != (text != NULL)); /* one kind of key only */
    return text != NULL ? str_eq(slot->text, text) : slot->key == key;
}

/* The slot of the key, or the free one where it would go. */
static struct slot *find(const struct hash *hash, uint64_t code, uint64_t key, const char *text)
{
    size_t at = (size_t)code & hash->mask;

    while (hash->slots[at].value != NULL && !matches(&hash->slots[at], code, key, text))
        at = (at + 1) & hash->mask;
    return &hash->slots[at];
}

static int grow(struct hash *hash)
{
    size_t mask = hash->mask * 2 + 1;
    struct slot *slots = calloc(mask + 1, sizeof *slots);
    if (slots == NULL)
        return -ENOMEM;

    for (size_t i = 0; i <= hash->mask; i++) {
        if (hash->slots[i].value == NULL)
            continue;
        size_t at = (size_t)hash->slots[i].code & mask;
        while (slots[at].value != NULL)
            at = (at + 1) & mask;
        slots[at] = hash->slots[i];
    }
    free(hash->slots);
    hash->slots = slots;
    hash->mask = mask;
    return 0;
}

static int put(struct hash *hash, uint64_t key, const char *text, void *value)
{
    OBJ_CHECK(hash, HASH_MAGIC);
    BUG_ON(value == NULL);

    uint64_t code = code_of(hash, key, text);
    if (find(hash, code, key, text)->value != NULL)
        return -EEXIST;
    if ((hash->count + 1) * 4 > (hash->mask + 1) * 3 && grow(hash) < 0)
        return -ENOMEM;
    char *copy = text != NULL ? strdup(text) : NULL;
    if (text != NULL && copy == NULL)
        return -ENOMEM;

    *find(hash, code, key, text) =
        (struct slot){ .code = code, .key = key, .text = copy, .value = value };
    hash->count++;
    return 0;
}

static void *get(const struct hash *hash, uint64_t key, const char *text)
{
    OBJ_CHECK(hash, HASH_MAGIC);
    return find(hash, code_of(hash, key, text), key, text)->value;
}

/* Close the gap at `hole`: every follower of the run that may move there does. */
static void shift_back(struct hash *hash, size_t hole)
{
    for (size_t at = (hole + 1) & hash->mask; hash->slots[at].value != NULL;
         at = (at + 1) & hash->mask) {
        size_t home = (size_t)hash->slots[at].code & hash->mask;
        if (((at - home) & hash->mask) < ((at - hole) & hash->mask))
            continue; /* its home lies behind the hole */
        hash->slots[hole] = hash->slots[at];
        hole = at;
    }
    hash->slots[hole] = (struct slot){ 0 };
}

static void *take(struct hash *hash, uint64_t key, const char *text)
{
    OBJ_CHECK(hash, HASH_MAGIC);

    struct slot *slot = find(hash, code_of(hash, key, text), key, text);
    void *value = slot->value;
    if (value == NULL)
        return NULL;

    free(slot->text);
    shift_back(hash, (size_t)(slot - hash->slots));
    hash->count--;
    return value;
}

int hash_put(struct hash *hash, uint64_t key, void *value)
{
    return put(hash, key, NULL, value);
}

void *hash_get(const struct hash *hash, uint64_t key)
{
    return get(hash, key, NULL);
}

void *hash_take(struct hash *hash, uint64_t key)
{
    return take(hash, key, NULL);
}

int hash_puts(struct hash *hash, const char *key, void *value)
{
    return put(hash, 0, key, value);
}

void *hash_gets(const struct hash *hash, const char *key)
{
    return get(hash, 0, key);
}

void *hash_takes(struct hash *hash, const char *key)
{
    return take(hash, 0, key);
}

size_t hash_count(const struct hash *hash)
{
    OBJ_CHECK(hash, HASH_MAGIC);
    return hash->count;
}

void hash_each(const struct hash *hash, void (*fn)(void *value, void *arg), void *arg)
{
    OBJ_CHECK(hash, HASH_MAGIC);
    for (size_t i = 0; i <= hash->mask; i++)
        if (hash->slots[i].value != NULL)
            fn(hash->slots[i].value, arg);
}
