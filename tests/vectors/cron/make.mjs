// make.mjs: next times as the cron-parser of the pinned BullMQ 6 sees them, for tests/unit/test_cron.c.  `node tests/vectors/cron/make.mjs > tests/vectors/cron/next.tsv`
// pattern, zone, after (ms), next (ms)
import { createRequire } from "node:module";
const base = new URL("../../bullmq/", import.meta.url);
const here = createRequire(createRequire(base).resolve("bullmq"));
const { CronExpressionParser } = here("cron-parser");

let state = 12345;
const random = (n) => ((state = (state * 1103515245 + 12345) % 2147483648), Math.floor((state / 2147483648) * n));
const pick = (list) => list[random(list.length)];
const zones = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia"];
const number = (low, high) => String(low + random(high - low + 1));
const field = (low, high) => {
  const a = +number(low, high), b = +number(low, high);
  return pick(["*", "*", `${a}`, `${a}`, `${Math.min(a, b)}-${Math.max(a, b)}`, `*/${1 + random(9)}`, `${a},${b}`, `${Math.min(a, b)}-${Math.max(a, b)}/${1 + random(4)}`]);
};
const day = () => pick(["*", "*", "?", number(1, 28), "L", "1,15", "*/7", "29", "31"]);
const weekday = () => pick(["*", "*", "?", number(0, 7), "MON-FRI", "SUN", "1,3,5", "5L", "2#3", "0-6"]);
const month = () => pick(["*", "*", "*", number(1, 12), "JAN,JUL", "3-10", "*/5"]);
const pattern = () => {
  const five = [field(0, 59), field(0, 23), day(), month(), weekday()];
  return pick([0, 1]) ? five.join(" ") : [field(0, 59), ...five].join(" ");
};
const row = (text, tz, after) => {
  try {
    const next = CronExpressionParser.parse(text, { currentDate: new Date(after), tz }).next().getTime();
    console.log([text, tz, after, next].join("\t"));
  } catch {
    // none, or not to its taste
  }
};

for (const text of ["@hourly", "@daily", "@weekly", "@monthly", "@yearly", "@weekdays", "*/15 * * * * *", "0 0 29 2 *", "0 0 0 L * *"]) row(text, "UTC", 1790000000123);
const edges = [Date.UTC(2027, 2, 28), Date.UTC(2027, 9, 31), Date.UTC(2027, 2, 14, 5), Date.UTC(2027, 10, 7, 4), Date.UTC(2027, 3, 3, 12), Date.UTC(2027, 9, 2, 12)];
for (let i = 0; i < 500; i++) row(pattern(), pick(zones), 1790000000000 + random(2 ** 30) * 400);
for (let i = 0; i < 200; i++) row(`${field(0, 59)} ${pick(["*", "2", "1", "3", "0-4", "*/2", "*/3"])} * * *`, pick(zones), pick(edges) + random(12) * 1800000);
