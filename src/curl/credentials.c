/* credentials.c - contract in credentials.h. */
#include "curl/credentials.h"

#include <stdio.h>

#include "base/file.h"

#define FILE_MAX ((size_t)256 << 10)

void credentials_done(struct credentials *credentials)
{
    if (credentials->secret_key != NULL)
        explicit_bzero(credentials->secret_key, strlen(credentials->secret_key));
    free(credentials->access_key);
    free(credentials->secret_key);
    free(credentials->token);
    *credentials = (struct credentials){ 0 };
}

static int take(const char *access_key, const char *secret_key, const char *token,
                struct credentials *ret)
{
    *ret = (struct credentials){ .access_key = strdup(access_key),
                                 .secret_key = strdup(secret_key),
                                 .token = token == NULL ? NULL : strdup(token) };
    if (ret->access_key != NULL && ret->secret_key != NULL && (token == NULL || ret->token != NULL))
        return 0;
    credentials_done(ret);
    return -ENOMEM;
}

/* ---- the file ---- */

/* Without blanks around it; in place. */
static char *trim(char *text)
{
    text += strspn(text, " \t\r");
    size_t len = strlen(text);
    while (len > 0 && strchr(" \t\r", text[len - 1]) != NULL)
        text[--len] = '\0';
    return text;
}

/* Where a key's value belongs, or NULL. */
static char **slot_of(struct credentials *credentials, const char *key)
{
    if (strcasecmp(key, "aws_access_key_id") == 0)
        return &credentials->access_key;
    if (strcasecmp(key, "aws_secret_access_key") == 0)
        return &credentials->secret_key;
    return strcasecmp(key, "aws_session_token") == 0 ? &credentials->token : NULL;
}

static int read_line(char *line, const char *profile, bool *in_profile, struct credentials *ret)
{
    line = trim(line);
    if (line[0] == '\0' || line[0] == '#' || line[0] == ';')
        return 0;
    if (line[0] == '[') {
        char *end = strchr(line, ']');
        if (end != NULL)
            *end = '\0';
        *in_profile = str_eq(trim(line + 1), profile);
        return 0;
    }
    char *equals = strchr(line, '=');
    if (!*in_profile || equals == NULL)
        return 0;
    *equals = '\0';
    char **slot = slot_of(ret, trim(line));
    if (slot == NULL)
        return 0;
    free(*slot);
    *slot = strdup(trim(equals + 1));
    return *slot == NULL ? -ENOMEM : 0;
}

int credentials_parse(const char *text, const char *profile, struct credentials *ret)
{
    SCOPED_FREE char *copy = strdup(text);
    struct credentials found = { 0 };
    bool in_profile = false;
    char *rest = copy, *line;
    int r = copy == NULL ? -ENOMEM : 0;

    while (r == 0 && (line = strsep(&rest, "\n")) != NULL)
        r = read_line(line, profile, &in_profile, &found);
    if (r == 0 && (found.access_key == NULL || found.secret_key == NULL))
        r = -ENOENT;
    if (copy != NULL)
        explicit_bzero(copy, strlen(text));
    if (r < 0)
        credentials_done(&found);
    else
        *ret = found;
    return r;
}

static int load_file(const char *path, const char *profile, struct credentials *ret,
                     struct mandor_err *err)
{
    SCOPED_BUF text = { 0 };

    int r = file_read(path, FILE_MAX, false, &text);
    if (r < 0) /* -ENOENT is said of the object alone */
        return err_say(err, r == -ENOENT ? -EACCES : r, FAULT_HOST,
                       "no S3 credentials: read '%s': %s", path, strerrordesc_np(-r));
    r = credentials_parse(text.data, profile, ret);
    explicit_bzero(text.data, text.len);
    if (r == -ENOENT)
        return err_say(err, -EACCES, FAULT_HOST,
                       "no S3 credentials: '%s' has no profile '%s' with aws_access_key_id and "
                       "aws_secret_access_key",
                       path, profile);
    return r < 0 ? err_set(err, r, FAULT_HOST, "read S3 credentials") : 0;
}

/* ---- the order ---- */

static const char *env(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* malloc'ed, or NULL when there is none. */
static char *file_path(const struct s3_settings *settings)
{
    const char *given = settings->credentials_file != NULL ? settings->credentials_file
                                                           : env("AWS_SHARED_CREDENTIALS_FILE");
    const char *home = env("HOME");
    char *path = NULL;

    if (given != NULL)
        return strdup(given);
    if (home == NULL || asprintf(&path, "%s/.aws/credentials", home) < 0)
        return NULL;
    if (access(path, F_OK) == 0)
        return path;
    free(path);
    return NULL;
}

int credentials_load(const struct s3_settings *settings, struct credentials *ret,
                     struct mandor_err *err)
{
    const char *profile = settings->profile != NULL ? settings->profile : env("AWS_PROFILE");
    const char *access_key = env("AWS_ACCESS_KEY_ID"), *secret_key = env("AWS_SECRET_ACCESS_KEY");
    int r;

    if (settings->access_key != NULL && settings->secret_key != NULL)
        r = take(settings->access_key, settings->secret_key, settings->session_token, ret);
    else if (settings->credentials_file == NULL && access_key != NULL && secret_key != NULL)
        r = take(access_key, secret_key, env("AWS_SESSION_TOKEN"), ret);
    else {
        SCOPED_FREE char *path = file_path(settings);
        if (path != NULL)
            return load_file(path, profile == NULL ? "default" : profile, ret, err);
        return err_say(err, -EACCES, FAULT_HOST,
                       "no S3 credentials: expected `sinks.s3.access_key` and `secret_key`, "
                       "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a credentials file");
    }
    return r < 0 ? err_set(err, r, FAULT_HOST, "read S3 credentials") : 0;
}
