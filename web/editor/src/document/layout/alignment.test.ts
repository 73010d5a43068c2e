import { expect, test } from "vitest";
import { alignedAt, alignment, boundsOf, distributed, type Edge, straightened } from "./alignment";

const BOXES = new Map([
  ["a", { x: 0, y: 0, width: 100, height: 40 }],
  ["b", { x: 300, y: 90, width: 60, height: 80 }],
  ["c", { x: 130, y: 50, width: 100, height: 20 }],
]);

const at = (edge: Edge, axis: "x" | "y") =>
  [...alignedAt(BOXES, edge).values()].map((place) => place[axis]);

test("P1.04 boxes are aligned at the outermost edge, or at their common middle", () => {
  expect(at("left", "x")).toEqual([0, 0, 0]);
  expect(at("right", "x")).toEqual([260, 300, 260]);
  expect(at("centre", "x")).toEqual([130, 150, 130]);
  expect(at("top", "y")).toEqual([0, 0, 0]);
  expect(at("bottom", "y")).toEqual([130, 90, 150]);
  expect(at("middle", "y")).toEqual([65, 45, 75]);
  expect(at("left", "y")).toEqual([0, 90, 50]);
});

test("P1.04 boxes are distributed with equal gaps; the outer ones stay", () => {
  const across = distributed(BOXES, "x");
  expect(across.get("a")).toEqual({ x: 0, y: 0 });
  expect(across.get("c")).toEqual({ x: 150, y: 50 }); // gaps of 50
  expect(across.get("b")).toEqual({ x: 300, y: 90 });
  expect([...distributed(BOXES, "y").keys()]).toEqual(["a", "c", "b"]);
  expect(distributed(new Map([...BOXES].slice(0, 2)), "x").size).toBe(0);
});

test("P1.04 links are straightened from left to right; cycles and further links stay", () => {
  const link = (id: number, from: string, to: string, fromY: number, toY: number) => {
    return { id, from, to, fromY, toY };
  };
  const links = [
    link(1, "x", "a", 500, 5),
    link(2, "a", "c", 20, 60),
    link(3, "c", "b", 62, 100),
    link(4, "b", "a", 120, 30),
    link(5, "a", "b", 25, 140),
  ];
  const { places, links: levels } = straightened(BOXES, links);
  expect(places.get("a")).toEqual({ x: 0, y: 0 });
  expect(places.get("c")).toEqual({ x: 130, y: 10 });
  expect(places.get("b")).toEqual({ x: 300, y: 12 }); // level with c, which moved by 40
  expect([...levels]).toEqual([
    [2, 20],
    [3, 22],
  ]);
  const one = new Map([["a", { x: 0, y: 0, width: 1, height: 1 }]]);
  expect(straightened(one, links).places.get("a")).toEqual({ x: 0, y: 495 });
  expect(straightened(one, links.slice(1, 2)).places.get("a")).toEqual({ x: 0, y: 40 });
});

test("P1.04 a dragged box aligns with nearby lines, and guides show which", () => {
  const others = [...BOXES.values()].slice(0, 2);
  const near = { x: 103, y: 200, width: 200, height: 10 };
  expect(alignment(near, others, 4)).toEqual({
    by: { x: -3, y: 0 },
    guides: [
      { axis: "x", at: 100, from: 0, to: 210 },
      { axis: "x", at: 300, from: 90, to: 210 },
    ],
  });
  expect(alignment(near, others, 2)).toEqual({ by: { x: 0, y: 0 }, guides: [] });
  const middle = alignment({ x: 500, y: 122, width: 10, height: 20 }, others, 4);
  expect(middle).toEqual({
    by: { x: 0, y: -2 },
    guides: [{ axis: "y", at: 130, from: 300, to: 510 }],
  });
  expect(boundsOf(others)).toEqual({ x: 0, y: 0, width: 360, height: 170 });
});
