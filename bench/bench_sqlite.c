/* bench_sqlite DB LINES BATCH [MODEL] - raw SQLite at mandor's durability: WAL, synchronous=FULL, BATCH rows a transaction.
 *
 * Without MODEL each line of the file LINES becomes one row of a bare table (key and text, no other index): the floor.
 * With MODEL, the database of a queue, its jobs are copied row by row into a table with the same columns and indexes: what
 * the same rows cost without a queue around them.  Rows are read before the clock starts.
 */
#include <sqlite3.h>

#include "bench.h"

static void check(sqlite3 *db, int code)
{
    if (code != SQLITE_OK && code != SQLITE_DONE && code != SQLITE_ROW) {
        (void)fprintf(stderr, "bench_sqlite: %s\n", sqlite3_errmsg(db));
        exit(1);
    }
}

static void run(sqlite3 *db, const char *sql)
{
    check(db, sqlite3_exec(db, sql, NULL, NULL, NULL));
}

struct rows {
    size_t count, columns, room;
    sqlite3_value **values; /* count * columns */
};

static void keep(struct rows *rows, sqlite3_stmt *stmt)
{
    if ((rows->count + 1) * rows->columns > rows->room) {
        rows->room = rows->room > 0 ? rows->room * 2 : 4096;
        rows->values = realloc(rows->values, rows->room * sizeof *rows->values);
        if (rows->values == NULL)
            give_up("realloc");
    }
    for (size_t i = 0; i < rows->columns; i++)
        rows->values[rows->count * rows->columns + i] =
            sqlite3_value_dup(sqlite3_column_value(stmt, (int)i));
    rows->count++;
}

static void keep_all(sqlite3 *db, struct rows *rows, sqlite3_stmt *stmt)
{
    int code;

    rows->columns = (size_t)sqlite3_column_count(stmt);
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW)
        keep(rows, stmt);
    check(db, code);
    check(db, sqlite3_finalize(stmt));
}

/* Copy the definitions of a queue's job table and its indexes, and take its rows. */
static void take_model(sqlite3 *db, const char *path, struct rows *rows)
{
    sqlite3 *model;
    sqlite3_stmt *stmt;

    if (sqlite3_open_v2(path, &model, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK)
        give_up(path);
    check(model, sqlite3_prepare_v2(
                     model,
                     "SELECT sql FROM sqlite_master WHERE tbl_name = 'jobs' AND sql IS NOT NULL"
                     " AND type IN ('table', 'index') ORDER BY type DESC",
                     -1, &stmt, NULL));
    while (sqlite3_step(stmt) == SQLITE_ROW)
        run(db, (const char *)sqlite3_column_text(stmt, 0));
    check(model, sqlite3_finalize(stmt));

    check(model, sqlite3_prepare_v2(model, "SELECT * FROM jobs ORDER BY rowid", -1, &stmt, NULL));
    keep_all(model, rows, stmt);
    (void)sqlite3_close(model);
}

/* One row a line: the number as key, the line as text. */
static void take_lines(sqlite3 *db, const char *path, struct rows *rows)
{
    sqlite3_stmt *stmt;
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    ssize_t len;

    if (file == NULL)
        give_up(path);
    run(db, "CREATE TABLE jobs (id INTEGER PRIMARY KEY, spec TEXT)");
    check(db, sqlite3_prepare_v2(db, "SELECT ?1, ?2", -1, &stmt, NULL));
    rows->columns = 2;
    while ((len = getline(&line, &room, file)) > 0) {
        check(db, sqlite3_bind_int64(stmt, 1, (int64_t)rows->count + 1));
        check(db, sqlite3_bind_text(stmt, 2, line, (int)len - 1, SQLITE_TRANSIENT));
        check(db, sqlite3_step(stmt));
        keep(rows, stmt);
        check(db, sqlite3_reset(stmt));
    }
    check(db, sqlite3_finalize(stmt));
    (void)fclose(file);
    free(line);
}

static sqlite3_stmt *insert(sqlite3 *db, size_t columns)
{
    char sql[1024] = "INSERT INTO jobs VALUES (?";
    sqlite3_stmt *stmt;

    for (size_t i = 1; i < columns; i++)
        (void)strcat(sql, ", ?");
    check(db, sqlite3_prepare_v2(db, strcat(sql, ")"), -1, &stmt, NULL));
    return stmt;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        (void)fprintf(stderr, "usage: bench_sqlite DB LINES BATCH [MODEL]\n");
        return 2;
    }
    size_t batch = (size_t)number(argv[3]);
    struct rows rows = { 0 };
    sqlite3 *db;

    if (sqlite3_open(argv[1], &db) != SQLITE_OK)
        give_up(argv[1]);
    run(db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL");
    if (argc > 4)
        take_model(db, argv[4], &rows);
    else
        take_lines(db, argv[2], &rows);
    sqlite3_stmt *stmt = insert(db, rows.columns);

    int64_t start_ns = now_ns();
    for (size_t i = 0; i < rows.count; i++) {
        if (i % batch == 0)
            run(db, "BEGIN IMMEDIATE");
        for (size_t c = 0; c < rows.columns; c++)
            check(db, sqlite3_bind_value(stmt, (int)c + 1, rows.values[i * rows.columns + c]));
        check(db, sqlite3_step(stmt));
        check(db, sqlite3_reset(stmt));
        if (i % batch == batch - 1 || i == rows.count - 1)
            run(db, "COMMIT");
    }
    printf("{\"seconds\": %.6f, \"ok\": %zu}\n", seconds_since(start_ns), rows.count);

    (void)sqlite3_finalize(stmt);
    (void)sqlite3_close(db);
    return 0;
}
