import { expect, test } from "vitest";
import type { Doc } from "../model";
import { along, freePlace, nearest } from "./directions";

const node = (id: number, x: number, y: number, width = 200) => ({
  id,
  type: "A",
  pos: [x, y],
  size: [width, 100],
});
const GRAPH: Doc = {
  nodes: [node(1, 0, 0), node(2, 300, 0), node(3, 320, 200), node(4, 0, 250, 900), node(5, 700, 0)],
  links: [[1, 1, 0, 5, 0, "X"]],
};

test("P0.40 arrow keys select the nearest node by box edges, or follow links", () => {
  expect(nearest(GRAPH, "1", "right")).toBe("2");
  expect(nearest(GRAPH, "2", "right")).toBe("5");
  expect(nearest(GRAPH, "2", "down")).toBe("3");
  expect(nearest(GRAPH, "1", "down")).toBe("4"); // a wide node: its centre is far away
  expect(nearest(GRAPH, "1", "left")).toBeNull();
  expect(nearest(GRAPH, undefined, "left")).toBe("1");
  expect([along(GRAPH, "1", "forth"), along(GRAPH, "5", "back")]).toEqual(["5", "1"]);
  expect(along(GRAPH, "2", "back")).toBeNull();
  expect(freePlace(GRAPH, 0, 0)).toEqual({ x: 32, y: 32 });
});
