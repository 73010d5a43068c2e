import { expect, test } from "vitest";
import { drawnNodes } from "../layout";
import { barPaths, boxPath, boxPaths } from "./boxPaths";

const node = (id: number, more: Record<string, string | number> = {}) => ({
  id,
  type: "LatentAdd",
  pos: [300 * id, 30],
  size: [210, 76],
  ...more,
});
const drawn = drawnNodes(
  { nodes: [node(1), node(2, { color: "#a03030" }), node(3), node(4, { mode: 2 })] },
  [],
);
const head = (id: number) => boxPath({ x: 300 * id, y: 0, width: 210, height: 30 });

test("titles are grouped by colour, without the paler titles of muted nodes", () => {
  expect(Object.fromEntries(boxPaths(drawn).heads)).toEqual({
    "": head(1) + head(3),
    "#a03030": head(2),
  });
});

test("a node's device bar is divided by the time on each device", () => {
  const places = new Map([
    [
      "2",
      new Map([
        [0, 3],
        [1, 1],
      ]),
    ],
  ]);
  const found = barPaths(drawn, (id) => places.get(id) ?? new Map<number, number>());
  const bar = (y: number, height: number) => boxPath({ x: 601, y, width: 5, height });
  expect([...found]).toEqual([
    [0, bar(33, 52.5)],
    [1, bar(85.5, 17.5)],
  ]);
});
