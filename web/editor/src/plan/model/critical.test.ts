import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { chainTo, criticalChain, criticalOf } from "./critical";
import { planOf } from "./plan";

const fixture = (name: string) =>
  planOf(JSON.parse(readFileSync(new URL(`./fixtures/${name}.json`, import.meta.url), "utf8")));
const PLAN = fixture("controlnet_lora");

test("P0.38 the critical chain leads from the last span back through its dependencies", () => {
  const { timeline } = PLAN;
  if (timeline === null) throw new Error("no timeline");
  const chain = criticalChain(timeline);
  expect(chain).toEqual([1, 3, 4, 7, 8, 10, 12, 13, 16, 17]);
  for (const [place, at] of chain.entries())
    expect(timeline.spans[at]?.after).toBe(chain[place - 1] ?? null);
  // the planner's `binding` names this chain
  for (const at of chain.slice(5, 9))
    expect(PLAN.binding).toContain(timeline.spans[at]?.what.split(" ")[0]);
  expect(criticalChain({ ...timeline, spans: [] })).toEqual([]);
});

test("P0.38 a cyclic or invalid chain ends", () => {
  const span = { row: 0, what: "", stage: "", evaluation: 0, start: 0, seconds: 1 };
  expect(
    chainTo(
      [
        { ...span, after: 1 },
        { ...span, after: 0 },
      ],
      1,
    ),
  ).toEqual([0, 1]);
  expect(chainTo([{ ...span, after: 9 }], 0)).toEqual([0]);
});

test("P0.38 in the opened step, the chain covers whole calls and the edges between them", () => {
  const { operations, goesOver } = criticalOf(PLAN, 1);
  expect([...operations].sort()).toEqual([
    "5.negative-decoder",
    "5.negative-encoder",
    "5.negative-mid",
    "5.positive-encoder",
    "5.positive-mid",
  ]);
  expect(goesOver("5.positive-encoder", "5.positive-mid")).toBe(true);
  expect(goesOver("5.negative-mid", "5.negative-decoder")).toBe(true);
  expect(goesOver("5.negative-encoder", "5.negative-decoder")).toBe(false);
  expect(criticalOf(PLAN, 0).operations.size).toBe(0);
  expect(criticalOf(fixture("loop_by_hand"), 0).operations.size).toBeGreaterThan(0);
});
