import { expect, test } from "vitest";
import type { Widget } from "../catalog/catalog";
import { combinations, countOf, rowsOf, typedValues } from "./sweep";

const WIDGET: Widget = {
  name: "steps",
  kind: "number",
  whole: true,
  lines: false,
  choices: [],
  options: { min: 1, max: 100 },
  further: {},
  helper: null,
};

test("P1.10 values are typed one per line, as in the field; invalid lines are reported", () => {
  expect(typedValues(WIDGET, "4\n2*4\n\n 4 \nmany\n900")).toEqual({
    values: [4, 8, 100],
    wrong: ["many"],
  });
  const choice: Widget = { ...WIDGET, kind: "choice", choices: ["euler", "a, b"] };
  expect(typedValues(choice, "a, b\nheun")).toEqual({ values: ["a, b"], wrong: ["heun"] });
  const on: Widget = { ...WIDGET, kind: "switch" };
  expect(typedValues(on, "false\ntrue\nyes")).toEqual({ values: [false, true], wrong: ["yes"] });
});

test("P1.10 all combinations form a grid, with the last field from left to right", () => {
  const lists = [[1, 2], ["a"], [true, false]];
  const all = combinations(lists);
  expect(all).toHaveLength(countOf(lists));
  expect(rowsOf(all.map((values, at) => ({ values, job: String(at) })))).toEqual([
    {
      heading: [1, "a"],
      runs: [
        { values: [1, "a", true], job: "0" },
        { values: [1, "a", false], job: "1" },
      ],
    },
    {
      heading: [2, "a"],
      runs: [
        { values: [2, "a", true], job: "2" },
        { values: [2, "a", false], job: "3" },
      ],
    },
  ]);
  expect(countOf([])).toBe(0);
  expect(rowsOf(combinations([[1, 2]]).map((values) => ({ values, job: "" })))).toHaveLength(1);
});
