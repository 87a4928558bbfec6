/* s3_place.c - where an object is, and memory for its parts: contract in s3.h. */
#include <stdio.h>
#include <sys/mman.h>

#include "base/words.h"
#include "curl/s3.h"

static const char *env(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

static const char *first(const char *a, const char *b, const char *c, const char *d)
{
    return a != NULL ? a : b != NULL ? b : c != NULL ? c : d;
}

static int copy_settings(struct s3_settings *to, const struct s3_settings *from)
{
    *to = (struct s3_settings){ .part_size_bytes = from->part_size_bytes,
                                .concurrency = from->concurrency,
                                .max_parts = from->max_parts };
    if (word_copy(from->access_key, &to->access_key) < 0 ||
        word_copy(from->secret_key, &to->secret_key) < 0 ||
        word_copy(from->session_token, &to->session_token) < 0 ||
        word_copy(from->credentials_file, &to->credentials_file) < 0 ||
        word_copy(from->profile, &to->profile) < 0)
        return -ENOMEM;
    return 0;
}

/* A bucket can stand in a host's name when it looks like one; dots would leave a certificate's wildcard. */
static bool fits_host(const char *bucket)
{
    size_t len = strlen(bucket);

    return len >= 3 && len <= 63 && strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

static int bad_endpoint(const char *endpoint, struct mandor_err *err)
{
    return err_set(err, -EINVAL, FAULT_CALLER,
                   "S3 endpoint '%s': expected a URL such as https://s3.internal:9000", endpoint);
}

/* Take the endpoint's URL apart. */
static int set_endpoint(struct s3_place *place, const char *endpoint, struct mandor_err *err)
{
    const char *host = strstr(endpoint, "://");

    if (host == NULL ||
        (strncmp(endpoint, "http://", 7) != 0 && strncmp(endpoint, "https://", 8) != 0))
        return bad_endpoint(endpoint, err);
    place->scheme = strndup(endpoint, (size_t)(host - endpoint));
    host += 3;
    size_t len = strcspn(host, "/?#");
    if (len == 0 || memchr(host, '@', len) != NULL || host[len] == '?' || host[len] == '#')
        return bad_endpoint(endpoint, err);
    place->host = strndup(host, len);
    place->base_path = strdup(host + len);
    if (place->scheme == NULL || place->host == NULL || place->base_path == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the S3 endpoint");

    char *colon = strrchr(place->host, ':');
    bool secure = place->scheme[4] == 's';
    /* As curl writes the Host header. */
    if (colon != NULL && str_eq(colon, secure ? ":443" : ":80"))
        *colon = '\0';
    for (size_t at = strlen(place->base_path); at > 0 && place->base_path[at - 1] == '/'; at--)
        place->base_path[at - 1] = '\0';
    return 0;
}

static int set_amazon(struct s3_place *place)
{
    place->is_amazon = true;
    place->scheme = strdup("https");
    place->base_path = strdup("");
    if (asprintf(&place->host, "s3.%s.amazonaws.com", place->region) < 0)
        place->host = NULL;
    return place->scheme == NULL || place->base_path == NULL || place->host == NULL ? -ENOMEM : 0;
}

static int fill(struct s3_place *place, const char *rest, const struct s3_settings *settings,
                struct mandor_err *err)
{
    const char *bucket = rest + 2; /* behind "//" */
    size_t len = strcspn(bucket, "/");
    const char *endpoint =
        first(settings->endpoint, env("AWS_ENDPOINT_URL_S3"), env("AWS_ENDPOINT_URL"), NULL);
    const char *style = settings->path_style == NULL ? "auto" : settings->path_style;
    int r = copy_settings(&place->settings, settings);

    place->bucket = strndup(bucket, len);
    place->key = strdup(bucket[len] == '/' ? bucket + len + 1 : "");
    place->region =
        strdup(first(settings->region, env("AWS_REGION"), env("AWS_DEFAULT_REGION"), "us-east-1"));
    if (r == 0 && (place->bucket == NULL || place->key == NULL || place->region == NULL))
        r = -ENOMEM;
    if (r == 0 && endpoint != NULL && (r = set_endpoint(place, endpoint, err)) == -EINVAL)
        return r;
    if (r == 0 && endpoint == NULL)
        r = set_amazon(place);
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "open 's3:%s'", rest);
    place->path_style = str_eq(style, "true") ||
                        (str_eq(style, "auto") && (endpoint != NULL || !fits_host(place->bucket)));
    return 0;
}

int s3_place_new(const char *rest, const struct s3_settings *settings, struct s3_place **ret,
                 struct mandor_err *err)
{
    struct s3_place *place = calloc(1, sizeof *place);
    if (place == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open 's3:%s'", rest);

    place->refs = 1;
    int r = fill(place, rest, settings, err);
    if (r < 0)
        s3_place_unref(place);
    else
        *ret = place;
    return r;
}

struct s3_place *s3_place_ref(struct s3_place *place)
{
    place->refs++;
    return place;
}

void s3_place_unref(struct s3_place *place)
{
    if (place == NULL || --place->refs > 0)
        return;
    free(place->scheme);
    free(place->host);
    free(place->base_path);
    free(place->region);
    free(place->bucket);
    free(place->key);
    s3_settings_done(&place->settings);
    free(place);
}

/* ---- memory ---- */

int s3_memory_new(struct s3_memory *memory, size_t size)
{
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED)
        return -ENOMEM;
    *memory = (struct s3_memory){ .bytes = bytes, .size = size };
    return 0;
}

void s3_memory_done(struct s3_memory *memory)
{
    if (memory->bytes != NULL)
        (void)munmap(memory->bytes, memory->size);
    *memory = (struct s3_memory){ 0 };
}
