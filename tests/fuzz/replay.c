/* replay.c - runs a fuzz target over files, in place of libFuzzer: the stored corpus is part of the normal tests. */
#include <dirent.h>
#include <stdio.h>

#include "base/macro.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -errno;
    }

    static uint8_t bytes[1 << 20];
    size_t size = fread(bytes, 1, sizeof bytes, file);
    (void)fclose(file);

    /* A copy of just that size, so that a read behind its end is seen. */
    uint8_t *copy = malloc(MAX(size, (size_t)1));
    if (copy == NULL)
        return -ENOMEM;
    memcpy(copy, bytes, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    return 0;
}

int main(int argc, char **argv)
{
    int count = 0;

    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (dir == NULL) {
            (void)fprintf(stderr, "%s: %s\n", argv[i], strerror(errno));
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
            char path[4096];
            if (entry->d_name[0] == '.')
                continue;
            (void)snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            if (replay_file(path) < 0) {
                (void)closedir(dir);
                return 1;
            }
            count++;
        }
        (void)closedir(dir);
    }

    (void)printf("%d inputs\n", count);
    return count > 0 ? 0 : 1;
}
