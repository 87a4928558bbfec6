/* bench_settle DB BATCH - the least that SQLite takes for the lives of a queue's waiting jobs.
 *
 * DB: the file of a queue whose jobs all wait.  For each BATCH of them, with the queue's own statements (store_sql.def):
 *
 *   one transaction, not synced   lease and start each, in one statement
 *   one transaction, synced       end each as completed
 *
 * Nothing is read but the ids, before the clock starts; no fence, no parsing, one thread.  Ends when all are completed.
 */
#include <sqlite3.h>

#include "bench.h"

/* What mandor records of an empty job, to the byte. */
#define STREAM                              \
    "{\"sink\":\"auto\",\"path\":\"ring\"," \
    "\"xxh3\":\"2d06800538d394c2\",\"committed\":true}"
#define RECORD                                                                                  \
    "{\"cause\":\"exit\",\"exit_code\":0,\"streams\":{\"stdout\":" STREAM ",\"stderr\":" STREAM \
    "},\"usage\":{\"wall_ms\":1},\"containment\":\"cgroup\"}"

#define STMT(name, sql) static const char sql_##name[] __attribute__((unused)) = sql;
#include "broker/store_sql.def"
#undef STMT

static void check(sqlite3 *db, int code)
{
    if (code != SQLITE_OK && code != SQLITE_DONE && code != SQLITE_ROW) {
        (void)fprintf(stderr, "bench_settle: %s\n", sqlite3_errmsg(db));
        exit(1);
    }
}

static void run(sqlite3 *db, const char *sql)
{
    check(db, sqlite3_exec(db, sql, NULL, NULL, NULL));
}

static sqlite3_stmt *prepare(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *stmt;

    check(db, sqlite3_prepare_v2(db, sql, -1, &stmt, NULL));
    return stmt;
}

static void step(sqlite3 *db, sqlite3_stmt *stmt, int64_t id)
{
    check(db, sqlite3_bind_int64(stmt, 1, id));
    check(db, sqlite3_step(stmt));
    check(db, sqlite3_reset(stmt));
}

static int64_t *waiting_ids(sqlite3 *db, size_t *ret_count)
{
    sqlite3_stmt *stmt = prepare(db, "SELECT id FROM jobs WHERE state=0 ORDER BY priority,id");
    size_t count = 0, room = 0;
    int64_t *ids = NULL;

    while (sqlite3_step(stmt) == SQLITE_ROW) {
        if (count == room &&
            (ids = realloc(ids, (room = room > 0 ? room * 2 : 4096) * sizeof *ids)) == NULL)
            give_up("realloc");
        ids[count++] = sqlite3_column_int64(stmt, 0);
    }
    (void)sqlite3_finalize(stmt);
    *ret_count = count;
    return ids;
}

int main(int argc, char **argv)
{
    static const char boot[] = "00000000-0000-0000-0000-000000000000", worker[] = "bench-0000";
    sqlite3 *db;
    size_t count;

    if (argc != 3) {
        (void)fprintf(stderr, "usage: bench_settle DB BATCH\n");
        return 2;
    }
    size_t batch = (size_t)number(argv[2]);
    if (sqlite3_open(argv[1], &db) != SQLITE_OK)
        give_up(argv[1]);
    run(db, "PRAGMA journal_mode = WAL");
    int64_t *ids = waiting_ids(db, &count), now_ms = (int64_t)time(NULL) * 1000;
    sqlite3_stmt *start = prepare(db, sql_LEASE_START), *end = prepare(db, sql_END);

    check(db, sqlite3_bind_text(start, 2, worker, -1, SQLITE_STATIC));
    check(db, sqlite3_bind_int64(start, 3, now_ms));
    check(db, sqlite3_bind_text(start, 4, boot, -1, SQLITE_STATIC));
    check(db, sqlite3_bind_int64(start, 5, now_ms));
    check(db, sqlite3_bind_int64(end, 2, 3)); /* completed */
    check(db, sqlite3_bind_int64(end, 3, 1));
    check(db, sqlite3_bind_int64(end, 4, 0));
    for (int i = 8; i <= 10; i++)
        check(db, sqlite3_bind_int64(end, i, now_ms));
    check(db, sqlite3_bind_text(end, 11, RECORD, -1, SQLITE_STATIC));

    int64_t start_ns = now_ns();
    for (size_t at = 0, next; at < count; at = next) {
        next = at + batch < count ? at + batch : count;
        run(db, "PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE");
        for (size_t i = at; i < next; i++)
            step(db, start, ids[i]);
        run(db, "COMMIT; PRAGMA synchronous = FULL; BEGIN IMMEDIATE");
        for (size_t i = at; i < next; i++)
            step(db, end, ids[i]);
        run(db, "COMMIT");
    }
    printf("{\"seconds\": %.6f, \"ok\": %zu}\n", seconds_since(start_ns), count);

    (void)sqlite3_finalize(start);
    (void)sqlite3_finalize(end);
    (void)sqlite3_close(db);
    free(ids);
    return 0;
}
