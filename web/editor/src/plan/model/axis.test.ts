import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { moved, revealing, stepped, zoomed } from "./axis";
import { planOf } from "./plan";

const { timeline } = planOf(
  JSON.parse(readFileSync(new URL("./fixtures/controlnet_lora.json", import.meta.url), "utf8")),
);
const spans = timeline?.spans ?? [];

test("P0.36 zooming keeps the time under the pointer, and the view within the timeline", () => {
  const view = zoomed({ from: 0, to: 10 }, 2, 5, 10);
  expect(view).toEqual({ from: 2.5, to: 7.5 });
  expect(zoomed({ from: 0, to: 10 }, 4, 0, 10)).toEqual({ from: 0, to: 2.5 });
  expect(zoomed(view, 0.1, 5, 10)).toEqual({ from: 0, to: 10 });
  expect(zoomed(view, 1e9, 5, 10).to - zoomed(view, 1e9, 5, 10).from).toBeCloseTo(10 / 400);
  expect(moved(view, 100, 10)).toEqual({ from: 5, to: 10 });
  expect(moved(view, -100, 10)).toEqual({ from: 0, to: 5 });
});

test("P0.36 a selected span is scrolled into view, and a visible one does not move the view", () => {
  const span = (start: number, seconds: number) => ({
    row: 0,
    what: "",
    stage: "",
    evaluation: 0,
    start,
    seconds,
    after: null,
  });
  const view = { from: 4, to: 6 };
  expect(revealing(view, span(4.5, 1), 10)).toEqual(view);
  expect(revealing(view, span(7, 1), 10).to).toBeCloseTo(8.2);
  expect(revealing(view, span(1, 1), 10).from).toBeCloseTo(0.8);
  expect(revealing(view, span(5, 4), 10).from).toBeCloseTo(4.8);
});

test("P0.36 arrow keys move along and between lanes, Enter to the span that was waited for", () => {
  const go = (from: number | null, ...keys: string[]) =>
    keys.reduce<number | null>((at, key) => stepped(spans, at, key), from);
  expect(go(null, "ArrowRight")).toBe(0);
  expect(go(1, "ArrowRight", "ArrowRight")).toBe(5);
  expect(go(5, "ArrowLeft")).toBe(3);
  expect(go(3, "Home")).toBe(1);
  expect(go(1, "ArrowLeft")).toBe(1);
  expect(spans[go(1, "ArrowDown") ?? -1]?.row).toBe(1);
  expect(spans[go(0, "ArrowUp") ?? -1]?.row).toBe(0);
  expect(go(7, "Enter")).toBe(4);
  expect(go(1, "Enter")).toBe(1);
  expect(go(1, "x")).toBeNull();
  expect(stepped([], null, "ArrowRight")).toBeNull();
});
