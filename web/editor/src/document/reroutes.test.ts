import { expect, test } from "vitest";
import type { Doc } from "./model";
import { addReroute, moveReroutes, removeReroute, reroutesOf, throughOf } from "./reroutes";

const OLD: Doc = {
  version: 0.4,
  nodes: [],
  links: [[4, 1, 0, 2, 0, "X"]],
  extra: { other: 1 },
};
const NEW: Doc = {
  version: 1,
  nodes: [],
  links: [{ id: 4, origin_id: 1, origin_slot: 0, target_id: 2, target_slot: 0, type: "X" }],
};

test.each([
  ["v0.4", OLD],
  ["v1.0", NEW],
])("P0.11 reroutes are added to links and removed without a trace, in %s", (_, start) => {
  const one = addReroute(start, 4, { x: 10, y: 20 });
  const two = addReroute(one, 4, { x: 30, y: 40 });
  expect(throughOf(two).get(4)).toEqual([1, 2]);
  const moved = moveReroutes(two, new Map([[1, { x: -5, y: 6 }]]));
  expect(reroutesOf(moved)).toMatchObject([
    { x: -5, y: 6 },
    { x: 30, y: 40 },
  ]);
  expect(throughOf(removeReroute(two, 1)).get(4)).toEqual([2]);
  const none = removeReroute(removeReroute(two, 2), 1);
  expect(reroutesOf(none)).toEqual([]);
  expect(throughOf(none).size).toBe(0);
  expect(none.links).toEqual(start.links);
  expect(start.extra).toEqual(start === OLD ? { other: 1 } : undefined);
});

test("P1.02 a reroute is inserted between two others, for all links through them", () => {
  const shared: Doc = {
    ...NEW,
    links: [
      { id: 4, parentId: 2 },
      { id: 5, parentId: 1 },
    ],
    reroutes: [
      { id: 1, pos: [0, 0], linkIds: [4, 5] },
      { id: 2, parentId: 1, pos: [9, 0], linkIds: [4] },
    ],
  };
  expect(throughOf(addReroute(shared, 4, { x: 5, y: 0 }, 1)).get(4)).toEqual([1, 3, 2]);
  expect(throughOf(addReroute(shared, 4, { x: 12, y: 0 }, 2)).get(4)).toEqual([1, 2, 3]);
  const first = addReroute(shared, 4, { x: -5, y: 0 }, 0);
  expect([...throughOf(first).values()]).toEqual([
    [3, 1, 2],
    [3, 1],
  ]);
  expect(reroutesOf(removeReroute(first, 3))).toEqual(reroutesOf(shared));
  expect(first.reroutes).toContainEqual({ id: 3, pos: [-5, 0], linkIds: [4, 5] });
});

test("P0.11 cyclic and broken chains of reroutes end", () => {
  const circle = {
    ...NEW,
    links: [{ id: 4, parentId: 1 }],
    reroutes: [
      { id: 1, parentId: 2, pos: [0, 0] },
      { id: 2, parentId: 1, pos: [0, 0] },
    ],
  };
  expect(throughOf(circle).get(4)).toEqual([2, 1]);
  expect(throughOf({ ...circle, reroutes: [{ id: 1, parentId: 9 }] }).get(4)).toEqual([1]);
});
