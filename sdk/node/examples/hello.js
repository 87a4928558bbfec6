#!/usr/bin/env node
// A warm worker: greets, and says how far it is.
import { serve } from "mandor-worker";

await serve(async (job, ctx) => {
  const { name } = job.data;
  ctx.progress(50);
  await ctx.write(`Hello, ${name}!\n`);
  return { greeted: name };
});
