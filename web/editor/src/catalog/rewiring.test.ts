import { describe, expect, test } from "vitest";
import { addNode, emptyDocument } from "../document/commands";
import { connect } from "../document/links";
import { type Doc, linksOf, nodesOf } from "../document/model";
import { addReroute, throughOf } from "../document/reroutes";
import { catalogOf } from "./catalog";
import { newNode } from "./placed";
import { dissolved, inserted } from "./rewiring";

const CATALOG = catalogOf({
  Load: { output: ["MODEL", "CLIP"] },
  Lora: {
    input: { required: { model: ["MODEL"], clip: ["CLIP"], strength: ["FLOAT", {}] } },
    output: ["MODEL", "CLIP"],
  },
  Encode: { input: { required: { clip: ["CLIP"], text: ["STRING", {}] } }, output: ["COND"] },
  Control: {
    input: { required: { positive: ["COND"], negative: ["COND"] } },
    output: ["COND", "COND"],
    output_name: ["positive", "negative"],
  },
  Sample: {
    input: { required: { model: ["MODEL"], positive: ["COND"], negative: ["COND"] } },
    output: ["LATENT"],
  },
});

function built(types: readonly string[], links: readonly (readonly number[])[]): Doc {
  const nodes = types.reduce<Doc>((graph, name, at) => {
    const type = CATALOG.get(name);
    return type === undefined ? graph : addNode(graph, newNode(type, 300 * at, 0));
  }, emptyDocument());
  return links.reduce((graph, [from = 0, fromSlot = 0, to = 0, toSlot = 0]) => {
    const type = nodesOf(graph)[from - 1]?.outputs[fromSlot]?.type ?? "*";
    const [source, target] = [
      { node: String(from), slot: fromSlot },
      { node: String(to), slot: toSlot },
    ];
    return connect(graph, source, target, type);
  }, nodes);
}

/** Links as [from, slot, to, slot], in a stable order. */
function wires(graph: Doc): readonly (readonly (string | number)[])[] {
  return linksOf(graph)
    .map(({ from, fromSlot, to, toSlot }) => [from, fromSlot, to, toSlot] as const)
    .sort((one, other) => one.join().localeCompare(other.join()));
}

describe("P1.01", () => {
  test("a node dropped on a link stands in it, and the link keeps its way", () => {
    const graph = addReroute(built(["Load", "Sample", "Lora"], [[1, 0, 2, 0]]), 1, { x: 1, y: 2 });
    const next = inserted(graph, CATALOG, "3", 1);
    expect(next && wires(next)).toEqual([
      ["1", 0, "3", 0],
      ["3", 0, "2", 0],
    ]);
    expect(next && throughOf(next).get(1)).toEqual([1]);
  });

  test("a node is not put where it does not fit, where it hangs already, or into a loop", () => {
    const graph = built(
      ["Load", "Sample", "Lora", "Encode"],
      [
        [1, 0, 2, 0],
        [1, 1, 4, 0],
      ],
    );
    expect(inserted(graph, CATALOG, "4", 1)).toBeNull();
    expect(inserted(graph, CATALOG, "2", 1)).toBeNull();
    expect(inserted(graph, CATALOG, "99", 1)).toBeNull();
    expect(inserted(graph, CATALOG, "3", 99)).toBeNull();
    const taken = built(
      ["Load", "Sample", "Lora", "Load"],
      [
        [1, 0, 2, 0],
        [4, 0, 3, 0],
      ],
    );
    expect(inserted(taken, CATALOG, "3", 1)).toBeNull();
  });

  test("a dissolved node gives way to what fed it, by place and type", () => {
    const graph = built(
      ["Load", "Lora", "Encode", "Encode", "Control", "Sample"],
      [
        [1, 0, 2, 0],
        [1, 1, 2, 1],
        [2, 1, 3, 0],
        [2, 1, 4, 0],
        [3, 0, 5, 0],
        [4, 0, 5, 1],
        [2, 0, 6, 0],
        [5, 0, 6, 1],
        [5, 1, 6, 2],
      ],
    );
    const next = dissolved(graph, new Set(["2", "5"]));
    expect(wires(next)).toEqual([
      ["1", 0, "6", 0],
      ["1", 1, "3", 0],
      ["1", 1, "4", 0],
      ["3", 0, "6", 1],
      ["4", 0, "6", 2],
    ]);
    expect(nodesOf(next).map(({ id }) => id)).toEqual(["1", "3", "4", "6"]);
  });

  test("dissolving a row of nodes leads around all of them", () => {
    const graph = built(
      ["Load", "Lora", "Lora", "Sample"],
      [
        [1, 0, 2, 0],
        [2, 0, 3, 0],
        [3, 0, 4, 0],
      ],
    );
    expect(wires(dissolved(graph, new Set(["2", "3"])))).toEqual([["1", 0, "4", 0]]);
  });
});
