import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import type { NodeRun } from "../../jobs/job";
import { gapsOf, gapWords } from "./gaps";
import { heatOf } from "./heat";
import { planOf } from "./plan";

const run = (seconds: number): NodeRun => ({
  phase: "done",
  value: 1,
  maximum: 1,
  seconds,
  why: "",
});

test("P1.14 the critical path is the chain of nodes with the longest time", () => {
  const nodes = [1, 2, 3, 4, 5].map((id) => ({ id, type: "A" }));
  const links = [
    [10, 1, 0, 2, 0, "X"],
    [11, 1, 0, 3, 0, "X"],
    [12, 2, 0, 4, 0, "X"],
    [13, 3, 0, 4, 1, "X"],
    [14, 5, 0, 5, 0, "X"], // a self-loop, which no job has
  ];
  const runs = { "1": run(1), "2": run(5), "3": run(2), "4": run(1) };
  const heat = heatOf({ nodes, links }, runs, "");
  expect([...heat.path].sort()).toEqual(["1", "2", "4"]);
  expect([...heat.links].sort()).toEqual([10, 12]);
  expect(heat).toMatchObject({ total: 9, most: 5, pathSeconds: 7 });
  const inside = heatOf({ nodes, links: [] }, { "7:3": run(2), "7:1:8": run(4) }, "7:");
  expect([...inside.path]).toEqual(["1"]);
  expect(heatOf({}, {}, "").path.size).toBe(0);
});

test("P1.14 idle gaps of devices name their causes and do not overlap spans", () => {
  const plan = planOf(
    JSON.parse(readFileSync(new URL("./fixtures/controlnet_lora.json", import.meta.url), "utf8")),
  );
  const { timeline } = plan;
  if (timeline === null) throw new Error("no timeline");
  const gaps = gapsOf(plan, timeline);
  expect(gaps.length).toBeGreaterThan(0);
  for (const gap of gaps) {
    expect(plan.devices).toContain(timeline.rows[gap.row]);
    for (const { row, start, seconds } of timeline.spans)
      if (row === gap.row)
        expect(start + seconds <= gap.start + 1e-9 || start >= gap.start + gap.seconds - 1e-9).toBe(
          true,
        );
  }
  const [waiting] = gaps.filter(({ waitsFor }) => waitsFor !== null);
  expect(waiting && gapWords(waiting, timeline)).toMatch(/^cpu:\d idle .* before .*, waits for /);
});
